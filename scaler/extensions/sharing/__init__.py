"""Sharing: free slots go to the key with the least recent use, and within the key to the client with the least use.

core changes -> use.py: slot-seconds by key and owner -> order.py: turns -> ready queues, placement
"""

from scaler.plugins import Extension, FoundTable

EXTENSION = Extension(
    "sharing",
    scheduler="scaler.extensions.sharing.order:FairTurns",
    found=(
        FoundTable(
            "shares",
            "Shares of the slots",
            "scaler.extensions.sharing.rows:ShareRow",
            most=2_000,
            parameter=("search", "Text to search for in the names of groups, keys, and clients."),
            page="clients",
            key="s",
        ),
    ),
)
"""Keys share slots equally, and clients share the slots of their key."""
