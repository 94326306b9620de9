"""Resources: memory, GPUs, and CPUs that tasks occupy, and their reservations for large tasks.

placement of the core -> core.py: reservations -> stocks.py: amounts per worker
"""

from scaler.plugins import Extension

EXTENSION = Extension("resources", scheduler="scaler.extensions.resources.core:Counted")
