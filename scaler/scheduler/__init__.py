"""The scheduler: `core` decides (pure), `server` does (sockets, clock)."""
