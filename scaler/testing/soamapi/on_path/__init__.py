"""A directory for `sys.path` that contains only `soamapi`."""
