"""Folds what the scheduler tells its monitors into one picture, which all views read. Pure, bounded memory.

Two kinds of documents come (see docs/design.md): the whole state every second, aggregated, and what happened since. The
model keeps the last state, figures over time, and the last tasks, decisions and incidents.

Law: folding a snapshot and what came after it gives the same model as folding everything.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from scaler.monitor.rows import LIVING, RUNNING, Decision, Document, Incident, Status, TaskRow, row, rows, status_of
from scaler.monitor.series import Series

MAX_TASKS = 10_000
MAX_DECISIONS = 500
MAX_INCIDENTS = 500
SNAPSHOT_VERSION = 1
_TASK_FIELDS = tuple(item.name for item in fields(TaskRow))


@dataclass(frozen=True, slots=True)
class Bar:
    """A task in the timeline, from start to end in unix seconds; one that runs ends at the last state's time."""

    start: float
    end: float
    task: str
    function: str
    state: str


class Model:
    """See the module. Not safe to be used from several threads at once."""

    def __init__(self) -> None:
        self.status = Status()
        """The last state; one of the time 0 until there is any."""
        self.series = Series()
        self.decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        self.incidents: deque[Incident] = deque(maxlen=MAX_INCIDENTS)
        self.dropped = 0
        """Tasks that the scheduler left out of what it told, because there were too many."""
        self.heard = 0
        """How often anything was heard of any task since this object was made: more, and `tasks` has something new."""
        self._document: Document = {}
        self._tasks: OrderedDict[str, TaskRow] = OrderedDict()

    # -- folding

    def apply_status(self, document: Document) -> None:
        """Take in a MonitorStatus document."""
        before, status = self.status, status_of(document)
        self._document = document
        self.status = status
        if status.incarnation != before.incarnation and before.at:
            # Another scheduler: what this one does not know of is over, however it ended.
            for task in [task.id for task in self._tasks.values() if task.state in LIVING]:
                del self._tasks[task]
        self.series.add(status.at, _figures(before, status))

    def apply_events(self, document: Document) -> None:
        """Take in a MonitorEvents document."""
        at = document.get("at")
        told_at = float(at) if isinstance(at, int | float) else self.status.at
        dropped = document.get("dropped")
        self.dropped += dropped if isinstance(dropped, int) else 0
        for values in _task_documents(document.get("tasks")):
            self._take(values, told_at)
        self.decisions.extend(rows(Decision, document.get("decisions")))
        self.incidents.extend(rows(Incident, document.get("incidents")))

    def _take(self, values: dict[str, Any], told_at: float) -> None:
        if not isinstance(values.get("id"), str):
            return
        task = row(TaskRow, {"told_at": told_at, **values})
        known = self._tasks.get(task.id)
        if known is not None and task.state == RUNNING and known.ended_at is not None and known.attempt >= task.attempt:
            return  # its end was told in the same report, before its beginning
        self.heard += 1
        self._tasks[task.id] = task
        self._tasks.move_to_end(task.id)
        if len(self._tasks) > MAX_TASKS:
            self._tasks.popitem(last=False)

    # -- reading

    def task(self, task_id: str) -> TaskRow | None:
        """Return what was last heard of a task, by its id in hex; None when nothing was, or too long ago."""
        return self._tasks.get(task_id)

    def tasks(
        self,
        *,
        search: str = "",
        state: str = "",
        function: str = "",
        worker: str = "",
        client: str = "",
        limit: int = 100,
    ) -> list[TaskRow]:
        """Return the tasks that were heard of last, the newest first.

        search: a part of the id, function, client, worker or failure, in any case. state: an outcome's name, `running`,
        or `failed` for every kind of failure.
        """
        wanted = search.casefold()
        found: list[TaskRow] = []
        for task in reversed(self._tasks.values()):
            if len(found) >= limit:
                break
            if (
                (not state or task.state == state or (state == "failed" and task.failed))
                and (not function or task.function == function)
                and (not worker or task.worker == worker)
                and (not client or task.client == client)
                and (not wanted or wanted in _searched(task))
            ):
                found.append(task)
        return found

    def oldest_end(self) -> float | None:
        """Return when the first of the remembered tasks ended (unix seconds); None when none has."""
        return min((task.ended_at for task in self._tasks.values() if task.ended_at is not None), default=None)

    @property
    def kept(self) -> int:
        """How many tasks are remembered."""
        return len(self._tasks)

    def lanes(self, since: float) -> dict[str, list[Bar]]:
        """Return what each worker did from this time (unix seconds) on, by the worker's name."""
        lanes: dict[str, list[Bar]] = {worker.name: [] for worker in self.status.workers}
        running: set[str] = set()
        now = self.status.at
        for worker in self.status.workers:
            for processor in worker.processors:
                if processor.running:
                    start = now - processor.running_seconds
                    lanes[worker.name].append(Bar(start, now, processor.running, processor.function, RUNNING))
                    running.add(processor.running)
        for task in self._tasks.values():
            end = now if task.ended_at is None else task.ended_at
            if task.worker and end >= since and task.id not in running:
                lanes.setdefault(task.worker, []).append(Bar(task.started_at, end, task.id, task.function, task.state))
        for bars in lanes.values():
            bars.sort(key=lambda bar: bar.start)
        return lanes

    # -- snapshots

    def snapshot(self) -> dict[str, Any]:
        """Return everything as one JSON-able document."""
        return {
            "version": SNAPSHOT_VERSION,
            "status": self._document,
            "tasks": {
                "columns": list(_TASK_FIELDS),
                "rows": [[getattr(task, name) for name in _TASK_FIELDS] for task in self._tasks.values()],
            },
            "decisions": [asdict(decision) for decision in self.decisions],
            "incidents": [asdict(incident) for incident in self.incidents],
            "dropped": self.dropped,
            "series": self.series.snapshot(),
        }

    @classmethod
    def from_snapshot(cls, document: Document) -> Model:
        """Return the model that a snapshot was taken of. Raises ValueError for a document that is none."""
        series = document.get("series")
        if document.get("version") != SNAPSHOT_VERSION or not isinstance(series, dict):
            raise ValueError(f"this is no snapshot of version {SNAPSHOT_VERSION}")
        model = cls()
        model.apply_events({key: document.get(key) for key in ("tasks", "decisions", "incidents", "dropped")})
        status = document.get("status")
        if isinstance(status, dict) and status:
            model._document = status
            model.status = status_of(status)
        model.series = Series.from_snapshot(series)
        return model


