"""Figures over time: every point for half an hour, then means of ten seconds for a day. Pure, bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

NAMES = (
    "tasks_per_second",
    "failed_per_second",
    "workers",
    "slots",
    "queued",
    "running",
    "cpu_percent",
    "memory_bytes",
)
"""cpu_percent and memory_bytes are those of the scheduler and of all listed workers."""
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

    __slots__ = ("_coarse", "_count", "_fine", "_sums")

    def __init__(self) -> None:
        self._fine: deque[Point] = deque()
        self._coarse: deque[Point] = deque(maxlen=MAX_COARSE)
        self._sums: list[float] = []
        """Of the points that have left `_fine` and make up the next one of `_coarse`: their time, and sums."""
        self._count = 0

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
        points = [point for point in self._points() if point[0] >= since]
        columns = list(zip(*points, strict=True)) if points else [()] * (len(NAMES) + 1)
        return {name: list(column) for name, column in zip(("at", *NAMES), columns, strict=True)}

    def _points(self) -> Iterator[Point]:
        yield from self._coarse
        if self._count:
            yield self._mean()
        yield from self._fine

    def _mean(self) -> Point:
        return (self._sums[0], *(total / self._count for total in self._sums[1:]))

    def _retire(self, point: Point) -> None:
        bucket = point[0] // COARSE_SECONDS
        if self._count and self._sums[0] // COARSE_SECONDS != bucket:
            self._coarse.append(self._mean())
            self._sums, self._count = [], 0
        if not self._count:
            self._sums = [point[0], *([0.0] * len(NAMES))]
        for index, value in enumerate(point[1:], 1):
            self._sums[index] += value
        self._count += 1
