"""The MonitorEvents document: events since the last report, made once for all monitors. Pure.

The table of tasks lists ended, long-running, and retried tasks, at most `MAX_TASK_ROWS`: first failures, then cancelled
and retried tasks, running tasks, and the most recent successes. `dropped` counts omitted ended tasks. If tasks are
omitted, a reader cannot follow individual tasks. Successes then fill the table only up to `FLOOD_ROWS`, which keeps
reports cheap even at a million tasks per second. A new monitor gets recently ended and running tasks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from scaler.monitor import cluster_rows as schema
from scaler.monitor.cluster_rows import TaskRow
from scaler.monitor.reports.status import MAX_TEXT, Sees, every_key, state_name
from scaler.protocol.messages import STARTED_AFTER_SECONDS, Outcome, Spec
from scaler.scheduler.core import changes as ch
from scaler.scheduler.core.attempt_texts import together
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import Ran, Task, Terminated, WorkerClock, max_number
from scaler.scheduler.tables import fitting

VERSION = 1
MAX_TASK_ROWS = 2_000
FLOOD_ROWS = 200
"""Maximum task rows per report with successes, if not all ended tasks fit."""
MAX_RUNNING_ROWS = 500
MAX_PAST_TASKS = 1_000
MAX_NOTES = 500
"""Maximum decisions, and maximum incidents, in the tables of these names."""
MAX_SHOWN = 10_000
"""Maximum live tasks that monitors show and whose ends must be reported; equal to a monitor's capacity."""
TASKS_BYTES = 640 * 1024
MAX_FAILURE_TEXT = 1_000
MAX_TRACEBACK = 16 * 1024

Position = tuple[int, int]
"""Position of an event: number of the change, and index in it."""
Ended = tuple[Position, float, ch.TasksEnded]
"""An ended task: position (with the index in the batch), Unix seconds, and batch."""


@dataclass(frozen=True, slots=True)
class EventReport:
    """A document without the number of omitted tasks, which depends on the monitor. listed: ended tasks with a row."""

    body: str
    listed: int
    dropped: int

    def document(self, missed: int = 0) -> bytes:
        return f'{{"version": {VERSION}, "dropped": {self.dropped + missed}, {self.body}}}'.encode()


