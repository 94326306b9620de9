"""Sharing: free slots go to the key, and within it to the client, with the least recent use.

changes of the core -> use.py: slot-seconds by key and owner -> order.py: whose turn it is -> ready queues, placement
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
            parameter=("search", "Text to search for in the group's, key's, or client's name."),
            page="clients",
            key="s",
        ),
    ),
)
"""Keys share slots equally, and clients share the slots of their key."""
