"""Several components as one thing: the supervisor, the launcher of a file, and the combo for Python programs."""
