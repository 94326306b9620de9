"""What monitors are told of what happens: one JSON document per report, made once for all of them. Pure.

The document has these parts:

- `version`, `at` (unix seconds); `dropped`: how many tasks that ended are left out, because there were too many.
- `tasks`: a table (`columns`, `rows`) of tasks that ended, have run for a while, or are to run again. `state` is
  `running`, `retrying`, `done`, or the name of the outcome. A report has at most `MAX_TASK_ROWS` of them: failures
  first, then cancelled and retried ones, then those that run, then the last ones of the others. Where that leaves some
  out, nobody reads them one by one, and ordinary ones fill it up to `FLOOD_ROWS` only. So a million tasks a second
  cost a report less than two thousand do.
- `decisions` of the scaling policy, with what they were made from. `incidents`: peers that came or went, tasks that run
  again, workers that get no more tasks, and what somebody did wrong.

A monitor that comes is told at once what is remembered: the last `MAX_PAST_TASKS` tasks that ended, what workers run,
the last decisions and incidents.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from scaler.protocol.messages import STARTED_AFTER_SECONDS, Outcome
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.facts import Fact, ScalingDecided, TaskRetried, TasksEnded, TasksStarted
from scaler.scheduler.core.state import Task, Terminated
from scaler.scheduler.event_rows import (
    COLUMNS,
    MAX_RUNNING_ROWS,
    Place,
    Row,
    decision,
    ended_row,
    incident,
    last_objects,
    retried_row,
    running_row,
    running_rows,
    table,
)

VERSION = 1
MAX_TASK_ROWS = 2_000
"""Rows about tasks in one report."""
FLOOD_ROWS = 200
"""The same when more tasks have ended: ordinary ones are told of up to here."""
MAX_PAST_TASKS = 1_000
MAX_SHOWN = 10_000
"""Living tasks that monitors were told of, whose ends must be told; as many as a monitor remembers."""
MAX_TOLD = 200
"""Decisions in one report and remembered; the same for incidents."""
OBJECTS_BYTES = 128 * 1024
"""Of decisions, and of incidents."""


@dataclass(frozen=True, slots=True)
class Report:
    """A MonitorEvents document but for the number of tasks that it leaves out, which differs between monitors.

    rows: how many rows about tasks were made for it. told: how many tasks that ended have one in it.
    """

    head: str
    tail: str
    rows: int
    told: int
    dropped: int

    def document(self, missed: int = 0) -> bytes:
        """Return the document for a monitor that was not told of this many tasks in earlier reports."""
        return f'{self.head}, "dropped": {self.dropped + missed}, {self.tail}'.encode()


Ended = tuple[Place, float, TasksEnded]
"""One task that ended: index in the batch is that of its place; the float is when, in unix seconds."""


class _Since:
    """What has happened since the last report, as far as a report could tell it.

    shown: tasks that monitors believe to be alive; of these the end is always told, if not in this report then in one
    of the next: `due`.
    """

    def __init__(self, number: int, shown: dict[bytes, None], due: list[Ended]) -> None:
        self.number = number
        """Of the last fact."""
        self.first = number
        self.ended = len(due)
        self._shown = shown
        self._due: deque[Ended] = deque(due, maxlen=MAX_SHOWN)
        self._batches: deque[tuple[int, float, TasksEnded]] = deque()
        self._in_batches = 0
        self._failed: deque[Ended] = deque(maxlen=MAX_TASK_ROWS)
        self._odd: deque[Ended] = deque(maxlen=MAX_TASK_ROWS)
        self._retried: deque[tuple[Place, float, TaskRetried]] = deque(maxlen=MAX_RUNNING_ROWS)
        self._started: deque[tuple[int, float, TasksStarted]] = deque(maxlen=MAX_RUNNING_ROWS)
        self.decisions: deque[dict[str, object]] = deque(maxlen=MAX_TOLD)
        self.incidents: deque[dict[str, object]] = deque(maxlen=MAX_TOLD)

    def add(self, fact: TasksEnded | TasksStarted | TaskRetried, at: float) -> None:
        """Take in a fact about tasks, the one of the present number."""
        match fact:
            case TasksEnded():
                self._add_ended(fact, at)
            case TasksStarted():
                self._started.append((self.number, at, fact))
            case TaskRetried():
                self._retried.append(((self.number, 0), at, fact))

    def _add_ended(self, ended: TasksEnded, at: float) -> None:
        self.ended += len(ended)
        self._in_batches += len(ended)
        self._batches.append((self.number, at, ended))
        while self._in_batches - len(self._batches[0][2]) >= MAX_TASK_ROWS:
            self._in_batches -= len(self._batches.popleft()[2])
        for index in ended.failure_records:
            rows = self._odd if ended.outcomes[index] in (Outcome.SUCCESS, Outcome.CANCELLED) else self._failed
            rows.append(((self.number, index), at, ended))
        if self._shown and not self._shown.keys().isdisjoint(ended.ids):
            for index, task in enumerate(ended.ids):
                if task in self._shown:
                    del self._shown[task]
                    self._due.append(((self.number, index), at, ended))

    def rows(self, at: float) -> tuple[list[tuple[Place, Row]], list[Ended]]:
        """Return the rows that matter most, up to the limit, the most important ones first; and what is due next."""
        chosen: dict[Place, Callable[[], Row]] = {}
        due = list(self._due)
        for rows in (due[:MAX_TASK_ROWS], reversed(self._failed), reversed(self._odd)):
            for place, ended_at, ended in rows:
                if len(chosen) < MAX_TASK_ROWS:
                    chosen[place] = partial(ended_row, ended, place[1], ended_at)
        for place, retried_at, fact in islice(reversed(self._retried), MAX_TASK_ROWS - len(chosen)):
            if type(fact.task.state) is not Terminated:
                chosen[place] = partial(retried_row, fact, retried_at)
                self.show(fact.task.id)
        room = min(MAX_RUNNING_ROWS, MAX_TASK_ROWS - len(chosen))
        for place, started_at, name, task in islice(self._running(), room):
            chosen[place] = partial(running_row, task, name, at - started_at + STARTED_AFTER_SECONDS)
            self.show(task.id)
        limit = MAX_TASK_ROWS if self.ended <= MAX_TASK_ROWS else min(FLOOD_ROWS, MAX_TASK_ROWS)
        for number, ended_at, ended in reversed(self._batches):
            for index in range(len(ended) - 1, -1, -1):
                if len(chosen) >= limit:
                    break
                if (number, index) not in chosen:
                    chosen[number, index] = partial(ended_row, ended, index, ended_at)
        return [(place, make()) for place, make in chosen.items()], due[MAX_TASK_ROWS:]

    def _running(self) -> Iterator[tuple[Place, float, str, Task]]:
        """Yield those that were said to have started, and have not ended since."""
        for number, at, fact in reversed(self._started):
            for index, task in enumerate(fact.tasks):
                if type(task.state) is not Terminated:
                    yield (number, index), at, fact.worker, task

    def show(self, task: bytes) -> None:
        """Note that monitors are told of a task that is alive."""
        self._shown[task] = None
        if len(self._shown) > MAX_SHOWN:
            del self._shown[next(iter(self._shown))]


class Events:
    """Collects facts between reports, and remembers some for monitors that come later."""

    def __init__(self) -> None:
        self._shown: dict[bytes, None] = {}
        self._since = _Since(0, self._shown, [])
        self._decisions: deque[dict[str, object]] = deque(maxlen=MAX_TOLD)
        self._incidents: deque[dict[str, object]] = deque(maxlen=MAX_TOLD)

    def add(self, facts: Iterable[Fact], at: float) -> None:
        """Take in the facts of one step. at: unix seconds."""
        since = self._since
        for fact in facts:
            since.number += 1
            if isinstance(fact, TasksEnded | TasksStarted | TaskRetried):
                since.add(fact, at)
                if not isinstance(fact, TaskRetried):
                    continue
            if isinstance(fact, ScalingDecided):
                decided = decision(fact, at)
                since.decisions.append(decided)
                self._decisions.append(decided)
            else:
                happened = incident(fact, at)
                since.incidents.append(happened)
                self._incidents.append(happened)

    def report(self, at: float) -> Report | None:
        """Return what has happened since the last call; None for nothing. at: unix seconds."""
        since = self._since
        if since.number == since.first and not since.ended:
            return None
        rows, due = since.rows(at)
        self._since = _Since(since.number, self._shown, due)
        text, told = table(rows)
        dropped = since.ended - told - len(due)
        return _report(at, text, since.decisions, since.incidents, len(rows), told, dropped)

    def past(self, core: SchedulerCore, unix: Callable[[float], float], at: float) -> Report:
        """Return what a monitor is told that has just come. unix: turns the core's clock into unix seconds."""
        rows = [ended_row(ended, index, unix(ended.step_at)) for ended, index in core.history.latest(MAX_PAST_TASKS)]
        for task, row in running_rows(core):
            self._since.show(task)
            rows.append(row)
        text, told = table([((-number, 0), row) for number, row in enumerate(reversed(rows))])
        return _report(at, text, self._decisions, self._incidents, len(rows), told, 0)


def _report(
    at: float,
    tasks: str,
    decisions: Sequence[dict[str, object]],
    incidents: Sequence[dict[str, object]],
    rows: int,
    told: int,
    dropped: int,
) -> Report:
    parts = {
        "tasks": f'{{"columns": {json.dumps(COLUMNS)}, "rows": {tasks}}}',
        "decisions": last_objects(decisions, OBJECTS_BYTES),
        "incidents": last_objects(incidents, OBJECTS_BYTES),
    }
    tail = ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}"
    return Report(f'{{"version": {VERSION}, "at": {json.dumps(at)}', tail, rows, told, dropped)