def _figures(before: Status, status: Status) -> Mapping[str, float]:
    seconds = status.at - before.at
    same = before.incarnation == status.incarnation and before.at > 0 and seconds > 0
    return {
        "tasks_per_second": max(0, status.tasks.all_ended - before.tasks.all_ended) / seconds if same else 0.0,
        "failed_per_second": max(0, status.tasks.failed - before.tasks.failed) / seconds if same else 0.0,
        "workers": status.totals.workers,
        "slots": status.totals.slots,
        "queued": status.tasks.queued,
        "running": status.tasks.running,
        "cpu_percent": status.scheduler.cpu_percent
        + sum(worker.agent_cpu_percent + worker.cpu_percent for worker in status.workers),
        "memory_bytes": status.scheduler.rss_bytes
        + sum(worker.agent_rss_bytes + worker.rss_bytes for worker in status.workers),
    }


def _task_documents(table: object) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table of columns as JSON objects."""
    if not isinstance(table, dict):
        return
    columns, values = table.get("columns"), table.get("rows")
    if not (isinstance(columns, list) and isinstance(values, list)):
        return
    for each in values:
        if isinstance(each, list) and len(each) == len(columns):
            yield dict(zip(columns, each, strict=True))


def _searched(task: TaskRow) -> str:
    return "\n".join((task.id, task.function, task.client, task.worker, task.state, task.text)).casefold()
