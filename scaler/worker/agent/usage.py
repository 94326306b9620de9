"""The memory that tasks of each function use in the processors of an agent, and what they leave behind. Pure.

The kernel's peak of a processor counts for a function when it rose while tasks of no other function ran there. Where it
never did, the function's memory is not known: a processor keeps what earlier tasks have left behind. A sample counts
for the function whose task runs, or else for the only one of which tasks have ended since, unless it is above its peak.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from scaler.median import median
from scaler.protocol.messages import FunctionUse
from scaler.worker.frames import TaskGrowth

MAX_FUNCTIONS = 256
"""Functions that are remembered: those that were used last."""
MAX_REPORTED = 32
"""Functions of one heartbeat; the others come with the next one."""
COLLECTIONS_WITHIN = 1.5
"""Times the interval of the garbage collection: in a series that is as long, garbage was collected."""


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
    """Measured tasks of one function in one processor, the oldest first: do they leave memory behind?

    A leak shows twice. Nearly every part of the series grows by the same amount per task, unlike a cache that fills or
    an allocator that takes memory in steps. And the whole process grows steadily, so no other task collects what one
    leaves. A verdict changes when two judgements in a row, a third more tasks apart, agree.
    """

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


class ProcessorSample(NamedTuple):
    """A processor at one time. running: the function of its task, or empty. ended: those of tasks that have ended since
    the sample before. growth: of the last measured task, with its function; None: no other one was measured since."""

    rss_bytes: int
    peak_bytes: int
    running: str
    ended: Collection[str]
    growth: tuple[str, TaskGrowth] | None = None


@dataclass(slots=True)
class _Memory:
    """The memory of a function's tasks. judged: bytes that each leaves behind, by the processor's number."""

    samples: int = 0
    total_bytes: int = 0
    peak_bytes: int = 0
    judged: dict[int, int] = field(default_factory=dict)


class MemoryUsage:
    """What an agent knows of the memory of its processors and of its functions since its start."""

    def __init__(self, garbage_collect_seconds: float) -> None:
        """garbage_collect_seconds: how often processors collect garbage; 0: only by themselves."""
        self._least_seconds = COLLECTIONS_WITHIN * garbage_collect_seconds
        self._functions: OrderedDict[str, _Memory] = OrderedDict()
        self._peaks: dict[int, int] = {}
        """The kernel's peak of each processor, by number, at the last sample in which a task ran."""
        self._series: dict[int, OrderedDict[str, GrowthSeries]] = {}
        self._changed: dict[str, None] = {}
        """Functions that were not reported since they were used."""
        self._samples = self._total_bytes = 0
        self.peak_bytes = 0
        """Of all processors together."""

    @property
    def mean_bytes(self) -> int:
        """Of all processors together."""
        return round(self._total_bytes / self._samples) if self._samples else 0

    def take(self, now: float, processors: Mapping[int, ProcessorSample]) -> None:
        """Take in a sample of every processor that lives, by its number."""
        total = sum(sample.rss_bytes for sample in processors.values())
        self._samples += 1
        self._total_bytes += total
        self.peak_bytes = max(self.peak_bytes, total)
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
        """Have all functions reported again: another scheduler listens."""
        self._changed = dict.fromkeys(reversed(self._functions))

    def _take(self, number: int, sample: ProcessorSample) -> None:
        used = {*sample.ended, sample.running} - {""}
        if not used:
            return
        is_alone = len(used) == 1
        owner = sample.running or (next(iter(used)) if is_alone else "")
        if not owner:
            return
        memory = self._memory_of(owner)
        if is_alone and sample.peak_bytes > self._peaks.get(number, 0):
            memory.peak_bytes = max(memory.peak_bytes, sample.peak_bytes)
        if sample.rss_bytes <= memory.peak_bytes:  # more is what other functions have left behind
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
        # Processors that have ended may have run another version of the function.
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
