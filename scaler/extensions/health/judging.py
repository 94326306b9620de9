"""Which worker is bad: six figures of each, compared with the other workers where they are comparable. Pure.

Tasks are compared with those of the same function on other workers, so workers with different work are not. A figure
that cannot be known is None: no function of the worker ran on enough others, or its machine does not say.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scaler.grammar import called, counted, sized
from scaler.median import median
from scaler.scheduler.core.durations import Pace, Timing

MIN_TASKS = 5
"""Tasks of a function that a worker has run, before they say anything about it."""
MIN_PEERS = 3
"""Other workers with as many."""
CERTAIN = 4.0
"""Standard deviations that are not taken for chance: there are many workers and functions."""
SLOW, VERY_SLOW = 1.25, 2.5
"""Times as long as on other workers."""
MANY_FAILURES = 0.5
"""The share of its tasks that fails beyond that of others."""
FEW_PEERS_LAG_SECONDS = 0.25
LAG_SECONDS = 0.05
LAG_RATIO = 3.0
"""A round trip may be this many times that of the others."""
VERY_LATE = 8.0
"""And this many times more is as bad as can be."""
FULL, VERY_FULL = 80.0, 97.0
"""Percent of the memory."""
WITHHELD, MUCH_WITHHELD = 5.0, 50.0
"""Percent of the time."""
LITTLE_DISK, NO_DISK = 0.1, 0.01
"""The share that is free."""
ENOUGH_DISK_BYTES = 20 << 30
MIN_ROUND_TRIPS = 3


class WorkerFigures(NamedTuple):
    """What is known of a worker. failures_in_row: as a share of those after which it gets no more tasks.

    memory_percent: used. granted_percent: of the time, it may have a CPU. Both and disk_bytes: 0 when it is not known.
    """

    paces: Mapping[Timing, Pace]
    failures_in_row: float = 0.0
    round_trips: Sequence[float] = ()
    memory_percent: float = 0.0
    granted_percent: float = 0.0
    disk_free_bytes: int = 0
    disk_bytes: int = 0


class Health(NamedTuple):
    """How bad each figure of a worker is, from 0 to 100; None: it is not known. text: the worst one, in a sentence."""

    failures: int | None = None
    slowness: int | None = None
    lag: int | None = None
    memory: int | None = None
    cpu: int | None = None
    disk: int | None = None
    text: str = ""

    @property
    def worst(self) -> int:
        return max((heat for heat in self[:-1] if isinstance(heat, int)), default=0)


class _Heat(NamedTuple):
    """From 0 to 1, and its cause in a sentence, which is empty where it is 0: thousands are not to be written."""

    heat: float
    text: str


_COOL = _Heat(0.0, "")


def judge(workers: Sequence[WorkerFigures], names: Mapping[Timing, str]) -> list[Health]:
    """Return the health of each worker, in the same order. names: of functions; those without one are not compared."""
    slow, failing = _compared(workers, names)
    lags = _lags(workers)
    return [
        _health((failing[place], slow[place], lags[place], _memory(each), _cpu(each), _disk(each)))
        for place, each in enumerate(workers)
    ]


def _health(heats: Sequence[_Heat | None]) -> Health:
    failures, slowness, lag, memory, cpu, disk = (None if each is None else round(100 * each.heat) for each in heats)
    worst = max((each for each in heats if each is not None), key=lambda each: each.heat, default=_COOL)
    return Health(failures, slowness, lag, memory, cpu, disk, worst.text if round(100 * worst.heat) else "")


# -- tasks -------------------------------------------------------------------------------------------------------------

_Compared = list[_Heat | None]


def _compared(workers: Sequence[WorkerFigures], names: Mapping[Timing, str]) -> tuple[_Compared, _Compared]:
    """Return slowness and failures of each worker, of the function in which it is worst."""
    found: defaultdict[Timing, list[tuple[int, Pace]]] = defaultdict(list)
    for place, worker in enumerate(workers):
        for timing, pace in worker.paces.items():
            if pace.tasks >= MIN_TASKS and timing in names:
                found[timing].append((place, pace))
    slow: _Compared = [None] * len(workers)
    failing: _Compared = [
        _Heat(min(1.0, each.failures_in_row), "its last tasks ended with its processes")
        if each.failures_in_row
        else None
        for each in workers
    ]
    for timing, entries in found.items():
        if len(entries) <= MIN_PEERS:
            continue
        function = called(names[timing])
        for (place, _), heat in zip(entries, _failures([pace for _, pace in entries], function), strict=True):
            failing[place] = _worse(failing[place], heat)
        timed = [(place, pace) for place, pace in entries if pace.ratio]
        if len(timed) > MIN_PEERS:
            slowness = _slowness([pace for _, pace in timed], timing.variation, function)
            for (place, _), heat in zip(timed, slowness, strict=True):
                slow[place] = _worse(slow[place], heat)
    return slow, failing


def _worse(one: _Heat | None, other: _Heat) -> _Heat:
    return other if one is None or other.heat > one.heat else one


def _slowness(paces: Sequence[Pace], variation: float, function: str) -> list[_Heat]:
    ratios = [pace.ratio for pace in paces]
    ordered = sorted(ratios)
    heats = []
    for pace, ratio in zip(paces, ratios, strict=True):
        times = ratio / _median_without(ordered, ratio)
        if times <= SLOW:
            heats.append(_COOL)
            continue
        certain = times / (1 + CERTAIN * variation / math.sqrt(pace.tasks))
        text = f"tasks of {function} take {times - 1:.0%} longer than on {counted(len(paces) - 1, 'other worker')}"
        heats.append(_Heat(_between(certain, SLOW, VERY_SLOW), text))
    return heats


def _failures(paces: Sequence[Pace], function: str) -> list[_Heat]:
    tasks, failed = sum(pace.tasks for pace in paces), sum(pace.failed for pace in paces)
    heats = []
    for pace in paces:
        if not pace.failed:
            heats.append(_COOL)
            continue
        others, others_failed = tasks - pace.tasks, failed - pace.failed
        usual = (others_failed + 1) / (others + 2)
        beyond = pace.failed - pace.tasks * usual
        is_certain = beyond > CERTAIN * math.sqrt(pace.tasks * usual * (1 - usual) + 1)
        share, others_share = pace.failed / pace.tasks, others_failed / others
        text = f"{share:.0%} of its tasks of {function} fail, of those of other workers {others_share:.0%}"
        heats.append(_Heat(_between(share - others_share, 0.0, MANY_FAILURES) if is_certain else 0.0, text))
    return heats


# -- the worker and its machine ----------------------------------------------------------------------------------------


def _lags(workers: Sequence[WorkerFigures]) -> list[_Heat | None]:
    known = [median(each.round_trips) if len(each.round_trips) >= MIN_ROUND_TRIPS else None for each in workers]
    ordered = sorted(seconds for seconds in known if seconds is not None)
    heats: list[_Heat | None] = []
    for seconds in known:
        if seconds is None:
            heats.append(None)
            continue
        usual = _median_without(ordered, seconds) if len(ordered) > MIN_PEERS else None
        least = FEW_PEERS_LAG_SECONDS if usual is None else max(LAG_SECONDS, LAG_RATIO * usual)
        if seconds <= least:
            heats.append(_COOL)
            continue
        others = "" if usual is None else f", those of other workers {usual * 1e3:,.0f} ms"
        text = f"a message and its answer take {seconds * 1e3:,.0f} ms{others}"
        heats.append(_Heat(_between(math.log(seconds / least), 0.0, math.log(VERY_LATE)), text))
    return heats


def _memory(worker: WorkerFigures) -> _Heat | None:
    percent = worker.memory_percent
    if percent <= FULL:
        return _COOL if percent > 0 else None
    text = f"{percent:.0f} % of the memory of its machine or container is used"
    return _Heat(_between(percent, FULL, VERY_FULL), text)


def _cpu(worker: WorkerFigures) -> _Heat | None:
    if not worker.granted_percent:
        return None
    percent = 100 - worker.granted_percent
    if percent <= WITHHELD:
        return _COOL
    text = f"for {percent:.0f} % of the time it is denied a CPU, by the quota of its container or by its hypervisor"
    return _Heat(_between(percent, WITHHELD, MUCH_WITHHELD), text)


def _disk(worker: WorkerFigures) -> _Heat | None:
    free, size = worker.disk_free_bytes, worker.disk_bytes
    if not size:
        return None
    share = free / size
    if free >= ENOUGH_DISK_BYTES or share >= LITTLE_DISK:
        return _COOL
    heat = _between(LITTLE_DISK - share, 0.0, LITTLE_DISK - NO_DISK)
    return _Heat(heat, f"{sized(free)} of {sized(size)} are free on the disk of its temporary files")


def _between(value: float, least: float, most: float) -> float:
    """Return where a value is between two others: 0 up to the first, 1 from the second."""
    return min(1.0, max(0.0, (value - least) / (most - least)))


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of sorted values without this one of them."""
    place, count = bisect_left(ordered, value), len(ordered) - 1
    low, high = (count - 1) // 2, count // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2
