"""Adds worker health and connections to the status. Pure.

Six scores judge each worker; task durations and failures are compared with other workers that ran the same functions. A
score is None if too few other workers ran the function, or if the machine does not report the figure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

from scaler.extensions.health.paces import Pace, WorkerPaces
from scaler.extensions.interface import SchedulerPart
from scaler.grammar import called, counted, sized
from scaler.median import median
from scaler.monitor.data_rows import LinkRow
from scaler.monitor.reports.status import MAX_TEXT
from scaler.net.connection import LinkFigures
from scaler.scheduler.additions import Additions, Reader
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.core import QUARANTINE_FAILURES
from scaler.scheduler.core.state import ClientRecord, ManagerRecord, Timing, Worker
from scaler.scheduler.tables import table

MIN_TASKS = 5
"""Minimum number of tasks of a function on a worker for the function to count."""
MIN_PEERS = 3
"""Minimum number of other workers that each ran MIN_TASKS tasks of the function."""
CERTAIN = 4.0
"""Number of standard deviations that make a difference significant. High, because many values are compared."""
SLOW, VERY_SLOW = 1.25, 2.5
"""Task duration relative to other workers: where the score starts, and where it is worst."""
MANY_FAILURES = 0.5
"""Excess failure rate over other workers (share of tasks)."""
WITHIN_BUCKET = 28 / 27
"""Mean square divided by squared mean, of durations uniformly distributed in a bucket of a `Timing`."""
FEW_PEERS_LAG_SECONDS = 0.25
LAG_SECONDS = 0.05
LAG_RATIO = 3.0
"""Tolerated round trip relative to other workers."""
VERY_LATE = 8.0
"""Multiple of the tolerated round trip at which the score is worst."""
FULL, VERY_FULL = 80.0, 97.0
"""Percent of memory in use."""
WITHHELD, MUCH_WITHHELD = 5.0, 50.0
"""Percent of time during which a worker is denied a CPU."""
LITTLE_DISK, NO_DISK = 0.1, 0.01
"""Share of free disk space."""
ENOUGH_DISK_BYTES = 20 << 30
MIN_ROUND_TRIPS = 3


class WorkerFigures(NamedTuple):
    """Inputs for judging one worker. failures_in_row: consecutive failures, as a share of the number that bans a
    worker. memory_percent: used memory. granted_percent: share of CPU time not withheld by a quota or hypervisor. Both
    and disk_bytes are 0 if unknown."""

    paces: Mapping[Timing, Pace]
    failures_in_row: float = 0.0
    round_trips: Sequence[float] = ()
    memory_percent: float = 0.0
    granted_percent: float = 0.0
    disk_free_bytes: int = 0
    disk_bytes: int = 0


class Health(NamedTuple):
    """Scores of a worker from 0 (good) to 100 (bad), None if unknown. text: sentence about the worst score."""

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
    """Score from 0 to 1 and a sentence about its cause. The sentence is built only for scores above 0."""

    heat: float
    text: str


_COOL = _Heat(0.0, "")


def judge(workers: Sequence[WorkerFigures], names: Mapping[Timing, str]) -> list[Health]:
    """Return the health of each worker, in order. names: function names. Functions without a name are not compared."""
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
    """Return each worker's slowness and failures, both for its worst function."""
    found: defaultdict[Timing, list[tuple[int, Pace]]] = defaultdict(list)
    for place, worker in enumerate(workers):
        for timing, pace in worker.paces.items():
            if pace.tasks >= MIN_TASKS and timing in names:
                found[timing].append((place, pace))
    slow: _Compared = [None] * len(workers)
    died = "its last processes died while running tasks"
    failing: _Compared = [
        _Heat(min(1.0, each.failures_in_row), died) if each.failures_in_row else None for each in workers
    ]
    for timing, entries in found.items():
        if len(entries) <= MIN_PEERS:
            continue
        function = called(names[timing])
        tasks, failed = sum(pace.tasks for _, pace in entries), sum(pace.failed for _, pace in entries)
        ratios = sorted(pace.ratio for _, pace in entries if pace.ratio)
        for place, pace in entries:
            failing[place] = _worse(failing[place], _failures(pace, tasks, failed, function))
            if pace.ratio and len(ratios) > MIN_PEERS:
                slow[place] = _worse(slow[place], _slowness(pace, ratios, _variation(timing), function))
    return slow, failing


