"""The client: the user's calls, a session that decides, and a background thread that communicates with the
scheduler."""
