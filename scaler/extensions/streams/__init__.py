"""Streams: values from a generator, consumed while its task runs.

client.py: a task -> producer.py: StreamValue -> core.py -> client.py: values -> StreamTaken -> core.py -> producer.py
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "streams",
    scheduler="scaler.extensions.streams.core:Streams",
    client="scaler.extensions.streams.client:StreamCalls",
    async_client="scaler.extensions.streams.asynchronous:AsyncStreamCalls",
)
