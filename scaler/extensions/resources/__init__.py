"""Resources: memory, GPUs, and CPUs that tasks occupy, and their reservations for large tasks.

placement of the core -> core.py: reservations -> stocks.py: amounts per worker
memory of processors -> memory.py -> limits.py: processors to kill -> agent.py
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "resources",
    scheduler="scaler.extensions.resources.core:Counted",
    agent="scaler.extensions.resources.agent:limit_memory",
)
