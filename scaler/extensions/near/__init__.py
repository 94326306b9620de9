"""Near: runs tasks with the option `near` on workers that have run tasks of the same name, to reuse caches."""

from scaler.plugins import Extension

EXTENSION = Extension("near", scheduler="scaler.extensions.near.core:Names")
"""Tasks with a name run on workers that have run the name before, unless another worker would finish sooner."""