class Events:
    """Collects changes for the next report, and keeps some for later monitors."""

    def __init__(self) -> None:
        self.unix_at_zero = 0.0
        self._number = 0
        self._reported = 0
        self.notes: dict[str, deque[Any]] = {name: deque(maxlen=MAX_NOTES) for name in ("decisions", "incidents")}
        self._shown: dict[bytes, None] = {}
        """Tasks that monitors show as live, so that their ends must be listed in this or a later report."""
        self._due: deque[Ended] = deque(maxlen=MAX_SHOWN)
        """Ends of shown tasks. This and all following attributes restart with each report."""
        self._ended = 0
        self._batches: deque[tuple[int, float, ch.TasksEnded]] = deque()
        """Most recently ended batches, with at least `MAX_TASK_ROWS` tasks."""
        self._in_batches = 0
        self._failed: deque[Ended] = deque(maxlen=MAX_TASK_ROWS)
        self._unusual: deque[Ended] = deque(maxlen=MAX_TASK_ROWS)
        """Cancelled tasks, and tasks that succeeded after a failed attempt."""
        self._retried: deque[tuple[int, float, ch.TaskRetried]] = deque(maxlen=MAX_RUNNING_ROWS)
        self._started: deque[tuple[int, float, ch.TasksStarted]] = deque(maxlen=MAX_RUNNING_ROWS)

    def add(self, changes: Iterable[ch.Change], at: float) -> None:
        """Add the changes of one step. at: Unix seconds."""
        for number, change in enumerate(changes, self._number + 1):
            self._number = number
            match change:
                case ch.TasksEnded():
                    self._add_ended(change, at)
                case ch.TasksStarted():
                    self._started.append((number, at, change))
                case ch.TaskRetried():
                    self._retried.append((number, at, change))
                case ch.ScalingDecided(manager, units, draining, reason):
                    row = schema.DecisionRow(at, manager[:MAX_TEXT], units, draining, reason[:MAX_TEXT])
                    self.notes["decisions"].append(row)
                case ch.Incident(kind, subject, text) if kind not in ch.ROUTINE:
                    self.notes["incidents"].append(
                        schema.IncidentRow(at, kind, subject[:MAX_TEXT], text[:MAX_FAILURE_TEXT])
                    )

    def _add_ended(self, ended: ch.TasksEnded, at: float) -> None:
        number = self._number
        self._ended += len(ended)
        self._in_batches += len(ended)
        self._batches.append((number, at, ended))
        while self._in_batches - len(self._batches[0][2]) >= MAX_TASK_ROWS:
            self._in_batches -= len(self._batches.popleft()[2])
        for index in ended.failure_records:
            rows = self._unusual if ended.outcomes[index] in (Outcome.SUCCESS, Outcome.CANCELLED) else self._failed
            rows.append(((number, index), at, ended))
        if self._shown and not self._shown.keys().isdisjoint(ended.ids):
            for index, task in enumerate(ended.ids):
                if task in self._shown:
                    del self._shown[task]
                    self._due.append(((number, index), at, ended))

    def report(self, at: float) -> EventReport | None:
        """Return the events since the last call, or None. at: Unix seconds."""
        if self._number == self._reported and not self._due:
            return None
        rows = self._rows(at)
        report = _report(at, rows, self._ended - len(self._due))
        self._reported = self._number
        self._ended, self._in_batches = len(self._due), 0
        self._batches.clear()
        self._failed.clear()
        self._unusual.clear()
        self._retried.clear()
        self._started.clear()
        return report

    def past(self, state: ClusterState, at: float, sees: Sees = every_key) -> EventReport:
        """Return the report for a new monitor. at: Unix seconds. sees: as in `status`."""
        sees_all = sees is every_key
        past = {
            each.ids[index]: (each.step_at, self._ended_row(each, index, state.rooms.unix_at_zero + each.step_at))
            for remembered in state.rooms.remembered
            for each, index in remembered.latest(MAX_PAST_TASKS)
            if sees(each.run_of(index)[0].client.account.key)
        }
        rows = [row for _, row in sorted(past.values(), key=itemgetter(0))]
        now = state.own_time(state.now)
        running = (
            (task, self._placed(row, worker.reports.clock, processor.lane, began_us))
            for worker in state.workers.values()
            if (heartbeat := worker.reports.heartbeat) is not None
            for processor in heartbeat.processors
            if (task := state.living_task(processor.running)) is not None
            and sees(task.group.client.account.key)
            and (began_us := round((heartbeat.sent_at - processor.running_seconds) * 1e6))
            and (row := running_row(task, worker.name, at, processor.running_seconds + now - worker.reports.at))
        )
        for task, row in islice(running, MAX_RUNNING_ROWS):
            if sees_all:
                self._show(task.id)
            rows.append(row)
        newest = [((-number, 0), row) for number, row in enumerate(reversed(rows))]
        rows_by_weight = sorted(newest, key=lambda entry: entry[1].state in schema.NO_FAILURE)
        return _report(at, rows_by_weight, 0)

    def _rows(self, at: float) -> list[tuple[Position, TaskRow]]:
        limit = MAX_TASK_ROWS if self._ended <= MAX_TASK_ROWS else min(FLOOD_ROWS, MAX_TASK_ROWS)
        rows: dict[Position, TaskRow] = {}
        due = [self._due.popleft() for _ in range(min(len(self._due), MAX_TASK_ROWS))]
        for position, ended_at, ended in chain(due, reversed(self._failed), reversed(self._unusual)):
            if len(rows) < MAX_TASK_ROWS and position not in rows:
                rows[position] = self._ended_row(ended, position[1], ended_at)
        for position, row in islice(self._live_rows(at), MAX_TASK_ROWS - len(rows)):
            rows[position] = row
            self._show(bytes.fromhex(row.id))
        for number, ended_at, ended in reversed(self._batches):
            for index in range(len(ended) - 1, -1, -1):
                if len(rows) >= limit:
                    break
                if (number, index) not in rows:
                    rows[number, index] = self._ended_row(ended, index, ended_at)
        return list(rows.items())

    def _live_rows(self, at: float) -> Iterator[tuple[Position, TaskRow]]:
        for number, retried_at, retried in reversed(self._retried):
            if type(retried.task.state) is not Terminated:
                row = live_row(retried.task, schema.RETRYING, retried.worker, retried.attempt)
                yield (
                    (number, 0),
                    row._replace(started_at=retried_at, ended_at=retried_at, text=retried.reason[:MAX_FAILURE_TEXT]),
                )
        running = (
            ((number, index), self._ran(row, fact.ran, fact.ran.ids.index(task.id)))
            for number, started_at, fact in reversed(self._started)
            for index, task in enumerate(fact.tasks)
            if type(task.state) is not Terminated
            and (row := running_row(task, fact.worker, at, at - started_at + STARTED_AFTER_SECONDS))
        )
        yield from islice(running, MAX_RUNNING_ROWS)

    def _ended_row(self, ended: ch.TasksEnded, index: int, at: float) -> TaskRow:
        row, ran = ended_row(ended, index, at), ended.ran(index)
        return row if ran is None else self._ran(row, *ran)

    def _ran(self, row: TaskRow, ran: Ran, place: int) -> TaskRow:
        """Return a task's row with the time and place of its run, from this index of the columns."""
        if not ran.lanes:
            return row
        duration_us = ran.duration_us[place] if ran.duration_us else row.duration_us
        row = row._replace(duration_us=duration_us)
        if ran.inputs_us and ran.inputs_bytes:
            row = row._replace(inputs_us=ran.inputs_us[place], inputs_bytes=ran.inputs_bytes[place])
        return self._placed(row, ran.clock, ran.lanes[place], ran.began_us[place])

    def _placed(self, row: TaskRow, clock: WorkerClock, lane: int, began_us: int) -> TaskRow:
        if not lane or clock.offset_seconds is None:
            return row
        started_at = self.unix_at_zero + clock.offset_seconds + began_us / 1e6
        ended_at = None if row.ended_at is None else started_at + row.duration_us / 1e6
        return row._replace(lane=lane, started_at=started_at, ended_at=ended_at)

    def _show(self, task: bytes) -> None:
        self._shown[task] = None
        if len(self._shown) > MAX_SHOWN:
            del self._shown[next(iter(self._shown))]


