"""The median without `statistics`, whose import costs every process 8 ms of CPU."""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
