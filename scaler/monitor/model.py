"""Folds what the scheduler sends to its monitors into one model, which all views read. Pure, bounded memory.

Two kinds of documents arrive (see docs/design.md): the whole state every second, aggregated, and what happened since.
The model keeps the last state, series of figures, and the last tasks, decisions and incidents.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from math import inf
from typing import Any

from scaler.errors import ProtocolError
from scaler.median import median
from scaler.monitor.failures import failure_groups, failure_key
from scaler.monitor.lanes import Bar, Block, Lane, LaneKey, Omitted
from scaler.monitor.progress import JobProgress
from scaler.monitor.rows import LOGS, MALFORMED, Document, decode, decode_list, decode_status, objects
from scaler.protocol.call_rows import CallRow
from scaler.protocol.link_rows import LinkRow
from scaler.protocol.messages import MonitorEvents, MonitorStatus
from scaler.protocol.monitor_rows import (
    LIVE,
    RUNNING,
    BlockRow,
    DecisionRow,
    FailureRow,
    FunctionRow,
    IncidentRow,
    Status,
    TaskRow,
)

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

RECENT_SECONDS = 30.0
MAX_RECENT = 60

MAX_TASKS = 10_000
MAX_FAILURES = 1_000
"""Failed tasks that stay however many others follow; as many as the scheduler keeps."""
MAX_DECISIONS = 500
MAX_INCIDENTS = 500


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


class Model:
    """What is known of one cluster. Not safe to use from several threads at once."""

    def __init__(self) -> None:
        self.status = Status()
        """The last state; one of the time 0 before the first."""
        self.recent: deque[Status] = deque(maxlen=MAX_RECENT)
        """States of the last `RECENT_SECONDS` of one scheduler; those before the last one list functions only."""
        self.series = Series()
        self.decisions: deque[DecisionRow] = deque(maxlen=MAX_DECISIONS)
        self.incidents: deque[IncidentRow] = deque(maxlen=MAX_INCIDENTS)
        self.logs: dict[str, deque[Any]] = {name: deque(maxlen=log.keep) for name, log in LOGS.items()}
        self.dropped = 0
        """Tasks that the scheduler left out of its reports because there were too many."""
        self.has_past = False
        """The scheduler has sent the past, which follows the first status and the logs."""
        self.updates = 0
        """Rows of tasks taken in since this object was made."""
        self._tasks: OrderedDict[str, TaskRow] = OrderedDict()
        self._failures: OrderedDict[str, TaskRow] = OrderedDict()
        """Without those that did not run because an input failed, and without tracebacks, which the scheduler has."""
        self._progress = JobProgress[FunctionRow]()
        self._calls = JobProgress[CallRow]()
        self.omitted = Omitted()
        self._reported_at = 0.0
        self._clocks: OrderedDict[str, float] = OrderedDict()
        """Of workers, by their names: the last `clock_zero`. All tasks of one worker are placed by the same, so that a
        better estimate moves them together, and those of one lane never overlap."""

    # -- folding

    def apply(self, message: MonitorStatus | MonitorEvents) -> None:
        """Take in a document of the scheduler. Raises ProtocolError when it is none."""
        try:
            document = json.loads(message.json)
            if isinstance(message, MonitorStatus):
                self.apply_status(document)
            else:
                self.apply_events(document)
        except MALFORMED as error:
            raise ProtocolError(f"malformed {type(message).__name__}: {error!r}"[:200]) from None

    def apply_status(self, document: Document) -> None:
        before, status = self.status, decode_status(document)
        if status.incarnation != before.incarnation:
            self._progress, self._calls = JobProgress[FunctionRow](), JobProgress[CallRow]()
        status = _with_rates(before, status)
        self.status = status = status._replace(
            functions=self._progress.follow(status.at, status.functions),
            calls=self._calls.follow(status.at, status.calls),
        )
        if status.incarnation != before.incarnation and before.at:
            self._forget_scheduler()
        self._add_recent(status)
        self.series.add(status.at, _figures(before, status))

    def apply_events(self, document: Document) -> None:
        at = document.get("at")
        reported_at = float(at) if isinstance(at, int | float) else self.status.at
        dropped = document.get("dropped")
        self.dropped += dropped if isinstance(dropped, int) else 0
        for each in objects(document.get("tasks")):
            if isinstance(each, dict) and isinstance(each.get("id"), str):
                self._add(decode(TaskRow, {"reported_at": reported_at, **each}))
        for block in decode_list(BlockRow, document.get("blocks")):
            self._set_clock(block.worker, block.clock_zero)
            self.omitted.add((block.worker, block.lane), Block(*block[2:6]))
        self._reported_at = max(self._reported_at, reported_at)
        self.has_past = self.has_past or LOGS.keys().isdisjoint(document)
        # After a break that was too long to go on, the scheduler tells the past again.
        decisions = decode_list(DecisionRow, document.get("decisions"))
        self.decisions.extend([row for row in decisions if row not in self.decisions])
        incidents = decode_list(IncidentRow, document.get("incidents"))
        self.incidents.extend([row for row in incidents if row not in self.incidents])
        for name in LOGS.keys() & document.keys():
            rows, known = self.logs[name], set(self.logs[name])
            rows.extend([row for row in decode_list(LOGS[name].kind, document[name]) if row not in known])

    def _add_recent(self, status: Status) -> None:
        recent = self.recent
        if recent and (recent[-1].incarnation != status.incarnation or recent[-1].at >= status.at):
            recent.clear()
        if recent:
            recent[-1] = recent[-1]._replace(
                workers=(),
                clients=(),
                managers=(),
                waiting=(),
                stores=(),
                pairs=(),
                objects=(),
                links=(),
                calls=(),
                costs=(),
                scaling=(),
            )
        recent.append(status)
        while status.at - recent[0].at > RECENT_SECONDS:
            recent.popleft()

    def _forget_scheduler(self) -> None:
        """Keep only the ended tasks: the live ones are over, however they ended.

        These leave the timeline: workers of the next scheduler have the same names, and other clocks.
        """
        for rows in (self._tasks, self._failures):
            for task in list(rows.values()):
                if task.state in LIVE:
                    del rows[task.id]
                else:
                    rows[task.id] = self._placed(task)._replace(lane=0)
        self._clocks.clear()
        self.omitted = Omitted()

    def _add(self, task: TaskRow) -> None:
        known = self._tasks.get(task.id)
        if known is not None and task.state == RUNNING and known.ended_at is not None and known.attempt >= task.attempt:
            return  # the same report listed its end before its beginning
        if task.lane:
            self._set_clock(task.worker, task.clock_zero)
        elif known is not None and known.lane and known.state == RUNNING and (task.ended_at or 0.0) > known.started_at:
            # It ended with its worker, which cannot say any more when it began.
            seconds = (task.ended_at or 0.0) - known.started_at
            task = task._replace(lane=known.lane, began_us=known.began_us, duration_us=int(seconds * 1e6))
        self.updates += 1
        self._tasks[task.id] = task
        self._tasks.move_to_end(task.id)
        if len(self._tasks) > MAX_TASKS:
            self._forget_oldest()
        if task.failed and not task.failed_input:
            self._failures[task.id] = task._replace(traceback="")
            self._failures.move_to_end(task.id)
            if len(self._failures) > MAX_FAILURES:
                self._failures.popitem(last=False)

    def _forget_oldest(self) -> None:
        """Forget the oldest task that has ended; its end is reported once, so one that runs is kept for it."""
        oldest = next((task for task in self._tasks.values() if task.state not in LIVE), None)
        oldest = oldest or next(iter(self._tasks.values()))
        del self._tasks[oldest.id]
        if oldest.lane:
            end_us = oldest.began_us + oldest.duration_us
            block = Block(oldest.began_us, end_us, 1, oldest.duration_us, oldest.function, oldest.failed_share)
            self.omitted.add((oldest.worker, oldest.lane), block)

    def _placed(self, task: TaskRow) -> TaskRow:
        """Return a task with its times by the present estimate of its worker's clock."""
        zero = self._clocks.get(task.worker) if task.lane else None
        if zero is None:
            return task
        ended_at = None if task.state == RUNNING else zero + (task.began_us + task.duration_us) / 1e6
        return task._replace(clock_zero=zero, ended_at=ended_at)

    def _set_clock(self, worker: str, zero: float) -> None:
        self._clocks[worker] = zero
        self._clocks.move_to_end(worker)
        if len(self._clocks) > MAX_TASKS:
            self._clocks.popitem(last=False)

    # -- reading

    def task(self, task_id: str) -> TaskRow | None:
        """Return a task as last reported, by its id in hex; None when there is none, or it was too long ago."""
        task = self._tasks.get(task_id) or self._failures.get(task_id)
        return None if task is None else self._placed(task)

    def failures(self) -> list[FailureRow]:
        """Return the last failed tasks by function and message, the group with the newest one first."""
        return failure_groups(self._failures.values())

    def tasks(
        self,
        *,
        search: str = "",
        state: str = "",
        function: str = "",
        worker: str = "",
        client: str = "",
        failure: str = "",
        limit: int = 100,
        found: Iterable[TaskRow] = (),
    ) -> list[TaskRow]:
        """Return the tasks that were reported last, the newest first, then earlier failures.

        search: a part of the id, function, client, worker, failure or tag, in any case. state: an outcome's name,
        `running`, or `failed` for every kind of failure. failure: key of a group of failures, which has no others.
        found: what the scheduler has found, which comes first.
        """
        wanted = search.strip().casefold()
        first = {
            row.id: row if (known := self.task(row.id)) is None or known.state != row.state else known for row in found
        }
        earlier = (task for task in reversed(self._failures.values()) if task.id not in self._tasks)
        reported = reversed(self._failures.values()) if failure else chain(reversed(self._tasks.values()), earlier)
        fitting = (
            task
            for task in chain(first.values(), (task for task in reported if task.id not in first))
            if (not failure or failure_key(task) == failure)
            and (not state or task.state == state or (state == "failed" and task.failed))
            and (not function or task.function == function)
            and (not worker or task.worker == worker)
            and (not client or task.client == client)
            and (not wanted or wanted in _searched(task))
        )
        return list(map(self._placed, islice(fitting, limit)))

    def oldest_end(self) -> float | None:
        """Return when the first of the tasks ended that the model keeps (unix seconds); None when none has."""
        return min((task.ended_at for task in self._tasks.values() if task.ended_at is not None), default=None)

    @property
    def task_count(self) -> int:
        """How many tasks are kept, failures among them."""
        return len(self._tasks.keys() | self._failures.keys())

    @property
    def now(self) -> float:
        """When the last report was made (unix seconds)."""
        return max(self.status.at, self._reported_at)

    def lanes(self, since: float = -inf, until: float = inf, resolution: float = 0.0) -> dict[LaneKey, Lane]:
        """Return what ran on each lane between these times (unix seconds).

        resolution: tasks that took fewer seconds are in blocks of at most this many seconds.
        """
        now = self.now
        lanes = {(worker.name, lane): Lane() for worker in self.status.workers for lane in range(1, worker.slots + 1)}
        for task in map(self._placed, self._tasks.values()):
            if not task.lane:
                continue
            start = min(task.started_at, now)
            end = now if task.ended_at is None else min(task.ended_at, now)
            if end >= since and start <= until:
                lane = lanes.setdefault((task.worker, task.lane), Lane())
                if end - start < resolution:
                    lane.blocks.append(Block(start, end, 1, end - start, task.function, task.failed_share))
                else:
                    inputs = min(task.inputs_us / 1e6, end - start), task.inputs_bytes
                    lane.bars.append(Bar(start, end, task.id, task.function, task.state, *inputs, task.failed_share))
        for key, blocks in self.omitted.blocks(self._clocks):
            found = [block for block in blocks if block.end >= since and block.start <= until]
            if found:
                lanes.setdefault(key, Lane()).blocks.extend(found)
        for lane in lanes.values():
            lane.settle(resolution)
        return lanes


