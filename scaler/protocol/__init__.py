"""The wire: the messages (`messages`), their bytes (`codec`), and reliable delivery (`session`)."""
