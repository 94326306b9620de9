"""The scheduler: `core` makes all decisions (pure), and `server` does the I/O (sockets, clock)."""
