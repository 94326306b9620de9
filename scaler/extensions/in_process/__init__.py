"""`Client(processes=False)`: a client that runs its tasks itself."""

from scaler.plugins import Extension

EXTENSION = Extension("in_process", own={"loop": "scaler.extensions.in_process.client:open_loop"})
