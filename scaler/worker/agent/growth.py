"""Tells whether tasks leave memory behind, from measurements of single tasks. Pure.

Two things must both be seen. Nearly every part of the series has grown by about as much per task, the last parts as
much as the first ones: a cache that fills, and an allocator that takes memory in steps, do not look like that. And the
process as a whole has grown steadily meanwhile: what one task leaves and another one collects is no leak. A leak has to
be seen twice, a third more tasks later, and missed twice before it is none any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from scaler.median import median

WARM_UP_TASKS = 10
"""Measured tasks of a function in one processor that do not count: these import modules and fill caches."""
LEAST_POINTS = 24
MOST_POINTS = 48
"""Then two points become one, so that the series covers twice the time; LEAST_POINTS is half of it."""
MOST_TASKS_OF_POINT = 64
"""Then the oldest points go instead."""
PARTS = 8
STEADY_PARTS = PARTS - 1
"""Parts of a leak that have grown by as much as the others: one may have had a collection."""
STEADY_SHARE = 0.5
"""Of the median growth per task: what nearly every part of a leak has."""
LEVEL_SHARE = 0.6
"""Of the growth in the first quarter: what the last quarter of a leak has. A cache that fills has less."""
RISE_SHARE = 0.25
"""Of the mean rise of the process from one part to the next: what nearly every rise has."""
LEAST_GROWTH_BYTES = 2 * 1024**2
"""Of all measured tasks: allocators take memory in steps of up to a megabyte."""


class GrowthPoint(NamedTuple):
    """What measured tasks, one behind the other, have left. began_bytes: of the process before the first of them."""

    at: float
    tasks: int
    growth_bytes: int
    began_bytes: int


class GrowthSeries:
    """Measured tasks of one function in one processor, the oldest first."""

    def __init__(self, least_seconds: float) -> None:
        """least_seconds: a shorter series proves nothing, because no garbage was collected in it."""
        self._least_seconds = least_seconds
        self._to_skip = WARM_UP_TASKS
        self._tasks_of_point = 1
        self._points: list[GrowthPoint] = []
        self._seen: int | None = None
        """What the last look at the series has found; None before the first."""
        self.leak_bytes: int | None = None
        """What each task leaves behind, 0 when that is nothing; None while it is not known."""

    def add(self, at: float, before_bytes: int, after_bytes: int) -> None:
        """Add a measured task. at: in seconds of any clock."""
        if self._to_skip:
            self._to_skip -= 1
            return
        points = self._points
        growth = after_bytes - before_bytes
        if points and points[-1].tasks < self._tasks_of_point:
            last = points[-1]
            points[-1] = last._replace(tasks=last.tasks + 1, growth_bytes=last.growth_bytes + growth)
        else:
            points.append(GrowthPoint(at, 1, growth, before_bytes))
        if points[-1].tasks == self._tasks_of_point and len(points) % PARTS == 0:
            self._judge(at)
            self._make_room()

    def _judge(self, at: float) -> None:
        if len(self._points) < LEAST_POINTS or at - self._points[0].at < self._least_seconds:
            return
        seen = leak_of(self._points)
        if self._seen is not None and bool(self._seen) is bool(seen):
            self.leak_bytes = seen
        self._seen = seen

    def _make_room(self) -> None:
        points = self._points
        if len(points) < MOST_POINTS:
            return
        if self._tasks_of_point < MOST_TASKS_OF_POINT:
            self._tasks_of_point *= 2
            self._points = [_joined(*pair) for pair in zip(points[::2], points[1::2], strict=True)]
        else:
            del points[: MOST_POINTS // PARTS]


def leak_of(points: Sequence[GrowthPoint]) -> int:
    """Return the bytes that each task leaves behind, 0 when it leaves none. points: a multiple of PARTS."""
    size = len(points) // PARTS
    parts = [points[place : place + size] for place in range(0, len(points), size)]
    slopes = [_per_task(part) for part in parts]
    typical = median(slopes)
    steady = sum(slope >= STEADY_SHARE * typical for slope in slopes)
    quarter = len(points) // 4
    levels_off = _per_task(points[-quarter:]) < LEVEL_SHARE * _per_task(points[:quarter])
    growth = sum(point.growth_bytes for point in points)
    if typical < 1 or growth < LEAST_GROWTH_BYTES or steady < STEADY_PARTS or levels_off:
        return 0
    levels = [median(point.began_bytes for point in part) for part in parts]
    rises = [after - before for before, after in pairwise(levels)]
    rise = sum(rises) / len(rises)
    rises_steadily = sum(each >= RISE_SHARE * rise for each in rises) >= len(rises) - 1
    inner = sorted(slopes)[1:-1]
    # Kernels count pages in batches: of the parts together, the mean is more exact than the median.
    return round(sum(inner) / len(inner)) if rises_steadily and sum(rises) >= growth / 2 else 0


def _per_task(points: Sequence[GrowthPoint]) -> float:
    return sum(point.growth_bytes for point in points) / sum(point.tasks for point in points)


def _joined(first: GrowthPoint, second: GrowthPoint) -> GrowthPoint:
    return first._replace(tasks=first.tasks + second.tasks, growth_bytes=first.growth_bytes + second.growth_bytes)
