"""The data plane: objects in host stores, transfers between stores, and workers near their data.

messages from stores -> stores.py -> tracker.py: transfers, directory.py: holders, persisted.py: copies that must exist
tasks -> locality.py: the host near which a task runs
agent -> host: one store for all workers of a host
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "data_plane",
    agent="scaler.extensions.data_plane.host.link:find_store",
    questions="scaler.extensions.data_plane.client:CopyCalls",
    scheduler="scaler.extensions.data_plane.core:DataPlane",
)
