"""Tasks as calls to a service: the agent's executor, the interface to services, and the remote side."""
