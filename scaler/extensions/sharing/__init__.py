"""Sharing: free slots go to the key, and within it to the client, with the least recent use.

changes of the core -> use.py: slot-seconds by key and owner -> turns.py: whose turn it is -> ready queues, placement
"""

from scaler.plugins import Extension

EXTENSION = Extension("sharing", scheduler="scaler.extensions.sharing.turns:FairTurns")
"""Keys share slots equally, and clients share the slots of their key."""
