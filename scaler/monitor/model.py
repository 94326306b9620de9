"""Folds the scheduler's reports into one model that all views read, with figures over time. Pure, bounded memory.

The scheduler sends the aggregated state every second, and the events since (see docs/design.md)."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain, islice
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from scaler.errors import ProtocolError
from scaler.median import median
from scaler.monitor.cluster_rows import LIVE, RUNNING, FindingRow, FunctionRow, Status, TaskRow
from scaler.monitor.data_rows import LinkRow
from scaler.monitor.messages import MonitorEvents, MonitorStatus
from scaler.monitor.progress import JobProgress
from scaler.monitor.rows import LISTS, MALFORMED, Document, decode, decode_status, objects
from scaler.plugins import known_extensions, load

if TYPE_CHECKING:
    from scaler.monitor.top.formats import Panel


SERIES_SECONDS = 1800.0
MAX_POINTS = 3600

Point = tuple[float, ...]
"""A time (unix seconds) and a value for each of `NAMES`."""


class Series:
    """All series of the last `SERIES_SECONDS`, with shared times. Invariant: points are ordered by time. A point that
    is not later than the last one is dropped."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)

    def add(self, at: float, values: Mapping[str, float]) -> None:
        if self._points and at <= self._points[-1][0]:
            return
        self._points.append((at, *(float(values.get(name, 0.0)) for name in NAMES)))
        while at - self._points[0][0] > SERIES_SECONDS:
            self._points.popleft()

    def last(self, name: str) -> float:
        return self._points[-1][NAMES.index(name) + 1] if self._points else 0.0

    def columns(self, since: float = 0.0) -> dict[str, list[float]]:
        points = [point for point in self._points if point[0] >= since]
        columns = list(zip(*points, strict=True)) if points else [()] * (len(NAMES) + 1)
        return {name: list(column) for name, column in zip(("at", *NAMES), columns, strict=True)}


RECENT_SECONDS = 30.0
MAX_RECENT = 60

MAX_TASKS = 10_000
MAX_FAILURES = 1_000
_SEARCHED = "id", "function", "client", "worker", "state", "text", "tags"
_NO_ROWS: Mapping[str, Any] = {name: () for name in LISTS if name != "functions"}


class TaskKey(NamedTuple):
    """A common property of tasks, as a search parameter. of: returns a task's value."""

    help: str
    of: Callable[[TaskRow], str]


