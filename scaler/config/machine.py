"""What this machine has: the defaults that depend on it."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def default_concurrency() -> int:
    """Return how many workers run here unless told: one less than the CPUs that this process may use, at least 1."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cpus - 1)


def default_memory_limit_bytes() -> int:
    """Return half of the memory that this process may use: the machine's, or its container's."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        container = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        container = "max"
    return (min(memory, int(container)) if container.isdigit() else memory) // 2
