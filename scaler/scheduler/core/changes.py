"""Changes to the cluster, for subscribers. Pure.

The journal, the log, monitors, and extensions subscribe to types of changes (`rooms.py`). Changes without subscribers
are not built. A batch of tasks is one change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scaler.net.connection import Closed, Identity, Opened
from scaler.protocol.failures import FailureTexts, failure_texts
from scaler.protocol.messages import Finished, Hello, Outcome, RunGroup, Submit
from scaler.scheduler.core.state import TERMINATED, Group, PeerRecord, Ran, Task, TaskState

NO_CALLS = (0, 0)
"""For a task that is not a chunk."""


@dataclass(slots=True, eq=False)
class FailureRecord:
    """Record of a task that did not succeed on its first attempt.

    attempt: number of the last attempt; 0 if none started. payload: empty after success. texts: errors of earlier
    attempts, in order. failed_input: function and id of the input task whose failure prevented this task.
    """

    attempt: int
    payload: bytes
    texts: list[str]
    losses: int = 0
    uncharged: int = 0
    """Number of attempts that count neither as losses nor as retries."""
    failed_input: tuple[str, bytes] | None = None
    called: tuple[int, int] = NO_CALLS
    """Numbers of ended calls and of failed calls in a chunk."""

    @classmethod
    def of(cls, task: Task, payload: bytes, called: tuple[int, int]) -> FailureRecord:
        attempt, errors = task.number if task.state is not TERMINATED else task.number - 1, task.errors
        if errors is None:
            return cls(attempt, payload, [], called=called)
        return cls(attempt, payload, errors.texts, errors.losses, errors.uncharged, errors.failed_input, called)


_FIRST_ATTEMPT = FailureRecord(1, b"", [])


@dataclass(slots=True, eq=False)
class TasksEnded:
    """Tasks that ended in one step, as columns, without results.

    A run of consecutive tasks with the same group and worker stores both once. The columns contain no task objects,
    which the garbage collector would have to visit. The creator of the record fills the columns.
    """

    ids: list[bytes]
    outcomes: list[int]
    duration_us: list[int]
    cpu_us: list[int]
    """Empty, like `peak_bytes`, if no task was profiled."""
    peak_bytes: list[int]
    failure_records: dict[int, FailureRecord] = field(default_factory=dict)
    """Records, by index, of tasks that failed, were cancelled, or started more than once."""
    step_at: float = 0.0
    """Clock time of the step in which the tasks ended."""
    run_starts: list[int] = field(default_factory=list)
    run_groups: list[Group] = field(default_factory=list)
    run_states: list[TaskState] = field(default_factory=list)
    """Final state of the tasks in each run."""

    def __len__(self) -> int:
        return len(self.ids)

    def run_of(self, index: int) -> tuple[Group, str]:
        """Return a task's group, and the name of its last worker (empty if none)."""
        run = bisect_right(self.run_starts, index) - 1
        return self.run_groups[run], getattr(self.run_states[run], "worker", "")

    def ran(self, index: int) -> tuple[Ran, int] | None:
        """Return the columns that record when and where a task ran, and its index in them; None if it never ran."""
        run = bisect_right(self.run_starts, index) - 1
        ran: Ran | None = getattr(self.run_states[run], "ran", None)
        try:  # same order, but `ran` may have additional tasks in between
            return (ran, ran.ids.index(self.ids[index], index - self.run_starts[run])) if ran is not None else None
        except ValueError:
            return None

    def record_of(self, index: int) -> FailureRecord:
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
    worker: str
    tasks: list[Task]
    ran: Ran


class TaskBlocked(NamedTuple):
    """A running task began to wait for its own tasks and lends out its slots, or resumed."""

    task: Task
    is_blocked: bool


@dataclass(frozen=True, slots=True)
class TaskRetried:
    """An attempt failed, and the task will be retried. worker: name. reason: attempt, worker, and error."""

    task: Task
    attempt: int
    worker: str
    reason: str


class TaskFailed(NamedTuple):
    """A task failed for a reason other than a failed input. ended: the task as a batch of one.

    run: the Run sent to its worker, with the functions of its spec and their payloads; None if the task never started
    or its client had left.
    """

    ended: TasksEnded
    functions: list[tuple[bytes, bytes]]
    run: RunGroup | None


