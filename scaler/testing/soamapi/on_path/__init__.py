"""A directory for `sys.path`, with nothing in it but `soamapi`."""
