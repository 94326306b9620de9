"""What happened, for monitors and logs, and what is remembered of it: facts, and printed text.

A batch of tasks makes one fact, never one per task. The step that made facts returns them in a Publish command.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scaler.head_tail import HeadTailBuffer
from scaler.net.connection import Closed, Opened
from scaler.protocol.failures import FailureTexts, failure_texts
from scaler.protocol.messages import Outcome, TaskLog
from scaler.scheduler.core.state import TERMINATED, Group, PeerRecord, Ran, ScalingDecided, Task, TaskState

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 16 * 1024
"""Of stdout and of stderr, each: 64 KiB per task."""
MAX_LOG_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES = 512
"""Memory of a task's entry in the logs beside its text."""


NO_CALLS = (0, 0)
"""Of a task that is no chunk."""


@dataclass(slots=True, eq=False)
class FailureRecord:
    """What is remembered of a task that did not succeed at its first attempt.

    attempt: number of its last attempt, 0 when it never started. payload is empty after a success. texts: what went
    wrong in earlier attempts, in order. failed_input: function and id of the task whose failure kept it from running.
    """

    attempt: int
    payload: bytes
    texts: list[str]
    losses: int = 0
    """How many attempts were lost with their process or worker."""
    uncharged: int = 0
    """How many attempts count neither as losses nor as retries."""
    failed_input: tuple[str, bytes] | None = None
    called: tuple[int, int] = NO_CALLS
    """Of a chunk: how many calls ended, and how many of those failed."""

    @classmethod
    def of(cls, task: Task, payload: bytes, called: tuple[int, int]) -> FailureRecord:
        """Return the record of a task in its last state."""
        attempt, errors = task.number if task.state is not TERMINATED else task.number - 1, task.errors
        if errors is None:
            return cls(attempt, payload, [], called=called)
        return cls(attempt, payload, errors.texts, errors.losses, errors.uncharged, errors.failed_input, called)


_FIRST_ATTEMPT = FailureRecord(1, b"", [])


@dataclass(slots=True, eq=False)
class TasksEnded:
    """Tasks that ended in one step, in columns, without their results: one fact per batch of any size.

    Tasks of one group that end on one worker mostly follow each other, so group and worker are stored per run of them,
    and cost nothing per task. The tasks themselves are not stored: each would be an object for the garbage collector to
    visit. The columns are filled by their owner.
    """

    ids: list[bytes]
    outcomes: list[int]
    duration_us: list[int]
    cpu_us: list[int]
    """Empty when no task was profiled, as `peak_bytes`."""
    peak_bytes: list[int]
    failure_records: dict[int, FailureRecord] = field(default_factory=dict)
    """By index, the tasks that failed, were cancelled, or started more than once."""
    step_at: float = 0.0
    """The clock's time of the step in which the tasks ended."""
    run_starts: list[int] = field(default_factory=list)
    """Of each run, the index of its first task."""
    run_groups: list[Group] = field(default_factory=list)
    run_states: list[TaskState] = field(default_factory=list)
    """Of each run, the state in which its tasks ended."""
    group: Group | None = None
    """Of the last run, as `state`."""
    state: TaskState | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def begin_run(self, group: Group, state: TaskState) -> None:
        """Begin a run: the next task is of another group or worker than the last one."""
        self.run_starts.append(len(self.ids))
        self.run_groups.append(group)
        self.run_states.append(state)
        self.group = group
        self.state = state

    def run_of(self, index: int) -> tuple[Group, str]:
        """Return the group of a task and the name of the worker that had it when it ended; empty for none."""
        run = bisect_right(self.run_starts, index) - 1
        return self.run_groups[run], getattr(self.run_states[run], "worker", "")

    def ran(self, index: int) -> tuple[Ran, int] | None:
        """Return when and where the columns say that a task ran, and its index there; None when it never did."""
        run = bisect_right(self.run_starts, index) - 1
        ran: Ran | None = getattr(self.run_states[run], "ran", None)
        try:  # both have the tasks in one order, but that one may have others between them
            return (ran, ran.ids.index(self.ids[index], index - self.run_starts[run])) if ran is not None else None
        except ValueError:
            return None

    def record_of(self, index: int) -> FailureRecord:
        """Return how often a task started, and what went wrong."""
        return self.failure_records.get(index, _FIRST_ATTEMPT)

    def failure(self, index: int) -> FailureTexts:
        record = self.failure_records[index]
        found = failure_texts(self.outcomes[index], record.payload)
        if record.failed_input is None:
            return found
        name, task = record.failed_input
        how = "was cancelled" if self.outcomes[index] == Outcome.CANCELLED else f"failed: {found.text}"
        return FailureTexts(f"did not run because its input {name} ({task.hex()}) {how}")


@dataclass(frozen=True, slots=True)
class TasksStarted:
    """Tasks that run on a worker, and have done so for a while."""

    worker: str
    tasks: list[Task]
    ran: Ran


