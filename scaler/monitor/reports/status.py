"""The MonitorStatus document: aggregated state of the core as JSON, in O(workers). Pure.

`scaler.monitor.cluster_rows` declares rows and columns. In `tasks`, `assigned` excludes suspended tasks, and `running`
counts assigned tasks up to the number of slots of each worker. In rows of clients and functions, a suspended task
counts as running. Each table has at most `MAX_ROWS` rows and its share of bytes, so that the document always fits in a
control message: first degraded and failing workers, then rows with most tasks. Waiting tasks are counted by group.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import nlargest, nsmallest
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

from scaler.monitor import cluster_rows as rows
from scaler.needs import Needs
from scaler.net.connection import LinkFigures
from scaler.protocol.messages import Outcome, WorkerHeartbeat
from scaler.scheduler.additions import Additions, Reader, additions_of
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.core.state import ClientRecord, Function, Group, ManagerRecord, Ready, Task, Timing, Worker
from scaler.scheduler.tables import table

VERSION = 1
MAX_ROWS = 500
MAX_WAITING_ROWS = 100
"""Maximum groups of waiting tasks in the list, oldest first."""
MAX_REASON = 500
"""Maximum characters of the reason for waiting."""
MAX_SEARCHED = 1_000
"""Maximum number of a client's oldest tasks to search for its oldest waiting task."""
MAX_PROCESSORS_LISTED = 16
OTHERS = "(of another key)"
"""Replaces the function of a task that the reader may not see."""
MAX_TEXT = 200
WORKERS_BYTES = 480 * 1024
WAITING_BYTES = 64 * 1024
ROWS_BYTES = 96 * 1024
"""Maximum size of each remaining table."""

