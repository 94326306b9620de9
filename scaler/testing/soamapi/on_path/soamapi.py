"""`import soamapi` where this directory is on `sys.path`: the stand-in, under the product's name."""

from scaler.testing.soamapi.api import *  # noqa: F403 (all of it)