def _report(at: float, rows: list[tuple[Position, TaskRow]], ended: int) -> EventReport:
    """Return a report of these rows. ended: number of ended tasks in the report, listed or not."""
    tasks, listed = _table(rows)
    body = f'"at": {json.dumps(at)}, "tasks": {{"columns": {json.dumps(TaskRow._fields)}, "rows": {tasks}}}'
    return EventReport(body, listed, max(0, ended - listed))


def ended_row(ended: ch.TasksEnded, index: int, at: float) -> TaskRow:
    outcome = ended.outcomes[index]
    (group, worker), record = ended.run_of(index), ended.record_of(index)
    text, traceback = together(record.texts), ""
    if record.failed_input is not None or outcome not in (Outcome.SUCCESS, Outcome.CANCELLED):
        failure = ended.failure(index)
        text, traceback = failure.text, failure.traceback
    return TaskRow(
        id=ended.ids[index].hex(),
        state=state_name(outcome),
        function=group.spec.name[:MAX_TEXT],
        worker=worker[:MAX_TEXT],
        client=group.client.name[:MAX_TEXT],
        attempt=record.attempt,
        max_attempts=max_number(group.spec, record.losses, record.uncharged),
        ended_at=at,
        duration_us=ended.duration_us[index],
        cpu_us=ended.cpu_us[index] if ended.cpu_us else 0,
        peak_bytes=ended.peak_bytes[index] if ended.peak_bytes else 0,
        failed_input=record.failed_input[1].hex() if record.failed_input is not None else "",
        text=text[:MAX_FAILURE_TEXT],
        traceback=traceback[:MAX_TRACEBACK],
        failures=max(0, record.attempt - 1 - record.losses - record.uncharged),
        losses=record.losses,
        tags=_tags_of(group.spec),
        calls=record.called[0],
        failed_calls=record.called[1],
        started_at=at - ended.duration_us[index] / 1e6,
    )


def running_row(task: Task, worker: str, at: float, seconds: float, state: str = schema.RUNNING) -> TaskRow:
    """Return the row of a task that has run for this time. at: Unix seconds."""
    row = live_row(task, state, worker, task.number)
    return row._replace(duration_us=int(max(0.0, seconds) * 1e6), started_at=at - max(0.0, seconds))


def _tags_of(spec: Spec) -> str:
    return schema.TAGS_BETWEEN.join(spec.tags)[:MAX_TEXT] if spec.tags else ""


def live_row(task: Task, state: str, worker: str, attempt: int) -> TaskRow:
    function, client = task.group.spec.name[:MAX_TEXT], task.group.client.name[:MAX_TEXT]
    row = TaskRow(task.id.hex(), state, function, worker[:MAX_TEXT], client, attempt, task.max_number)
    if task.group.spec.tags:
        row = row._replace(tags=_tags_of(task.group.spec))
    errors = task.errors
    return row if errors is None else row._replace(failures=errors.failures, losses=errors.losses)


def _table(rows: list[tuple[Position, TaskRow]]) -> tuple[str, int]:
    """Return rows as JSON, ordered by position, and the number of ended tasks. Drops tracebacks first if too large."""
    text = json.dumps([row for _, row in sorted(rows, key=itemgetter(0))])
    if len(text) <= TASKS_BYTES:
        return text, sum(row.state not in schema.LIVE for _, row in rows)
    texts = fitting(_without_tracebacks(row for _, row in rows), TASKS_BYTES)
    listed = sorted(zip(rows, texts, strict=False), key=lambda entry: entry[0][0])
    return f"[{', '.join(text for _, text in listed)}]", sum(row.state not in schema.LIVE for (_, row), _ in listed)


def _without_tracebacks(rows: Iterable[TaskRow]) -> Iterator[TaskRow]:
    """Yield rows, without tracebacks once these have used half of the space."""
    left = TASKS_BYTES // 2
    for row in rows:
        left -= len(row.traceback)
        yield row if left >= 0 else row._replace(traceback="")