Sees = Callable[[str], bool]
Kind = tuple[str, Needs, int]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The part of a status that does not come from the core. at: Unix seconds.

    sent, received: numbers of messages by type. figures: returns the figures of a peer's connection.
    """

    at: float
    incarnation: int
    scheduler: rows.SchedulerRow
    storage: rows.StorageRow
    sent: Mapping[str, int]
    received: Mapping[str, int]
    figures: Callable[[bytes], LinkFigures] = lambda _peer: LinkFigures()
    seconds_today: float = 0.0
    rooms: Rooms = field(default_factory=Rooms)


def every_key(_key: str) -> bool:
    return True


def status(state: ClusterState, server: ServerStatus, sees: Sees = every_key) -> bytes:
    """Return the document, smaller than `MAX_CONTROL_BYTES`.

    sees: whether the reader may see objects of a key. A reader without access to all keys gets workers, managers, and
    the cluster's totals, but only its own tasks, calls, functions, and costs.
    """
    sees_all = sees is every_key
    census = _Census(state, sees)
    reader = Reader(server.at, sees, sees_all, server.seconds_today, server.figures, census.running, server.storage)
    added = additions_of(server.rooms.parts, reader)
    head = {
        "version": VERSION,
        "at": server.at,
        "incarnation": server.incarnation,
        "scheduler": server.scheduler._asdict(),
        "storage": server.storage._asdict(),
        "tasks": census.tasks._asdict(),
        "messages": {"sent": dict(server.sent), "received": dict(server.received)},
        "totals": {**census.totals._asdict(), **added.totals},
        "without_workers": state.rooms.explainer.without_workers(),
        **added.head,
    }
    tables = {**_tables(state, census, added, sees), **added.tables}
    parts = "".join(f', "{name}": {text}' for name, text in tables.items())
    return f"{json.dumps(head)[:-1]}{parts}}}".encode()


def _tables(state: ClusterState, census: _Census, added: Additions, sees: Sees) -> dict[str, str]:
    workers = nlargest(
        MAX_ROWS,
        state.workers.values(),
        key=lambda worker: (
            worker.broken_at is not None or worker.draining or worker.progress.is_stalled,
            added.ranks.get(worker.id.hex(), 0),
            worker.progress.failures_in_row,
            len(worker.tasks),
        ),
    )
    clients = nlargest(MAX_ROWS, census.clients, key=lambda client: len(client.tasks))
    functions = nlargest(
        MAX_ROWS, census.functions, key=lambda function: (census.live[function.name], function.submitted)
    )
    managers = islice(state.managers.values(), MAX_ROWS)
    waiting = nsmallest(MAX_WAITING_ROWS, census.queued.items(), key=lambda item: min(map(Group.oldest, item[1])))
    outlook_of = cache(partial(_outlook, state))
    return {
        "workers": table(
            rows.WORKER_COLUMNS, (_worker(state, worker, added, sees) for worker in workers), WORKERS_BYTES
        ),
        "clients": table(rows.ClientRow._fields, map(census.client, clients), ROWS_BYTES),
        "managers": table(rows.ManagerRow._fields, (_manager(each, added) for each in managers), ROWS_BYTES),
        "functions": table(rows.FunctionRow._fields, (census.function(each, added) for each in functions), ROWS_BYTES),
        "waiting": table(
            rows.WaitingRow._fields, (_waiting(state, *each, outlook_of) for each in waiting), WAITING_BYTES
        ),
    }


def by_name(records: Iterable[Function]) -> list[Function]:
    """Return one record for each name, with the sums of the records of that name."""
    totals: dict[str, Function] = {}
    for record in dict.fromkeys(records):
        total = totals.setdefault(record.name, Function(record.name, record.needs))
        total.submitted += record.submitted
        total.more += record.more
        total.failed += record.failed
        total.cancelled += record.cancelled
        total.untimed += record.untimed
        total.wall_us += record.wall_us
        total.timings |= record.timings
    return list(totals.values())


class _Census:
    def __init__(self, state: ClusterState, sees: Sees) -> None:
        self.clients = [client for client in state.clients.values() if sees(client.account.key)]
        workers = state.workers.values()
        # One call of a chunk runs, and the rest wait.
        running = Counter(task.group for worker in workers for task in running_tasks(worker))
        self.running = running
        suspended = Counter(worker.tasks[task].group for worker in workers for task in worker.blocked)
        self._by_owner: Counter[ClientRecord | str] = Counter()
        for group, count in chain(running.items(), suspended.items()):
            self._by_owner[group.client] += count
            self._by_owner[group.function.name] += count
        self.live: Counter[str] = Counter()
        self.queued: defaultdict[Kind, list[Group]] = defaultdict(list)
        self._live_of: Counter[ClientRecord] = Counter()
        more_ready = more_assigned = 0
        records: dict[Function, None] = {}
        for group in chain.from_iterable(client.groups.values() for client in state.all_clients()):
            if group.more:
                more_ready += group.in_calls(group.ready) - group.ready
                more_assigned += group.in_calls(group.assigned) - group.assigned
            if sees(group.client.account.key):
                live = group.live + group.more
                self.live[group.function.name] += live
                self._live_of[group.client] += live
                records[group.function] = None
                if group.live > group.assigned:
                    self.queued[group.spec.name[:MAX_TEXT], group.function.needs, group.spec.priority].append(group)
        self.functions = by_name(record for record in chain(records, state.functions.values()) if sees(record.key))
        self.tasks = rows.TaskCounts(
            waiting=state.counts.waiting + max(0, state.counts.more - more_ready - more_assigned),
            ready=state.ready.count + more_ready,
            assigned=sum(worker.busy for worker in workers) + more_assigned,
            running=running.total(),
            suspended=suspended.total(),
            ended={state_name(code): count for code, count in state.counts.ended.items()},
        )
        self.totals = rows.Totals(
            workers=len(workers),
            slots=sum(worker.slots for worker in workers),
            draining=sum(worker.draining for worker in workers),
            disconnected=sum(worker.broken_at is not None for worker in workers),
            clients=len(self.clients),
            managers=len(state.managers),
            functions=len(self.functions),
            waiting=len(self.queued),
            memory_kills=state.counts.memory_kills,
            processors_replaced=state.counts.processors_replaced,
        )

    def client(self, client: ClientRecord) -> rows.ClientRow:
        live = self._live_of[client]
        return rows.ClientRow(
            id=client.id.hex(),
            name=client.name[:MAX_TEXT],
            tasks=live,
            **self._counts(live, client.submitted, client, client),
        )

    def function(self, function: Function, added: Additions) -> rows.FunctionRow:
        counts = self._counts(self.live[function.name], function.submitted + function.more, function, function.name)
        return rows.FunctionRow(
            name=function.name[:MAX_TEXT],
            seconds_total=function.wall_us / 1e6,
            untimed=function.untimed,
            **duration_columns(function.timings),
            **added.columns["functions"].get(function.name, {}),
            **counts,
        )

    def _counts(
        self, live: int, submitted: int, owner: ClientRecord | Function, key: ClientRecord | str
    ) -> dict[str, Any]:
        running = self._by_owner[key]
        return {
            "queued": live - running,
            "running": running,
            "ended": submitted - live,
            "failed": owner.failed,
            "cancelled": owner.cancelled,
        }


def _worker(state: ClusterState, worker: Worker, added: Additions, sees: Sees) -> rows.WorkerRow:
    row = rows.WorkerRow(
        id=worker.id.hex(),
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        manager=worker.details.manager_id[:MAX_TEXT],
        unit=worker.details.unit_id[:MAX_TEXT],
        capabilities=str(worker.offers)[:MAX_TEXT],
        slots=worker.slots,
        assigned=len(worker.tasks),
        suspended=len(worker.blocked),
        free=max(worker.slots - worker.busy, 0),
        sent=worker.sent,
        draining=worker.draining,
        quarantined=worker.progress.is_quarantined,
        connected=worker.broken_at is None,
        **added.columns["workers"].get(worker.id.hex(), {}),
    )
    heartbeat = worker.reports.heartbeat
    if heartbeat is None:
        return row
    if heartbeat.clock_error_seconds:
        own_clock = state.rooms.unix_at_zero + heartbeat.sent_at + heartbeat.clock_offset_seconds
        row = row._replace(
            clock_seconds=round(heartbeat.unix_seconds - own_clock, 4),
            clock_error_seconds=max(1e-6, round(heartbeat.clock_error_seconds, 6)),
        )
    return row._replace(
        agent_cpu_percent=heartbeat.agent_cpu_percent,
        agent_rss_bytes=heartbeat.agent_rss_bytes,
        queued=heartbeat.queued,
        latency_seconds=heartbeat.latency_seconds,
        memory_peak_bytes=heartbeat.rss_peak_bytes,
        memory_mean_bytes=heartbeat.rss_mean_bytes,
        processors=tuple(_processors(state, worker, heartbeat, sees)),
    )


def _processors(
    state: ClusterState, worker: Worker, heartbeat: WorkerHeartbeat, sees: Sees
) -> Iterator[rows.ProcessorRow]:
    now = state.own_time(state.now)
    age = now - worker.reports.at
    listed = heartbeat.processors[:MAX_PROCESSORS_LISTED]
    reported = [state.living_task(processor.running) for processor in listed]
    # Tasks that began after the heartbeat run on processors that were idle, or whose task has ended since.
    since = (task for task in running_tasks(worker) if task not in reported)
    for processor, known in zip(listed, reported, strict=True):
        task, seconds = known, processor.running_seconds + age
        if task is None and processor.initialized and not processor.suspended:
            task, seconds = next(since, None), min(age, now - worker.progress.at)
        is_seen = task is not None and sees(task.group.client.account.key)
        yield rows.ProcessorRow(
            pid=processor.pid,
            running=task.id.hex() if task is not None and is_seen else "",
            function="" if task is None else task.group.spec.name[:MAX_TEXT] if is_seen else OTHERS,
            running_seconds=seconds if task is not None else 0.0,
            cpu_percent=processor.cpu_percent,
            rss_bytes=processor.rss_bytes,
            initialized=processor.initialized,
            suspended=processor.suspended,
            lane=processor.lane,
        )


def _outlook(state: ClusterState, needs: Needs) -> str:
    pools = [pool for offers, pool in state.pools.items() if needs.fits(offers)]
    are_busy = bool(pools) and not any(pool.idle for pool in pools)
    return f"{'no slot is free; ' if are_busy else ''}{state.rooms.explainer.outlook(needs)}"


def _waiting(
    state: ClusterState, kind: Kind, groups: list[Group], outlook_of: Callable[[Needs], str]
) -> rows.WaitingRow:
    name, needs, priority = kind
    reason, oldest = _why_oldest(state, outlook_of, groups)
    since = min(map(Group.oldest, groups))[0]
    return rows.WaitingRow(
        id=f"{name} {needs} {priority}",
        function=name,
        capabilities=str(needs)[:MAX_TEXT],
        priority=priority,
        tasks=sum(group.in_calls(group.live - group.assigned) for group in groups),
        ready=sum(group.in_calls(group.ready) for group in groups),
        age_seconds=max(0.0, state.now - since),
        reason=reason,
        oldest=oldest,
    )


def reasons(state: ClusterState) -> Callable[[list[Group]], tuple[str, str]]:
    """Return a function that maps groups to the reason why their oldest queued task waits, and to its id."""
    return partial(_why_oldest, state, cache(partial(_outlook, state)))


def _why_oldest(state: ClusterState, outlook_of: Callable[[Needs], str], groups: list[Group]) -> tuple[str, str]:
    """Return why the oldest queued task of these groups waits, and its id as hex, or empty strings."""
    first = min(groups, key=Group.oldest)
    _, oldest = first.oldest()
    earliest = islice(first.client.tasks.values(), MAX_SEARCHED)
    task = next((task for task in earliest if task.group is first and task.is_queued), state.living_task(oldest))
    reason = ""
    if task is not None and task.is_queued:
        reason = outlook_of(first.needs) if type(task.state) is Ready else state.rooms.explainer.why(task.id)
    return reason[:MAX_REASON], task.id.hex() if task is not None else ""


def duration_columns(timings: Collection[Timing]) -> dict[str, Any]:
    """Return the columns about durations. Durations of chunks do not show how the durations of calls vary."""
    has_chunks = any(timing.has_chunks for timing in timings)
    p50, p95, longest = (round(seconds, 6) for seconds in spread(() if has_chunks else timings))
    return {"has_chunks": has_chunks, "p50_seconds": p50, "p95_seconds": p95, "max_seconds": longest}


def running_tasks(worker: Worker) -> Iterator[Task]:
    """Yield a worker's running tasks: the first assigned tasks, up to its number of slots."""
    blocked = worker.blocked
    return islice((task for task in worker.tasks.values() if task.id not in blocked), worker.slots)


