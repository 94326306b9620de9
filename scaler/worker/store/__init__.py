"""The object store of a host: one process for all workers of a cluster on it. Agents find or start it; see `link`."""
