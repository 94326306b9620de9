"""Runs components together: the supervisor, the launcher for files, and the combo for Python programs."""
