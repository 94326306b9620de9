"""Sharing: slots go to the key, and then the client, that used least of them lately.

changes of the core -> use.py: slot-seconds by key and owner -> turns.py: whose turn it is -> ready queues, placement
"""

from scaler.plugins import Extension

EXTENSION = Extension("sharing", scheduler="scaler.extensions.sharing.turns:FairTurns")
"""Keys share the slots by use, and the clients of a key share what it gets."""
