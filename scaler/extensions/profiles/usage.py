"""Memory use and memory growth of each function's tasks in an agent's processors. Pure.

A rise of a processor's peak counts for a function if tasks of no other function ran there at the time. Without such a
rise, the function's memory is unknown, because a processor keeps memory left by earlier tasks. A sample counts for the
running function, or else for the only function finished since the last sample, unless it exceeds the function's peak.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from scaler.median import median
from scaler.protocol.messages import FunctionUse, WorkerHeartbeat
from scaler.worker.frames import TaskGrowth

MAX_FUNCTIONS = 256
MAX_REPORTED = 32
COLLECTIONS_WITHIN = 1.5
"""Multiple of the garbage collection interval after which a series certainly includes a collection."""


WARM_UP_TASKS = 10
"""Measured tasks of a function in one processor that are ignored, because they import modules and fill caches."""
LEAST_POINTS = 24
MOST_POINTS = 48
"""Number of points at which pairs of points are merged, so that the series covers twice the time."""
MOST_TASKS_OF_POINT = 64
"""Tasks per point beyond which the oldest points are dropped instead of merged."""
PARTS = 8
STEADY_PARTS = PARTS - 1
"""Parts of a leak that must grow alike. One part may include a collection."""
STEADY_SHARE = 0.5
"""Minimum growth of a steady part, as a share of the median growth per task."""
LEVEL_SHARE = 0.6
"""Minimum growth of a leak's last quarter, as a share of the first quarter's. A filling cache has less."""
RISE_SHARE = 0.25
"""Minimum rise of the process between two parts, as a share of the mean rise."""
LEAST_GROWTH_BYTES = 2 * 1024**2
"""Minimum growth over all measured tasks. Allocators take memory in steps of up to a megabyte."""


class GrowthPoint(NamedTuple):
    """Growth over consecutive measured tasks. began_bytes: memory of the process before the first one."""

    at: float
    tasks: int
    growth_bytes: int
    began_bytes: int


class GrowthSeries:
    """Measured tasks of one function in one processor, oldest first. Detects leaks.

    A leak meets two criteria. Nearly every part of the series grows by the same amount per task, unlike a filling cache
    or an allocator that takes memory in steps. And the whole process grows steadily, so no other task frees the memory.
    A verdict changes when two consecutive judgements, a third more tasks apart, agree.
    """

    def __init__(self, least_seconds: float) -> None:
        """least_seconds: minimum length of a conclusive series, so that it includes a garbage collection."""
        self._least_seconds = least_seconds
        self._to_skip = WARM_UP_TASKS
        self._tasks_of_point = 1
        self._points: list[GrowthPoint] = []
        self._seen: int | None = None
        self.leak_bytes: int | None = None
        """Bytes that each task leaves behind; 0: no leak; None: unknown."""

    def add(self, at: float, before_bytes: int, after_bytes: int) -> None:
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
    """Return the bytes that each task leaves behind; 0: no leak. The number of points must be a multiple of PARTS."""
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
    # The kernel counts pages in batches, so the mean of the parts is more exact than the median.
    return round(sum(inner) / len(inner)) if rises_steadily and sum(rises) >= growth / 2 else 0


def _per_task(points: Sequence[GrowthPoint]) -> float:
    return sum(point.growth_bytes for point in points) / sum(point.tasks for point in points)


def _joined(first: GrowthPoint, second: GrowthPoint) -> GrowthPoint:
    return first._replace(tasks=first.tasks + second.tasks, growth_bytes=first.growth_bytes + second.growth_bytes)


class ProcessorSample(NamedTuple):
    """A sample of a processor. running: function of the running task, or "". ended: functions of tasks finished
    since the previous sample. growth: a new measured task with its function, or None."""

    rss_bytes: int
    peak_bytes: int
    running: str
    ended: Collection[str]
    growth: tuple[str, TaskGrowth] | None = None


@dataclass(slots=True)
class _Memory:
    samples: int = 0
    total_bytes: int = 0
    peak_bytes: int = 0
    judged: dict[int, int] = field(default_factory=dict)


class MemoryUsage:
    def __init__(self, garbage_collect_seconds: float) -> None:
        """garbage_collect_seconds: interval of forced garbage collections; 0: none are forced."""
        self._least_seconds = COLLECTIONS_WITHIN * garbage_collect_seconds
        self._functions: OrderedDict[str, _Memory] = OrderedDict()
        self._peaks: dict[int, int] = {}
        self._series: dict[int, OrderedDict[str, GrowthSeries]] = {}
        self._changed: dict[str, None] = {}
        self._samples = self._total_bytes = 0
        self._peak_bytes = 0

    def complete(self, heartbeat: WorkerHeartbeat) -> None:
        heartbeat.rss_mean_bytes = round(self._total_bytes / self._samples) if self._samples else 0
        heartbeat.rss_peak_bytes = self._peak_bytes
        heartbeat.functions = self.report()

    def take(self, now: float, processors: Mapping[int, ProcessorSample]) -> None:
        total = sum(sample.rss_bytes for sample in processors.values())
        self._samples += 1
        self._total_bytes += total
        self._peak_bytes = max(self._peak_bytes, total)
        for number, sample in processors.items():
            self._take(number, sample)
            if sample.growth is not None:
                self._grew(now, number, *sample.growth)
        self._peaks = {
            number: sample.peak_bytes if sample.running or sample.ended else self._peaks.get(number, sample.peak_bytes)
            for number, sample in processors.items()
        }
        self._series = {number: series for number, series in self._series.items() if number in processors}

    def report(self) -> list[FunctionUse]:
        names = list(self._changed)[:MAX_REPORTED]
        for name in names:
            del self._changed[name]
        return [self._use(name, self._functions[name]) for name in names]

    def report_all(self) -> None:
        self._changed = dict.fromkeys(reversed(self._functions))

    def _take(self, number: int, sample: ProcessorSample) -> None:
        used = {*sample.ended, sample.running} - {""}
        is_alone = len(used) == 1
        owner = sample.running or (next(iter(used)) if is_alone else "")
        if not owner:
            return
        memory = self._memory_of(owner)
        if is_alone and sample.peak_bytes > self._peaks.get(number, 0):
            memory.peak_bytes = max(memory.peak_bytes, sample.peak_bytes)
        if sample.rss_bytes <= memory.peak_bytes:  # anything above was left by other functions
            memory.samples += 1
            memory.total_bytes += sample.rss_bytes

    def _grew(self, now: float, number: int, function: str, growth: TaskGrowth) -> None:
        known = self._series.setdefault(number, OrderedDict())
        series = known.setdefault(function, GrowthSeries(self._least_seconds))
        known.move_to_end(function)
        if len(known) > MAX_FUNCTIONS:
            known.popitem(last=False)
        before = series.leak_bytes
        series.add(now, growth.before_bytes, growth.after_bytes)
        if series.leak_bytes is None or series.leak_bytes == before:
            return
        memory = self._memory_of(function)
        # Ended processors may have run another version of the function.
        memory.judged = {each: left for each, left in memory.judged.items() if each in self._series}
        memory.judged[number] = series.leak_bytes

    def _memory_of(self, function: str) -> _Memory:
        memory = self._functions.setdefault(function, _Memory())
        self._functions.move_to_end(function)
        self._changed[function] = None
        if len(self._functions) > MAX_FUNCTIONS:
            oldest, _ = self._functions.popitem(last=False)
            self._changed.pop(oldest, None)
        return memory

    @staticmethod
    def _use(name: str, memory: _Memory) -> FunctionUse:
        growing = [left for left in memory.judged.values() if left]
        growth = round(median(growing)) if growing else 0
        mean = round(memory.total_bytes / memory.samples) if memory.samples else 0
        return FunctionUse(name, memory.samples, mean, memory.peak_bytes, growth, len(memory.judged), len(growing))
