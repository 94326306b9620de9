"""What the processes of a system use: the client's, which asks, and all that descend from it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import psutil


def processes() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def memory_bytes(everyone: Sequence[psutil.Process]) -> float:
    """Return the sum of their resident memory, as `top` shows it: what several share is counted for each of them."""
    return float(sum(process.memory_info().rss for process in everyone))


def cpu_seconds(everyone: Sequence[psutil.Process]) -> dict[psutil.Process, float]:
    """Return what each has used so far, without those that have ended: a browser's come and go."""
    used = {}
    for process in everyone:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process] = times.user + times.system
    return used


def cpu_seconds_since(before: Mapping[psutil.Process, float]) -> float:
    """Return what those that still run have used since they were read."""
    return sum(used - before[process] for process, used in cpu_seconds(list(before)).items())