def _variation(timing: Timing) -> float:
    """Return the coefficient of variation of durations; 0 before the first task has ended."""
    if timing.total_us <= 0:
        return 0.0
    squares = sum(us * us / count for count, us in zip(timing.counts, timing.sums_us, strict=True) if count)
    return math.sqrt(max(0.0, WITHIN_BUCKET * squares * timing.measured / timing.total_us**2 - 1))


def _worse(one: _Heat | None, other: _Heat) -> _Heat:
    return other if one is None or other.heat > one.heat else one


def _slowness(pace: Pace, ordered: Sequence[float], variation: float, function: str) -> _Heat:
    """ordered: ratios of all workers, sorted."""
    times = pace.ratio / _median_without(ordered, pace.ratio)
    if times <= SLOW:
        return _COOL
    certain = times / (1 + CERTAIN * variation / math.sqrt(pace.tasks))
    text = f"tasks of {function} take {times - 1:.0%} longer than on {counted(len(ordered) - 1, 'other worker')}"
    return _Heat(_between(certain, SLOW, VERY_SLOW), text)


def _failures(pace: Pace, tasks: float, failed: float, function: str) -> _Heat:
    """tasks, failed: of all workers."""
    if not pace.failed:
        return _COOL
    others, others_failed = tasks - pace.tasks, failed - pace.failed
    usual = (others_failed + 1) / (others + 2)
    beyond = pace.failed - pace.tasks * usual
    is_certain = beyond > CERTAIN * math.sqrt(pace.tasks * usual * (1 - usual) + 1)
    share, others_share = pace.failed / pace.tasks, others_failed / others
    text = f"{share:.0%} of its tasks of {function} fail, compared to {others_share:.0%}"
    return _Heat(_between(share - others_share, 0.0, MANY_FAILURES) if is_certain else 0.0, text)


# -- the worker and its machine ----------------------------------------------------------------------------------------


def _lags(workers: Sequence[WorkerFigures]) -> list[_Heat | None]:
    known = [median(each.round_trips) if len(each.round_trips) >= MIN_ROUND_TRIPS else None for each in workers]
    ordered = sorted(seconds for seconds in known if seconds is not None)
    return [None if seconds is None else _lag(seconds, ordered) for seconds in known]


def _lag(seconds: float, ordered: Sequence[float]) -> _Heat:
    """ordered: round trips of all workers, sorted."""
    usual = _median_without(ordered, seconds) if len(ordered) > MIN_PEERS else None
    least = FEW_PEERS_LAG_SECONDS if usual is None else max(LAG_SECONDS, LAG_RATIO * usual)
    if seconds <= least:
        return _COOL
    others = "" if usual is None else f", but {usual * 1e3:,.0f} ms on other workers"
    text = f"a round trip takes {seconds * 1e3:,.0f} ms{others}"
    return _Heat(_between(math.log(seconds / least), 0.0, math.log(VERY_LATE)), text)


def _memory(worker: WorkerFigures) -> _Heat | None:
    percent = worker.memory_percent
    if percent <= FULL:
        return _COOL if percent > 0 else None
    text = f"{percent:.0f} % of its machine's or container's memory is in use"
    return _Heat(_between(percent, FULL, VERY_FULL), text)


def _cpu(worker: WorkerFigures) -> _Heat | None:
    if not worker.granted_percent:
        return None
    percent = 100 - worker.granted_percent
    if percent <= WITHHELD:
        return _COOL
    text = f"for {percent:.0f} % of the time it waits for a CPU because of its container's quota or its hypervisor"
    return _Heat(_between(percent, WITHHELD, MUCH_WITHHELD), text)


