"""The scheduler: `core` decides (pure), `server` does (sockets, clock), `recorder` keeps the black box."""
