"""The client: the user's calls, a session that decides, and a thread that communicates with the scheduler."""