def state_name(outcome: int) -> str:
    """Return the state under which monitors show this outcome."""
    return "done" if outcome == Outcome.SUCCESS else Outcome(outcome).name.lower()


def _manager(manager: ManagerRecord, added: Additions) -> rows.ManagerRow:
    details = manager.details
    return rows.ManagerRow(
        id=manager.name[:MAX_TEXT],
        kind=details.kind[:MAX_TEXT],
        unit_slots=details.unit_slots,
        max_slots=details.max_slots,
        unit_price=details.unit_price,
        **added.columns["managers"].get(manager.name, {}),
    )


# -- quantiles of measured task durations


class Spread(NamedTuple):
    p50_seconds: float = 0.0
    p95_seconds: float = 0.0
    max_seconds: float = 0.0


def spread(timings: Collection[Timing]) -> Spread:
    """Return the median, 95th percentile, and maximum. The first two are weighted towards recent tasks.

    Durations within a bucket are assumed uniform around their mean: nearly exact for similar tasks, and always within a
    factor of 2.
    """
    longest = max((timing.longest_us for timing in timings), default=0) / 1e6
    p50, p95 = quantiles([(timing.counts, timing.sums_us) for timing in timings], (0.5, 0.95))
    return Spread(min(longest, p50), min(longest, p95), longest)


def quantiles(histograms: Sequence[tuple[Sequence[float], Sequence[float]]], shares: Sequence[float]) -> list[float]:
    """Return quantiles of the combined histograms (see `Timing`) in seconds; zeros if empty."""
    totals = list(accumulate(map(sum, zip(*(counts for counts, _ in histograms), strict=True))))
    sums_us = list(map(sum, zip(*(sums for _, sums in histograms), strict=True)))
    if not totals or totals[-1] <= 0:
        return [0.0] * len(shares)

    def quantile(share: float) -> float:
        wanted = share * totals[-1]
        digits = bisect_left(totals, wanted)
        below = totals[digits - 1] if digits else 0.0
        count = totals[digits] - below
        least_us, most_us = (1 << digits) >> 1, (1 << digits) - 1
        mean_us = min(most_us, max(least_us, sums_us[digits] / count))
        around_us = min(mean_us - least_us, most_us - mean_us) * max(0.0, 1 - 1 / count)  # one task is its own mean
        return (mean_us + around_us * (2 * (wanted - below) / count - 1)) / 1e6

    return [quantile(share) for share in shares]
