"""Object storage: large payloads by id, which clients and processors exchange without the scheduler."""
