"""Object storage: large payloads by id, exchanged between clients and processors without the scheduler."""