def _disk(worker: WorkerFigures) -> _Heat | None:
    free, size = worker.disk_free_bytes, worker.disk_bytes
    if not size:
        return None
    share = free / size
    if free >= ENOUGH_DISK_BYTES or share >= LITTLE_DISK:
        return _COOL
    heat = _between(LITTLE_DISK - share, 0.0, LITTLE_DISK - NO_DISK)
    return _Heat(heat, f"{sized(free)} of {sized(size)} are free on the disk with its temporary files")


def _between(value: float, least: float, most: float) -> float:
    return min(1.0, max(0.0, (value - least) / (most - least)))


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of sorted values, excluding one occurrence of value."""
    place, count = bisect_left(ordered, value), len(ordered) - 1
    low, high = (count - 1) // 2, count // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


LINKS_BYTES = 16 * 1024
MAX_LINKS = 100
"""Number of connections listed, longest round trip first."""


class WorkerHealth(SchedulerPart):
    """Judges all workers in the scheduler, because their paces would not fit into a status."""

    def __init__(self, _config: object = None) -> None:
        self._paces = WorkerPaces()

    def paces(self) -> WorkerPaces:
        return self._paces

    def add_to_status(self, reader: Reader) -> Additions:
        workers = list(self.cluster.workers.values())
        paces = self._paces.by_worker
        judged = judge([_figures(worker, paces.get(worker.id, {})) for worker in workers], self._names(reader))
        found = {worker.id.hex(): health for worker, health in zip(workers, judged, strict=True)}
        columns = {"workers": {worker: _columns(health) for worker, health in found.items()}}
        ranks = {worker: health.worst for worker, health in found.items()}
        if not reader.sees_all:
            return Additions(columns=columns, ranks=ranks)
        links = table(LinkRow._fields, link_rows(self.cluster, reader.figures, MAX_LINKS), LINKS_BYTES)
        totals = {"links": len(linked(self.cluster))}
        return Additions(tables={"links": links}, columns=columns, totals=totals, ranks=ranks)

    def _names(self, reader: Reader) -> Mapping[Timing, str]:
        groups = chain.from_iterable(client.groups.values() for client in self.cluster.all_clients())
        records = dict.fromkeys(chain((group.function for group in groups), self.cluster.functions.values()))
        return {timing: record.name for record in records if reader.sees(record.key) for timing in record.timings}


def _figures(worker: Worker, paces: Mapping[Timing, Pace]) -> WorkerFigures:
    in_row = worker.progress.failures_in_row / QUARANTINE_FAILURES
    beat = worker.reports.heartbeat
    if beat is None:
        return WorkerFigures(paces, in_row)
    machine = beat.memory_percent, beat.cpu_granted_percent, beat.disk_free_bytes, beat.disk_bytes
    return WorkerFigures(paces, in_row, worker.reports.round_trips, *machine)


def _columns(health: Health) -> dict[str, object]:
    heats = {f"{name}_heat": heat for name, heat in zip(Health._fields[:-1], health[:-1], strict=True)}
    return {**heats, "fault": health.text[:MAX_TEXT]}


def linked(state: ClusterState) -> list[Worker | ClientRecord | ManagerRecord]:
    """Return the peers that have their own connection. A client inside a task uses its worker's connection."""
    clients = (client for client in state.clients.values() if client.via is None)
    peers: Iterable[Worker | ClientRecord | ManagerRecord] = chain(
        state.workers.values(), clients, state.managers.values()
    )
    return [peer for peer in peers if peer.broken_at is None]


def link_rows(state: ClusterState, figures: Callable[[bytes], LinkFigures], most: int) -> list[LinkRow]:
    rows = (_row(peer, figures(peer.id)) for peer in linked(state))
    return nlargest(most, rows, key=lambda row: (row.outbox_bytes > 0, row.latency_seconds, row.outbox_bytes))


def _row(peer: Worker | ClientRecord | ManagerRecord, found: LinkFigures) -> LinkRow:
    who = peer.id.hex(), peer.name or peer.id.hex()[:8], peer.role, peer.host if isinstance(peer, Worker) else ""
    sizes = found.outbox_bytes, found.received_bytes, found.sent_bytes
    return LinkRow(*who, round(found.latency_seconds, 6), *sizes)
