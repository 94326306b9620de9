"""What the kernel says about this process and its connections: open files, memory, received bytes."""

from __future__ import annotations

import resource

RESERVED_DESCRIPTORS = 256
"""File descriptors that connections without a session leave free, for files, pipes and peers: at most a quarter."""


def is_scarce(descriptor: int) -> bool:
    """Return whether few descriptors are left when a new connection has got this one, as the lowest free number."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit - min(RESERVED_DESCRIPTORS, limit // 4)
