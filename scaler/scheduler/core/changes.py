"""Changes: what happened to the cluster. Pure.

The journal, the log, monitors, and extensions subscribe to kinds of changes (`rooms.py`). A kind without subscribers is
not built. A batch of tasks makes one change, never one per task.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scaler.net.connection import Closed, Opened
from scaler.net.identity import Identity
from scaler.protocol.failures import FailureTexts, failure_texts
from scaler.protocol.messages import Finished, Hello, Outcome, Submit
from scaler.scheduler.core.durable import Label
from scaler.scheduler.core.state import TERMINATED, Group, PeerRecord, Ran, ScalingDecided, Task, TaskState

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
    last_group: Group | None = None
    """Of the last run, as `last_state`."""
    last_state: TaskState | None = None

    def __len__(self) -> int:
        return len(self.ids)

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


class GroupBegan(NamedTuple):
    """A client has tasks of a spec."""

    group: Group


class GroupEnded(NamedTuple):
    """No task of a group is alive any more: what it counts is final."""

    group: Group


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


class ClientJoined(NamedTuple):
    """A client has opened a session."""

    client: bytes
    hello: Hello
    identity: Identity


class ClientLeft(NamedTuple):
    """Everything of a client was dropped."""

    client: bytes


class Submitted(NamedTuple):
    """A client sent tasks and functions. Those that the scheduler did not accept end in a Finished."""

    client: bytes
    message: Submit


class ResultsRetained(NamedTuple):
    """Tasks of a client ended; the scheduler retains their results until they are dropped."""

    client: bytes
    message: Finished


class ValueRetained(NamedTuple):
    """The value of a task whose client did not want it. Other tasks may need it. Precedes ResultsRetained."""

    task: bytes
    payload: bytes


class FailedInput(NamedTuple):
    """Function and id that dependents of a failed task report as failed input. Precedes the task's ResultsRetained."""

    task: bytes
    function: str
    failed: bytes


class Dropped(NamedTuple):
    """Retained results and functions that nothing needs any more."""

    ids: Sequence[bytes]


class Dispatched(NamedTuple):
    """A task that may start once only was sent to a worker."""

    task: bytes
    worker: bytes


class GivenBack(NamedTuple):
    """A worker gave a dispatched task back that had not started."""

    task: bytes


class Labelled(NamedTuple):
    """Only in snapshots: what a durable session knows of its tasks, in the order of their submission."""

    client: bytes
    labels: Mapping[bytes, Label]


Journaled = (
    ClientJoined
    | ClientLeft
    | Submitted
    | ResultsRetained
    | ValueRetained
    | FailedInput
    | Dropped
    | Dispatched
    | GivenBack
    | Labelled
)
"""Changes that a restarted scheduler needs: effects and not inputs, so that a reader needs no rules of the core.

Clients inside tasks are left out: they come back with their workers.
"""

Change = (
    TasksStarted
    | GroupBegan
    | GroupEnded
    | SlotsWorked
    | TasksEnded
    | TaskRetried
    | ScalingDecided
    | Incident
    | Action
    | Expelled
    | Observed
    | Journaled
)

OF_TASKS = frozenset((TasksStarted, SlotsWorked, TasksEnded, TaskRetried))

ROUTINE = ("joined", "left")
"""Kinds of incidents that are no problem: the log has them, monitors do not list them."""


def peer_incident(kind: str, peer: PeerRecord, text: str = "") -> Incident:
    """Return an incident of a client, worker or manager; logs know managers by their names."""
    identity = peer.name if peer.role == "manager" else peer.id.hex()
    return Incident(kind, f"{peer.role} {peer.title}", text, {peer.role: identity})
