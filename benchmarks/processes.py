"""Measures the CPU time and memory of the calling client and all its descendants."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import psutil


def processes() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def memory_bytes(everyone: Sequence[psutil.Process]) -> float:
    """Return the sum of their resident memory, as shown by `top`. Shared pages count once per process."""
    return float(sum(process.memory_info().rss for process in everyone))


def private_bytes(everyone: Sequence[psutil.Process]) -> float:
    """Return the sum of their memory that no other process shares."""
    return float(sum(process.memory_full_info().uss for process in everyone))


def cpu_seconds(everyone: Sequence[psutil.Process]) -> dict[psutil.Process, float]:
    """Return the CPU seconds of each process, without those that have ended, such as a browser's helpers."""
    used = {}
    for process in everyone:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process] = times.user + times.system
    return used


def cpu_seconds_since(before: Mapping[psutil.Process, float]) -> float:
    """Return the CPU seconds since the earlier reading, summed over the processes that still run."""
    return sum(used - before[process] for process, used in cpu_seconds(list(before)).items())
