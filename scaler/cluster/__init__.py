"""Running several components together: the supervisor, the launcher of a file, and the combo for Python programs."""
