"""The model in a terminal: live as a screen, or once as plain text or JSON."""
