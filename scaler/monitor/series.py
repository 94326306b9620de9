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
"""cpu_percent and memory_bytes: sums over the scheduler and all listed workers. moved_per_second: bytes.

round_trip_seconds: median of all listed workers. lag_seconds: maximum lag of the scheduler's loop.
"""
FINE_SECONDS = 1800.0
MAX_FINE = 3600
COARSE_SECONDS = 10.0
MAX_COARSE = 8640

Point = tuple[float, ...]
"""A time (unix seconds) and a value for each of `NAMES`."""


class Series:
    """All series, with shared times.

    Invariant: points are ordered by time. A point that is not later than the last one is dropped.
    """

    def __init__(self) -> None:
        self._fine: deque[Point] = deque()
        self._coarse: deque[Point] = deque(maxlen=MAX_COARSE)
        self._in_last = 0
        """Number of points averaged in the last point of `_coarse`, which has the time of the first."""

    def add(self, at: float, values: Mapping[str, float]) -> None:
        if self._fine and at <= self._fine[-1][0]:
            return
        self._fine.append((at, *(float(values.get(name, 0.0)) for name in NAMES)))
        while len(self._fine) > MAX_FINE or self._fine[-1][0] - self._fine[0][0] > FINE_SECONDS:
            self._retire(self._fine.popleft())

    def last(self, name: str) -> float:
        return self._fine[-1][NAMES.index(name) + 1] if self._fine else 0.0

    def columns(self, since: float = 0.0) -> dict[str, list[float]]:
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
