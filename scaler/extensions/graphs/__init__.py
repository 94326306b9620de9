"""Graphs: `Client.get`, also for Dask.

calls.py -> plan.py: validated nodes in order -> chunks.py: groups of small nodes -> run.py: tasks
         -> program.py: a chunk in a processor
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "graphs",
    client="scaler.extensions.graphs.calls:GraphCalls",
    async_client="scaler.extensions.graphs.calls:AsyncGraphCalls",
)