@dataclass(frozen=True, slots=True)
class ScalingDecided:
    """Number of units that a manager should have, without draining units, and why. inputs: see `scaling.elastic`."""

    manager_id: str
    units: int
    draining: int
    reason: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Incident:
    """An event for operators, with ids for the log.

    kind: joined, left (a peer closed its session), lost (a peer did not), retried (a task), quarantined (a worker),
    packages (a worker's package versions differ from a client's), degraded (a manager that cannot start units),
    spend_limit (nearly spent, or reached), refused (a peer), policy (the scaling policy raised an exception or returned
    an invalid answer), protocol_error (a forbidden or invalid message from a peer was dropped).
    """

    kind: str
    subject: str
    text: str
    ids: dict[str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """An action by or on a peer, for the audit log.

    kind: submitted, cancelled, cleared, drained or shut down. peer: owner of the connection. count: number of tasks.
    key: key of the client, if it is inside a task and uses its worker's connection.
    """

    kind: str
    peer: bytes
    text: str
    count: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Expelled:
    peer: bytes
    text: str


class GroupBegan(NamedTuple):
    """A client submitted tasks with a new spec."""

    group: Group


class TasksArrived(NamedTuple):
    """Tasks with a context were submitted. Some may be repeats or rejected."""

    ids: Sequence[bytes]


class GroupEnded(NamedTuple):
    """A group's last live task ended, and its counts are final."""

    group: Group


class Noted(NamedTuple):
    """An event without an acting peer, such as the start or end of the scheduler. key: the affected key."""

    kind: str
    key: str = ""
    text: str = ""


class AdmissionRefused(NamedTuple):
    """A peer was not admitted. key: name of its proven key; empty if none."""

    text: str
    key: str = ""
    origin: str = ""


class KeysRead(NamedTuple):
    """Public keys that the scheduler accepts, and groups of keys, each as a `scaler.security.keys.Entry`."""

    entries: Mapping[str, Any]


class ProcessMeasured(NamedTuple):
    """Measurements of the scheduler's process, once per second. lag_seconds: its event loop's longest delay."""

    lag_seconds: float = 0.0
    rss_bytes: int = 0


class Told(NamedTuple):
    """A document that an extension's performer sends to its scheduler part: plain values, as in JSON."""

    extension: str
    document: Any


Observed = Opened | Closed | AdmissionRefused | Noted | KeysRead | ProcessMeasured | Told


# The changes below are for a journal. They record effects, not inputs, so a restarted scheduler can read them without
# applying rules. They omit clients inside tasks, which return with their workers.


class ClientJoined(NamedTuple):
    client: bytes
    hello: Hello
    identity: Identity


class ClientLeft(NamedTuple):
    client: bytes


class Submitted(NamedTuple):
    """A client sent tasks and functions. A Finished reports the rejected tasks."""

    client: bytes
    message: Submit


class ResultsRetained(NamedTuple):
    """Tasks of a client ended. The scheduler retains their results until they are dropped."""

    client: bytes
    message: Finished


class ValueRetained(NamedTuple):
    """The value of a task, which other tasks may need but its client does not. Precedes ResultsRetained."""

    task: bytes
    payload: bytes


class FailedInput(NamedTuple):
    """The failed input that dependents of a failed task name as the cause. Precedes the task's ResultsRetained."""

    task: bytes
    function: str
    failed: bytes


class Dropped(NamedTuple):
    """Retained results and functions that are no longer needed."""

    ids: Sequence[bytes]


class Dispatched(NamedTuple):
    """A task with retries=0 was sent to a worker."""

    task: bytes
    worker: bytes


class CancelAsked(NamedTuple):
    """A client asked to cancel tasks. The ids of ended and unknown tasks are ignored."""

    ids: Sequence[bytes]


class GivenBack(NamedTuple):
    """A worker returned a dispatched task without starting it."""

    task: bytes


Change = object
"""An instance of one of the classes above."""

OF_TASKS = frozenset((TasksStarted, TasksEnded, TaskRetried))

ROUTINE = ("joined", "left")
"""Kinds of incidents that the log contains but monitors do not list."""


def peer_incident(kind: str, peer: PeerRecord, text: str = "") -> Incident:
    """Return an incident about a peer. Managers are identified by name."""
    identity = peer.name if peer.role == "manager" else peer.id.hex()
    return Incident(kind, f"{peer.role} {peer.title}", text, {peer.role: identity})
