"""Figures of a cluster over time, in bounded memory. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import chain

NAMES = (
    "tasks_per_second",
    "failed_per_second",
    "workers",
    "slots",
    "queued",
    "running",
    "cpu_percent",
    "memory_bytes",
    "moved_per_second",
    "round_trip_seconds",
    "lag_seconds",
    "storage_seconds",
)
"""cpu_percent and memory_bytes are those of the scheduler and of all listed workers; moved_per_second are bytes.

round_trip_seconds is the median of all listed workers; lag_seconds is how late the scheduler's loop was, at most.
"""
FINE_SECONDS = 1800.0
MAX_FINE = 3600
COARSE_SECONDS = 10.0
MAX_COARSE = 8640

Point = tuple[float, ...]
"""A time in unix seconds, and a value for each of `NAMES`."""


class Series:
    """All series together, because they share their times.

    Law: points are in the order of their times; one that is not later than the last one is dropped.
    """

    def __init__(self) -> None:
        self._fine: deque[Point] = deque()
        self._coarse: deque[Point] = deque(maxlen=MAX_COARSE)
        self._in_last = 0
        """Points of which the last one of `_coarse` is the mean, with the time of the first."""

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """Add a point. at: unix seconds."""
        if self._fine and at <= self._fine[-1][0]:
            return
        self._fine.append((at, *(float(values.get(name, 0.0)) for name in NAMES)))
        while len(self._fine) > MAX_FINE or self._fine[-1][0] - self._fine[0][0] > FINE_SECONDS:
            self._retire(self._fine.popleft())

    def last(self, name: str) -> float:
        """Return the newest value of one series; 0 while there is none."""
        return self._fine[-1][NAMES.index(name) + 1] if self._fine else 0.0

    def columns(self, since: float = 0.0) -> dict[str, list[float]]:
        """Return all series as columns, `at` among them, from this time (unix seconds) on."""
        points = [point for point in chain(self._coarse, self._fine) if point[0] >= since]
        columns = list(zip(*points, strict=True)) if points else [()] * (len(NAMES) + 1)
        return {name: list(column) for name, column in zip(("at", *NAMES), columns, strict=True)}

    def _retire(self, point: Point) -> None:
        if not self._coarse or self._coarse[-1][0] // COARSE_SECONDS != point[0] // COARSE_SECONDS:
            self._coarse.append(point)
            self._in_last = 1
            return
        self._in_last += 1
        at, *means = self._coarse[-1]
        values = zip(means, point[1:], strict=True)
        self._coarse[-1] = (at, *(mean + (value - mean) / self._in_last for mean, value in values))
