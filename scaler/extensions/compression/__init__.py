"""Compression of messages between hosts, where it saves time.

net -> links.py: decides for a connection -> frames.py: decides for each frame -> zstd.py
"""

from scaler.plugins import Extension

EXTENSION = Extension("compression", own={"frames": "scaler.extensions.compression.links"})