class MonitorPart:
    """The part of an extension inside the web server and `scaler_top`. Pure, with bounded memory."""

    keys: ClassVar[Mapping[str, TaskKey]] = {}
    """Search parameters for tasks, by name."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def on_status(self, before: Status) -> None:
        """Called when the model has a new status. before: the previous status."""

    def findings(self) -> Iterable[FindingRow]:
        """Return findings: improvements to the cluster or its programs."""
        return ()

    def panels(self, _status: Status) -> Iterable[Panel]:
        """Return panels of `scaler_top`. status: the shown state, which may be an earlier one."""
        return ()

    def document(self) -> Mapping[str, Any]:
        """Return entries of the document that `scaler_top --json` prints, by name."""
        return {}


_P = TypeVar("_P")


@cache
def _parts() -> list[type[MonitorPart]]:
    return [cast("type[MonitorPart]", load(each.monitor)) for each in known_extensions() if each.monitor]


@cache
def task_keys() -> Mapping[str, TaskKey]:
    """Return the search parameters, including parameters from extensions."""
    names = ("function", "worker", "client")
    added = {name: key for part in _parts() for name, key in part.keys.items()}
    return {name: TaskKey(f"The {name}'s name.", attrgetter(name)) for name in names} | added


class Model:
    """State of one cluster. Not thread-safe."""

    def __init__(self) -> None:
        self.status = Status()
        """The last state. Its time is 0 before the first status."""
        self.recent: deque[Status] = deque(maxlen=MAX_RECENT)
        """States of one scheduler in the last `RECENT_SECONDS`. All but the last list only functions."""
        self.series = Series()
        self.dropped = 0
        """Tasks that the scheduler omitted from its reports because there were too many."""
        self.has_past = False
        """Whether the scheduler has sent the past, which follows the first status."""
        self.updates = 0
        """Number of task rows applied to this object."""
        self._tasks: OrderedDict[str, TaskRow] = OrderedDict()
        self._failed: OrderedDict[str, TaskRow] = OrderedDict()
        """The newest failed tasks that are no longer in `_tasks`."""
        self._progress = JobProgress[FunctionRow]()
        self._reported_at = 0.0
        self.parts = [part(self) for part in _parts()]

    def part(self, kind: type[_P]) -> _P:
        return next(part for part in self.parts if isinstance(part, kind))

    # -- folding

    def apply(self, message: MonitorStatus | MonitorEvents) -> None:
        """Apply a document of the scheduler. Raises ProtocolError for an invalid document."""
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
        status = _with_rates(before, status)
        self.status = status = status._replace(functions=self._progress.follow(status, status.functions))
        for part in self.parts:
            part.on_status(before)
        if status.incarnation != before.incarnation and before.at:
            self._forget_scheduler()
        self._add_recent(status)
        self.series.add(status.at, figures_of(before, status))

    def apply_events(self, document: Document) -> None:
        at = document.get("at")
        reported_at = float(at) if isinstance(at, int | float) else self.status.at
        dropped = document.get("dropped")
        self.dropped += dropped if isinstance(dropped, int) else 0
        rows = [
            decode(TaskRow, each)
            for each in objects(document.get("tasks"))
            if isinstance(each, dict) and isinstance(each.get("id"), str)
        ]
        for row in rows:
            self._add(row)
        self._reported_at = max(self._reported_at, reported_at)
        self.has_past = True

    def _add_recent(self, status: Status) -> None:
        recent = self.recent
        if recent and (recent[-1].incarnation != status.incarnation or recent[-1].at >= status.at):
            recent.clear()
        if recent:
            recent[-1] = recent[-1]._replace(**_NO_ROWS)
        recent.append(status)
        while status.at - recent[0].at > RECENT_SECONDS:
            recent.popleft()

    def _forget_scheduler(self) -> None:
        """Drop live tasks and the lanes of ended tasks, because a new scheduler's workers reuse names."""
        for task in list(self._tasks.values()):
            if task.state in LIVE:
                del self._tasks[task.id]
            else:
                self._tasks[task.id] = task._replace(lane=0)

    def _add(self, task: TaskRow) -> None:
        """Merge a task with its known row. Ignores outdated rows."""
        known = self._tasks.get(task.id)
        if known is not None and task.state == RUNNING and known.ended_at is not None and known.attempt >= task.attempt:
            return  # the same report listed the end before the start
        seconds = (task.ended_at or 0.0) - known.started_at if known is not None and known.state == RUNNING else 0.0
        if known is not None and known.lane and not task.lane and seconds > 0:
            # The task ended with its worker, which cannot report the start.
            task = task._replace(lane=known.lane, started_at=known.started_at, duration_us=int(seconds * 1e6))
        self.updates += 1
        self._tasks[task.id] = task
        self._tasks.move_to_end(task.id)
        self._failed.pop(task.id, None)
        if len(self._tasks) > MAX_TASKS:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Evict the oldest ended task. Running tasks stay, because the end is reported only once."""
        oldest = next((task for task in self._tasks.values() if task.state not in LIVE), None)
        oldest = oldest or next(iter(self._tasks.values()))
        del self._tasks[oldest.id]
        if oldest.failed and not oldest.failed_input:
            self._failed[oldest.id] = oldest._replace(traceback="")
            if len(self._failed) > MAX_FAILURES:
                self._failed.popitem(last=False)

    # -- reading

    def task(self, task_id: str) -> TaskRow | None:
        """Return the last report of a task by id in hex, or None if unknown or evicted."""
        return self._tasks.get(task_id) or self._failed.get(task_id)

    def tasks(
        self, *, search: str = "", state: str = "", limit: int = 100, found: Iterable[TaskRow] = (), **keys: str
    ) -> list[TaskRow]:
        """Return the last reported tasks, newest first, followed by earlier failures.

        search: case-insensitive part of the id, function, client, worker, failure, or tag. state: an outcome's name,
        `running`, or `failed` for every kind of failure. found: the scheduler's search results, which come first.
        keys: values by names of `task_keys`."""
        wanted = search.strip().casefold()
        first = {
            row.id: row if (known := self.task(row.id)) is None or known.state != row.state else known for row in found
        }
        chosen = [(task_keys()[name].of, key) for name, key in keys.items() if key]
        newest = chain(reversed(self._tasks.values()), reversed(self._failed.values()))
        others = (task for task in newest if task.id not in first)
        fitting = (
            task
            for task in chain(first.values(), others)
            if all(of(task) == key for of, key in chosen)
            and state in ("", task.state, "failed" if task.failed else "")
            and (not wanted or wanted in "\n".join(attrgetter(*_SEARCHED)(task)).casefold())
        )
        return list(islice(fitting, limit))

    def reported(self) -> Iterable[TaskRow]:
        return self._tasks.values()

    @property
    def task_count(self) -> int:
        return len(self._tasks) + len(self._failed)

    @property
    def now(self) -> float:
        """Time of the last report (unix seconds)."""
        return max(self.status.at, self._reported_at)


def _seconds(before: Status, status: Status) -> float:
    is_later = before.incarnation == status.incarnation and status.at > before.at > 0
    return status.at - before.at if is_later else inf


def _with_rates(before: Status, status: Status) -> Status:
    """Return the state with bytes per second since the previous state for stores and connections."""
    seconds, known = _seconds(before, status), {row.id: row.received_bytes for row in before.stores}
    news = [max(0, row.received_bytes - known.get(row.id, 0)) for row in status.stores]
    rows = (row._replace(fetches_per_second=new / seconds) for row, new in zip(status.stores, news, strict=True))
    links = {row.id: row for row in before.links}
    return status._replace(
        stores=tuple(rows), links=tuple(_with_traffic(links.get(row.id, row), row, seconds) for row in status.links)
    )


def _with_traffic(before: LinkRow, row: LinkRow, seconds: float) -> LinkRow:
    received, sent = row.received_bytes - before.received_bytes, row.sent_bytes - before.sent_bytes
    return row._replace(received_per_second=max(0, received) / seconds, sent_per_second=max(0, sent) / seconds)


def figures_of(before: Status, status: Status) -> Mapping[str, float]:
    """Return the points of the series: rates since the previous state, and figures of this one. cpu_percent and
    memory_bytes: sums over the scheduler and all listed workers. moved_per_second: bytes. round_trip_seconds: median of
    all listed workers. lag_seconds: maximum lag of the scheduler's loop."""
    seconds, workers = _seconds(before, status), status.workers
    return {
        "tasks_per_second": max(0, status.tasks.ended_total - before.tasks.ended_total) / seconds,
        "failed_per_second": max(0, status.tasks.failed_total - before.tasks.failed_total) / seconds,
        "workers": status.totals.workers,
        "slots": status.totals.slots,
        "queued": status.tasks.queued,
        "running": status.tasks.running,
        "cpu_percent": sum(
            (each.agent_cpu_percent + each.cpu_percent for each in workers), status.scheduler.cpu_percent
        ),
        "memory_bytes": sum((each.agent_rss_bytes + each.rss_bytes for each in workers), status.scheduler.rss_bytes),
        "moved_per_second": max(0, status.totals.moved_bytes - before.totals.moved_bytes) / seconds,
        "round_trip_seconds": median([worker.latency_seconds for worker in workers] or [0.0]),
        "lag_seconds": status.scheduler.lag_seconds_max,
        "storage_seconds": status.storage.latency_seconds,
    }


NAMES = tuple(figures_of(Status(), Status()))
"""Names of the series."""
