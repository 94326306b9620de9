"""Streams: values from a generator, consumed while its task runs.

calls.py: a task -> producer.py: StreamValue -> core.py -> results.py: values -> StreamTaken -> core.py -> producer.py
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "streams",
    scheduler="scaler.extensions.streams.core:Streams",
    client="scaler.extensions.streams.calls:StreamCalls",
    async_client="scaler.extensions.streams.asynchronous:AsyncStreamCalls",
)