@dataclass(frozen=True, slots=True)
class SlotsWorked:
    """What a worker has run: the tasks of one Done."""

    worker: str
    ran: Ran


@dataclass(frozen=True, slots=True)
class TaskRetried:
    """An attempt failed, and another one follows. worker: the name of the worker that had it.

    reason: which attempt it was, where, and what happened to it.
    """

    task: Task
    attempt: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that an operator may want to know, with its ids for the log.

    kind: joined, left (a peer, in order), lost (a peer, otherwise), retried (a task), quarantined (a worker), packages
    (a worker has other versions than a client), degraded (a manager that cannot start units), spend_limit (nearly
    spent, or reached), refused (a peer), policy (the scaling policy raised, or its answer was invalid), protocol_error
    (a peer sent what it may not send, or a message with invalid contents; it was dropped).
    """

    kind: str
    subject: str
    text: str
    ids: dict[str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """What a peer did, or had done to it, for the audit log.

    kind: submitted, cancelled, cleared, drained or shut down. peer: whose connection it came over. count: of tasks.
    key: of the client when it is inside a task, where the connection is its worker's.
    """

    kind: str
    peer: bytes
    text: str
    count: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Expelled:
    """The scheduler has ended the session of a peer."""

    peer: bytes
    text: str


class Noted(NamedTuple):
    """Something that no peer did: started, ended. key: the one that it is about."""

    kind: str
    key: str = ""
    text: str = ""


class AdmissionRefused(NamedTuple):
    """A peer was not admitted. key: the name of the key that it has proved to have; empty for none."""

    text: str
    key: str = ""
    origin: str = ""


class KeysRead(NamedTuple):
    """The public keys that the scheduler knows: name, role, and why it is not admitted, empty when it is."""

    entries: Mapping[str, tuple[str, str, str]]


class ProcessMeasured(NamedTuple):
    """Figures of the scheduler's process, each second. lag_seconds: the longest of its loop since the last ones."""

    lag_seconds: float = 0.0
    rss_bytes: int = 0


class Told(NamedTuple):
    """The performer of an extension has something for its scheduler part: plain values, as in JSON."""

    extension: str
    document: Any


Observed = Opened | Closed | AdmissionRefused | Noted | KeysRead | ProcessMeasured | Told

ROUTINE = ("joined", "left")
"""Kinds of incidents that are no problem: the log has them, monitors do not list them."""

Fact = TasksStarted | SlotsWorked | TasksEnded | TaskRetried | ScalingDecided | Incident | Action | Expelled | Observed


OF_TASKS = frozenset((TasksStarted, SlotsWorked, TasksEnded, TaskRetried))
PUBLISHED = OF_TASKS | {ScalingDecided, Incident}


def peer_incident(kind: str, peer: PeerRecord, text: str = "") -> Incident:
    """Return an incident of a client, worker or manager; logs know managers by their names."""
    identity = peer.name if peer.role == "manager" else peer.id.hex()
    return Incident(kind, f"{peer.role} {peer.title}", text, {peer.role: identity})


class Logs:
    """What tasks printed, by their ids: the beginning and the end of each stream.

    Bounded per task and in all: the tasks that have printed nothing for longest are forgotten first. Costs nothing for
    tasks that print nothing.
    """

    def __init__(self) -> None:
        self._tasks: OrderedDict[bytes, tuple[HeadTailBuffer, HeadTailBuffer]] = OrderedDict()
        self.size_bytes = 0
        """Rough size in memory."""

    def add(self, task: bytes, is_stderr: bool, text: bytes, lost: int = 0) -> None:
        """Keep what a task wrote. lost: bytes that are missing before it."""
        streams = self._tasks.get(task)
        if streams is None:
            streams = HeadTailBuffer(HEAD_BYTES, TAIL_BYTES), HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
            self._tasks[task] = streams
            self.size_bytes += _ENTRY_BYTES
        else:
            self._tasks.move_to_end(task)
        stream = streams[is_stderr]
        self.size_bytes -= len(stream)
        stream.add(text, lost)
        self.size_bytes += len(stream)
        while self.size_bytes > MAX_LOG_BYTES:
            self.drop(next(iter(self._tasks)))

    def move(self, task: bytes, to: Logs) -> None:
        """Give what a task wrote to other logs, which have nothing of it."""
        streams = self._tasks.get(task)
        if streams is not None:
            self.drop(task)
            to._tasks[task] = streams
            to.size_bytes += _ENTRY_BYTES + sum(map(len, streams))

    def drop(self, task: bytes) -> None:
        streams = self._tasks.pop(task, None)
        if streams is not None:
            self.size_bytes -= _ENTRY_BYTES + sum(map(len, streams))

    def read(self, task: bytes) -> TaskLog:
        """Return what a task wrote; empty when it wrote nothing, or too long ago to be remembered."""
        streams = self._tasks.get(task)
        if streams is None:
            return TaskLog(task, b"", b"", 0)
        stdout, stderr = streams
        return TaskLog(task, stdout.text(), stderr.text(), stdout.truncated + stderr.truncated)
