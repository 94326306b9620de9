"""Object store of a host: one process shared by a cluster's workers there. Agents find or start it; see `link`."""
