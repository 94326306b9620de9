"""The client: what users call, a session that decides, and one background thread that talks to the scheduler."""
