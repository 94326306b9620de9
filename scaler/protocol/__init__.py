"""Wire protocol: `messages`, their encoding (`codec`), and reliable delivery (`session`)."""
