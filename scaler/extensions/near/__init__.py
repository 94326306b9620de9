"""Near: tasks with the option `near` go to workers that have run tasks of the same name, whose caches they use."""

from scaler.plugins import Extension

EXTENSION = Extension("near", scheduler="scaler.extensions.near.core:Names")
"""Tasks with a name go to workers that have run the name, unless another worker would finish sooner."""
