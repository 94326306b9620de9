"""Maps: `map`, `starmap`, `imap`, and `imap_unordered`, executors, and pools.

calls.py -> results.py: window of items -> runner.py: chunks as tasks -> chunks.py: calls in a processor -> results.py
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "maps",
    client="scaler.extensions.maps.calls:MapCalls",
    async_client="scaler.extensions.maps.asynchronous:AsyncMapCalls",
)
