"""Compression of messages between hosts, where it saves time.

net -> links.py: decides per connection -> frames.py: decides per frame -> zstd.py
"""

from scaler.plugins import Extension

EXTENSION = Extension("compression", own={"frames": "scaler.extensions.compression.links"})
