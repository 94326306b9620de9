"""Tasks as calls to a service: the agent's executor, the interface of services, and the remote side."""
