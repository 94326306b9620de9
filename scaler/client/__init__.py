"""The client: the public calls, a session that decides, and a thread that communicates with the scheduler."""
