"""The model in a terminal: as a live screen, or once as plain text or JSON."""
