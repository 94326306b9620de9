"""Records the history, and answers queries about the history and tasks. The last hour is in memory. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

from scaler.config.servers import SchedulerConfig
from scaler.extensions.history import minutes as records
from scaler.extensions.history.answer import answer
from scaler.extensions.interface import SchedulerPart
from scaler.grammar import counted
from scaler.ids import ID_BYTES, PEER_ID_BYTES
from scaler.monitor.cluster_rows import ASSIGNED, READY, RUNNING, SUSPENDED, WAITING, TaskRow
from scaler.monitor.history_rows import EventRow, FunctionTimesRow
from scaler.monitor.messages import FindHistory, FindTasks, HistoryFound, TasksFound
from scaler.monitor.reports.answers import sees_of
from scaler.monitor.reports.events import TASKS_BYTES, ended_row, live_row, running_row
from scaler.monitor.reports.status import Sees, every_key, running_tasks
from scaler.protocol.messages import Outcome, Reply, Unanswered
from scaler.scheduler.additions import Additions, Reader
from scaler.scheduler.core.changes import Incident, Noted, ProcessMeasured, ScalingDecided, TasksEnded, Told
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Perform
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import Assigned, ClientRecord, Group, Ready, Recalled, Task, Worker
from scaler.scheduler.tables import table

MAX_FOUND = 200
MAX_VISITED = 10_000
"""Tasks visited per source."""
NEAR = 100
"""Number of tasks visited before a known task: these probably arrived in the same batch."""


def find(state: ClusterState, search: str, at: float, now: float, sees: Sees = every_key) -> bytes:
    """Return the table of found tasks as JSON, live tasks first. search: case-insensitive id prefix in hex, or part of
    the name of a function, client, worker, or tag. at, now: current time in unix seconds and by the scheduler's clock.
    sees: see `status`."""
    wanted = search.strip().casefold()

    @cache
    def is_named(group: Group) -> bool:
        texts = group.spec.name, group.client.name, *group.spec.tags
        return any(wanted in text.casefold() for text in texts)

    def fits(task: Task) -> bool:
        if not sees(task.group.client.account.key):
            return False
        worker = getattr(task.state, "worker", None)
        by_worker = worker is not None and wanted in worker.name.casefold()
        return by_worker or is_named(task.group) or task.id.hex().startswith(wanted)

    visited = chain.from_iterable(islice(source, MAX_VISITED) for source in _sources(state, wanted, is_named))
    own_now = state.own_time(state.now)
    live = ((task.id, _live_row(task, at, own_now)) for task in visited if task is not None and fits(task))
    past = (
        (batch.ids[index], ended_row(batch, index, at - (now - batch.step_at))._replace(traceback=""))
        for ended in reversed(state.rooms.remembered)
        for batch, index in reversed(list(ended.latest(MAX_VISITED)))
        for group, worker in (batch.run_of(index),)
        if sees(group.client.account.key)
        and (is_named(group) or wanted in worker.casefold() or batch.ids[index].hex().startswith(wanted))
    )
    found: dict[bytes, TaskRow] = {}
    for task_id, row in chain(live, past):
        found.setdefault(task_id, row)
        if len(found) == MAX_FOUND:
            break
    return table(TaskRow._fields, found.values(), TASKS_BYTES).encode()


def _sources(state: ClusterState, wanted: str, is_named: Callable[[Group], bool]) -> Iterator[Iterator[Task | None]]:
    if re.fullmatch("[0-9a-f]{16,32}", wanted):
        owner = state.clients.get(bytes.fromhex(wanted[: 2 * PEER_ID_BYTES]))
        first, digits = int(wanted.ljust(2 * ID_BYTES, "0"), 16), 2 * ID_BYTES - len(wanted)
        ids = (number.to_bytes(ID_BYTES, "big") for number in range(first, first + 16**digits))
        yield (owner.tasks.get(each) for each in ids) if owner is not None else iter(())
        if not digits:
            return  # a complete id
    workers = [worker for worker in state.workers.values() if wanted in worker.name.casefold()]
    yield chain.from_iterable(worker.tasks.values() for worker in workers)
    groups = [
        group
        for client in state.clients.values()
        for group in client.groups.values()
        if client.id.hex().startswith(wanted[: 2 * PEER_ID_BYTES]) or is_named(group)
    ]
    yield chain.from_iterable(client.tasks.values() for client in dict.fromkeys(group.client for group in groups))
    yield (
        group.client.tasks.get(number.to_bytes(ID_BYTES, "big"))
        for group in filter(is_named, groups)
        for last in (int.from_bytes(last, "big") for _, last in group.arrivals)
        for number in range(last, max(0, last - NEAR), -1)
    )


def _live_row(task: Task, at: float, now: float) -> TaskRow:
    match task.state:
        case Assigned(worker=worker) | Recalled(worker=worker):
            processors = worker.reports.heartbeat.processors if worker.reports.heartbeat is not None else ()
            reported = (
                each.running_seconds + now - worker.reports.at for each in processors if each.running == task.id
            )
            seconds = next(reported, 0.0)
            state = SUSPENDED if task.id in worker.blocked else RUNNING if task in running_tasks(worker) else ASSIGNED
            return running_row(task, worker.name, at, seconds, state)
        case state:
            return live_row(task, READY if type(state) is Ready else WAITING, "", task.number)


SAMPLE_SECONDS = 1.0
MEMORY_SECONDS = 3_600.0
MEMORY_EVENTS = 2_000
MAX_REMEMBERED = 4096
MAX_FAILURE_BYTES = 8 * 1024 * 1024
_RECORD_BYTES = 128

_FAILED = frozenset(Outcome) - {Outcome.SUCCESS, Outcome.CANCELLED, Outcome.EXCEPTION_TO_RETRY}
NOT_A_MONITOR = (
    "the history covers all clients and requires a key with role monitor or admin, but {} has role {}: "
    "`scaler keys add NAME --role monitor` adds one"
)


class Asked(NamedTuple):
    """A query that may need records older than those in memory. recent: records in memory, starting at `first`."""

    question: FindHistory
    recent: list[records.Row]
    first: float


class EndedTasks:
    """Recent batches of ended tasks, each small enough for one message. Evicts the oldest batch beyond the limits."""

    def __init__(self) -> None:
        self._batches: deque[TasksEnded] = deque()
        self._rows = 0
        self._failure_bytes = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, ended: TasksEnded) -> None:
        """Add a batch. The batch must not change afterwards."""
        batches = self._batches
        batches.append(ended)
        self._rows += len(ended.ids)
        if ended.failure_records:
            self._failure_bytes += _failure_bytes(ended)
        while self._rows - len(batches[0].ids) >= MAX_REMEMBERED or (
            self._failure_bytes > MAX_FAILURE_BYTES and len(batches) > 1
        ):
            oldest = batches.popleft()
            self._rows -= len(oldest.ids)
            if oldest.failure_records:
                self._failure_bytes -= _failure_bytes(oldest)

    def find(self, task: bytes) -> tuple[TasksEnded, int] | None:
        """Return the batch with the task's last completion, and its index in the batch."""
        for ended in reversed(self._batches):
            if task in ended.ids:
                return ended, len(ended) - 1 - ended.ids[::-1].index(task)
        return None

    def latest(self, limit: int) -> Iterator[tuple[TasksEnded, int]]:
        every = ((ended, index) for ended in self._batches for index in range(len(ended)))
        return islice(every, max(0, self._rows - limit), None)


