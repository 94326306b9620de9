"""Folds what the scheduler sends to its monitors into one model, which all views read. Pure, bounded memory.

Two kinds of documents arrive (see docs/design.md): the whole state every second, aggregated, and what happened since.
The model keeps the last state, series of figures, and the last tasks, decisions and incidents.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from scaler.errors import ProtocolError
from scaler.median import median
from scaler.monitor.progress import JobProgress
from scaler.monitor.rows import LOGS, MALFORMED, Document, decode, decode_list, decode_status, objects
from scaler.monitor.series import Series
from scaler.plugins import known_extensions, load
from scaler.protocol.link_rows import LinkRow
from scaler.protocol.messages import MonitorEvents, MonitorStatus
from scaler.protocol.monitor_rows import (
    LIVE,
    RUNNING,
    BlockRow,
    DecisionRow,
    FindingRow,
    FunctionRow,
    IncidentRow,
    Status,
    TaskRow,
)

if TYPE_CHECKING:
    from scaler.monitor.top.panel import Panel

RECENT_SECONDS = 30.0
MAX_RECENT = 60

MAX_TASKS = 10_000
MAX_DECISIONS = 500
MAX_INCIDENTS = 500


class TaskKey(NamedTuple):
    """What tasks have in common, for searches among them. of: returns the key of a task."""

    help: str
    of: Callable[[TaskRow], str]


class MonitorPart:
    """The part of an extension inside monitors: the web server, `scaler_top`, reports. Pure, with bounded memory."""

    keys: ClassVar[Mapping[str, TaskKey]] = {}
    """Parameters of searches among tasks, by name."""

    def __init__(self, model: Model) -> None:
        """model: what is known of the cluster."""
        self.model = model

    def on_status(self, before: Status) -> None:
        """The model has a new status, after this one."""

    def on_events(self, document: Mapping[str, Any], rows: Sequence[TaskRow]) -> None:
        """The model has taken in a report of what happened, with these tasks."""

    def on_forgotten(self, row: TaskRow) -> None:
        """The model forgets a task, because others are newer."""

    def kept(self) -> dict[str, TaskRow]:
        """Return tasks that searches find even after the model has forgotten them, the oldest first."""
        return {}

    def findings(self) -> Iterable[FindingRow]:
        """Return what to change in the cluster or its programs."""
        return ()

    def panels(self, _status: Status) -> Iterable[Panel]:
        """Return panels of `scaler_top`. status: what it shows, which may be an earlier one."""
        return ()

    def document(self) -> Mapping[str, Any]:
        """Return what `scaler_top --json` prints, by name."""
        return {}


_P = TypeVar("_P")


@cache
def _parts() -> list[type[MonitorPart]]:
    return [cast("type[MonitorPart]", load(each.monitor)) for each in known_extensions() if each.monitor]


@cache
def task_keys() -> Mapping[str, TaskKey]:
    """Return the keys by which extensions let one search among tasks, by name."""
    return {name: key for part in _parts() for name, key in part.keys.items()}


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
        self._progress = JobProgress[FunctionRow]()
        self._reported_at = 0.0
        self.clocks: OrderedDict[str, float] = OrderedDict()
        """Of workers, by their names: the last `clock_zero`. All tasks of one worker are placed by the same, so that a
        better estimate moves them together, and those of one lane never overlap."""
        self.parts = [part(self) for part in _parts()]
        """Those of extensions."""

    def part(self, kind: type[_P]) -> _P:
        """Return the part of an extension."""
        return next(part for part in self.parts if isinstance(part, kind))

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
            self._progress = JobProgress[FunctionRow]()
        status = _with_rates(before, status)
        self.status = status = status._replace(
            functions=self._progress.follow(status.at, status.functions),
        )
        for part in self.parts:
            part.on_status(before)
        if status.incarnation != before.incarnation and before.at:
            self._forget_scheduler()
        self._add_recent(status)
        self.series.add(status.at, _figures(before, status))

    def apply_events(self, document: Document) -> None:
        at = document.get("at")
        reported_at = float(at) if isinstance(at, int | float) else self.status.at
        dropped = document.get("dropped")
        self.dropped += dropped if isinstance(dropped, int) else 0
        rows = [
            decode(TaskRow, {"reported_at": reported_at, **each})
            for each in objects(document.get("tasks"))
            if isinstance(each, dict) and isinstance(each.get("id"), str)
        ]
        rows = [row for row in map(self._add, rows) if row is not None]
        for block in decode_list(BlockRow, document.get("blocks")):
            self._set_clock(block.worker, block.clock_zero)
        self._reported_at = max(self._reported_at, reported_at)
        self.has_past = self.has_past or LOGS.keys().isdisjoint(document)
        # After a break that was too long to go on, the scheduler tells the past again.
        decisions = decode_list(DecisionRow, document.get("decisions"))
        self.decisions.extend([row for row in decisions if row not in self.decisions])
        incidents = decode_list(IncidentRow, document.get("incidents"))
        self.incidents.extend([row for row in incidents if row not in self.incidents])
        for name in LOGS.keys() & document.keys():
            log, known = self.logs[name], set(self.logs[name])
            log.extend([row for row in decode_list(LOGS[name].kind, document[name]) if row not in known])
        for part in self.parts:
            part.on_events(document, rows)

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

        Their times stay: workers of the next scheduler have the same names, and other clocks.
        """
        for task in list(self._tasks.values()):
            if task.state in LIVE:
                del self._tasks[task.id]
            else:
                self._tasks[task.id] = self.placed(task)._replace(lane=0)
        self.clocks.clear()

    def _add(self, task: TaskRow) -> TaskRow | None:
        """Take in a task; return it with what is known of it, None when it is no news."""
        known = self._tasks.get(task.id)
        if known is not None and task.state == RUNNING and known.ended_at is not None and known.attempt >= task.attempt:
            return None  # the same report listed its end before its beginning
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
        return task

    def _forget_oldest(self) -> None:
        """Forget the oldest task that has ended; its end is reported once, so one that runs is kept for it."""
        oldest = next((task for task in self._tasks.values() if task.state not in LIVE), None)
        oldest = oldest or next(iter(self._tasks.values()))
        del self._tasks[oldest.id]
        for part in self.parts:
            part.on_forgotten(oldest)

    def placed(self, task: TaskRow) -> TaskRow:
        """Return a task with its times by the present estimate of its worker's clock."""
        zero = self.clocks.get(task.worker) if task.lane else None
        if zero is None:
            return task
        ended_at = None if task.state == RUNNING else zero + (task.began_us + task.duration_us) / 1e6
        return task._replace(clock_zero=zero, ended_at=ended_at)

    def _set_clock(self, worker: str, zero: float) -> None:
        self.clocks[worker] = zero
        self.clocks.move_to_end(worker)
        if len(self.clocks) > MAX_TASKS:
            self.clocks.popitem(last=False)

    # -- reading

    def task(self, task_id: str) -> TaskRow | None:
        """Return a task as last reported, by its id in hex; None when there is none, or it was too long ago."""
        kept = (part.kept() for part in self.parts)
        task = self._tasks.get(task_id) or next((rows[task_id] for rows in kept if task_id in rows), None)
        return None if task is None else self.placed(task)

    def tasks(
        self,
        *,
        search: str = "",
        state: str = "",
        function: str = "",
        worker: str = "",
        client: str = "",
        limit: int = 100,
        found: Iterable[TaskRow] = (),
        **keys: str,
    ) -> list[TaskRow]:
        """Return the tasks that were reported last, the newest first, then earlier ones that extensions keep.

        search: a part of the id, function, client, worker, failure or tag, in any case. state: an outcome's name,
        `running`, or `failed` for every kind of failure. found: what the scheduler has found, which comes first. keys:
        by the names of `task_keys`.
        """
        wanted = search.strip().casefold()
        first = {
            row.id: row if (known := self.task(row.id)) is None or known.state != row.state else known for row in found
        }
        chosen = [(task_keys()[name].of, key) for name, key in keys.items() if key]
        kept = chain.from_iterable(reversed(part.kept().values()) for part in self.parts)
        earlier = (task for task in kept if task.id not in self._tasks)
        fitting = (
            task
            for task in chain(
                first.values(),
                (task for task in chain(reversed(self._tasks.values()), earlier) if task.id not in first),
            )
            if all(of(task) == key for of, key in chosen)
            and (not state or task.state == state or (state == "failed" and task.failed))
            and (not function or task.function == function)
            and (not worker or task.worker == worker)
            and (not client or task.client == client)
            and (not wanted or wanted in _searched(task))
        )
        return list(map(self.placed, islice(fitting, limit)))

    def reported(self) -> Iterator[TaskRow]:
        """Yield the tasks that were reported last, the oldest first."""
        return map(self.placed, self._tasks.values())

    @property
    def task_count(self) -> int:
        """How many tasks are kept, also by extensions."""
        return len(self._tasks.keys() | set(chain.from_iterable(part.kept() for part in self.parts)))

    @property
    def now(self) -> float:
        """When the last report was made (unix seconds)."""
        return max(self.status.at, self._reported_at)


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
