"""Clients inside tasks: the task's worker relays their messages, and a waiting task lends its slot.

client.py: the connector, and the detection of waiting tasks -> agent.py: relays messages in the worker's session
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "nested",
    own={"loop": "scaler.extensions.nested.client:open_loop", "watch": "scaler.extensions.nested.client:watch"},
    prepare="scaler.extensions.nested.client:prepare",
    agent="scaler.extensions.nested.agent:relay_clients",
)