def _failure_bytes(ended: TasksEnded) -> int:
    return sum(_RECORD_BYTES + len(record.payload) for record in ended.failure_records.values())


class History(SchedulerPart):
    """Keeps the records of the last hour. The performer reads and writes the files in state_directory."""

    changes = (TasksEnded, Incident, ScalingDecided, ProcessMeasured, Told, Noted)
    questions = (FindHistory, FindTasks)

    def __init__(self, config: SchedulerConfig) -> None:
        self.ended = EndedTasks()
        self._has_files = bool(config.state_directory)
        self._began_at = 0.0
        self._rows: deque[records.MinuteRow | FunctionTimesRow] = deque()
        self._events: deque[EventRow] = deque(maxlen=MEMORY_EVENTS)
        self._before = records.Before()
        self._p50_before: Mapping[str, float] = {}
        """Median durations (seconds) by function, from about a day earlier or from the previous run."""
        self._measured = ProcessMeasured()
        self._minutes: records.Minutes | None = None
        self._functions: records.FunctionTimes | None = None

    def on_changes(self, changes: Sequence[Any], now: Now) -> Iterable[Command]:
        commands: list[Command] = []
        for change in changes:
            match change:
                case TasksEnded():
                    self.ended.add(change)
                    if change.failure_records:
                        self._note_failures(change)
                case ProcessMeasured():
                    self._measured = change
                case Told("history", document):
                    self._before.restore(document)
                    self._p50_before = self._before.p50(now.unix)
                case Noted("started"):
                    at = self._began_at = round(now.unix, 3)
                    self._minutes = records.Minutes(at, self._figures())
                    self._functions = records.FunctionTimes(at, self.cluster)
                    self._note(at, records.STARTED, records.SCHEDULER, "")
                    self.next_at = now.clock + SAMPLE_SECONDS
                case Noted("ended"):
                    self._note(now.unix, records.ENDED, records.SCHEDULER, "")
                    commands += self._sample(now.unix, is_last=True)
                case Incident(kind, subject, text):
                    self._note(now.unix, kind, subject, text)
                case ScalingDecided(manager_id, units, draining, reason):
                    text = f"{counted(units, 'unit')}, and {draining} draining: {reason}"
                    self._note(now.unix, records.SCALING, manager_id, text)
        return commands

    def on_time(self, now: Now) -> Iterable[Command]:
        self.next_at = now.clock + SAMPLE_SECONDS
        return self._sample(now.unix)

    def on_question(
        self, question: FindHistory | FindTasks, client: ClientRecord, state: ClusterState
    ) -> Reply | Perform:
        sees, at = sees_of(client.identity), state.rooms.unix_at_zero + state.now
        if isinstance(question, FindTasks):
            return TasksFound(question.search, find(state, question.search, at, state.now, sees))
        if sees is not every_key:
            return Unanswered(NOT_A_MONITOR.format(client.identity.key, " or ".join(sorted(client.identity.roles))))
        first = max(self._began_at, at - MEMORY_SECONDS)
        if len(self._events) == MEMORY_EVENTS:
            first = max(first, self._events[0].at)
        known: Iterable[records.Row] = chain(self._events, self._rows)
        if self._minutes is not None and self._functions is not None:
            known = chain(known, self._minutes.present(at, self._figures()), self._functions.present(at))
        recent = [row for row in records.within(known, question.since, question.until) if row.at >= first]
        if self._has_files:
            return Perform("history", Asked(question, recent, first))
        return HistoryFound(question.since, question.until, answer(recent, question.since, question.until, first))

    def remembered(self) -> EndedTasks:
        return self.ended

    def add_to_status(self, _reader: Reader) -> Additions:
        before = {name: {"p50_before_seconds": seconds} for name, seconds in self._p50_before.items()}
        return Additions(columns={"functions": before})

    def _note(self, at: float, kind: str, subject: str, text: str) -> None:
        if self._minutes is not None:
            self._minutes.event(at, kind, subject, text)

    def _note_failures(self, ended: TasksEnded) -> None:
        for index in ended.failure_records:
            if self._minutes is not None and ended.outcomes[index] in _FAILED:
                line = ended.failure(index).text.partition("\n")[0]
                self._minutes.failure(ended.run_of(index)[0].function.name, line)

    def _sample(self, at: float, *, is_last: bool = False) -> list[Command]:
        if self._minutes is None or self._functions is None:
            return []
        rows = self._minutes.sample(at, self._figures(), is_last=is_last)
        self._measured = self._measured._replace(lag_seconds=0.0)
        times = self._functions.take(at, is_last=is_last)
        if times:
            self._before.add(times)
            self._p50_before = self._before.p50(at)
            rows += times
        for row in rows:
            if isinstance(row, EventRow):
                self._events.append(row)
            else:
                self._rows.append(row)
        while self._rows and self._rows[0].at + self._rows[0].seconds < at - MEMORY_SECONDS:
            self._rows.popleft()
        return [Perform("history", rows)] if rows and self._has_files else []

    def _figures(self) -> records.MinuteRow:
        state = self.cluster
        ended = state.counts.ended
        workers = state.workers.values()
        living = state.living_tasks + state.counts.more
        running = sum(min(worker.slots, worker.busy) for worker in workers)
        suspended = sum(len(worker.blocked) for worker in workers)
        return records.MinuteRow(
            at=0.0,
            seconds=0.0,
            done=ended[Outcome.SUCCESS],
            failed=sum(ended[outcome] for outcome in _FAILED),
            cancelled=ended[Outcome.CANCELLED],
            living=living,
            workers=len(state.workers),
            managers=len(state.managers),
            cost=state.rooms.scaling.spent,
            lag_seconds=self._measured.lag_seconds,
            slots=sum(worker.slots for worker in workers),
            running=running,
            queued=max(0, living - running - suspended),
            memory_bytes=self._measured.rss_bytes + sum(map(_memory_of, workers)),
        )


def _memory_of(worker: Worker) -> int:
    heartbeat = worker.reports.heartbeat
    if heartbeat is None:
        return 0
    return heartbeat.agent_rss_bytes + sum(processor.rss_bytes for processor in heartbeat.processors)
