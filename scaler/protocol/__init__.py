"""The wire: the vocabulary (`messages`), its only translator (`codec`), and reliable delivery (`session`)."""
