"""What the processes of a system use: the client's, which asks, and all that descend from it."""

from __future__ import annotations

from collections.abc import Sequence

import psutil


def processes() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def memory_bytes(everyone: Sequence[psutil.Process]) -> float:
    """Return the sum of their resident memory, as `top` shows it: what several share is counted for each of them."""
    return float(sum(process.memory_info().rss for process in everyone))


def cpu_seconds(everyone: Sequence[psutil.Process]) -> float:
    used = [process.cpu_times() for process in everyone]
    return float(sum(each.user + each.system for each in used))
