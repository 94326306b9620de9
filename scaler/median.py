"""The median, without `statistics`: importing that module and what it imports takes 8 ms of CPU in every process."""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    """Return the value in the middle, or the mean of the two values in the middle. There must be a value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
