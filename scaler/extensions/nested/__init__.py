"""Clients inside tasks: their messages travel through the task's worker, and a task that waits lends its slot.

client.py: the connector, and the watch for waits -> agent.py: relays messages in the worker's session
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "nested",
    own={"loop": "scaler.extensions.nested.client:open_loop", "watch": "scaler.extensions.nested.client:watch"},
    prepare="scaler.extensions.nested.client:prepare",
    agent="scaler.extensions.nested.agent:relay_clients",
)
