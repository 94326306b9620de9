"""The client: what users call, a pure session, and one background thread that talks to the scheduler."""
