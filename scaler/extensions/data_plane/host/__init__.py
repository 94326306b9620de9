"""Object store of a host: one process for all its workers of a cluster. Agents find or start it; see `link`."""