def _seconds(before: Status, status: Status) -> float:
    """Return the time between two states; inf when they are not of the same scheduler in this order."""
    is_later = before.incarnation == status.incarnation and status.at > before.at > 0
    return status.at - before.at if is_later else inf


def _with_rates(before: Status, status: Status) -> Status:
    """Return a state with the bytes per second, since the one before, of stores and of connections."""
    seconds, known = _seconds(before, status), {row.id: row.received_bytes for row in before.stores}
    news = [max(0, row.received_bytes - known.get(row.id, 0)) for row in status.stores]
    rows = (row._replace(fetches_per_second=new / seconds) for row, new in zip(status.stores, news, strict=True))
    links = {row.id: row for row in before.links}
    return status._replace(
        stores=tuple(rows), links=tuple(_with_traffic(links.get(row.id, row), row, seconds) for row in status.links)
    )


def _with_traffic(before: LinkRow, row: LinkRow, seconds: float) -> LinkRow:
    return row._replace(
        received_per_second=max(0, row.received_bytes - before.received_bytes) / seconds,
        sent_per_second=max(0, row.sent_bytes - before.sent_bytes) / seconds,
    )


def _figures(before: Status, status: Status) -> Mapping[str, float]:
    seconds = _seconds(before, status)
    return {
        "tasks_per_second": max(0, status.tasks.ended_total - before.tasks.ended_total) / seconds,
        "failed_per_second": max(0, status.tasks.failed_total - before.tasks.failed_total) / seconds,
        "moved_per_second": max(0, status.totals.moved_bytes - before.totals.moved_bytes) / seconds,
        "round_trip_seconds": median([worker.latency_seconds for worker in status.workers] or [0.0]),
        "lag_seconds": status.scheduler.lag_seconds_max,
        "storage_seconds": status.storage.latency_seconds,
        "workers": status.totals.workers,
        "slots": status.totals.slots,
        "queued": status.tasks.queued,
        "running": status.tasks.running,
        "cpu_percent": status.scheduler.cpu_percent
        + sum(worker.agent_cpu_percent + worker.cpu_percent for worker in status.workers),
        "memory_bytes": status.scheduler.rss_bytes
        + sum(worker.agent_rss_bytes + worker.rss_bytes for worker in status.workers),
    }


def _searched(task: TaskRow) -> str:
    return "\n".join((task.id, task.function, task.client, task.worker, task.state, task.text, task.tags)).casefold()
