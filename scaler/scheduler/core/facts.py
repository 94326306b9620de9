"""What happened, for monitors and logs. A batch of tasks makes one fact, never one per task.

Facts are collected only while somebody wants them, and bounded: beyond `MAX_PENDING_FACTS` the oldest go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaler.serialization.exceptions import FailureTexts, failure_texts

if TYPE_CHECKING:
    from scaler.scheduler.core.state import Group, Task, TaskState

MAX_PENDING_FACTS = 100_000


class FailureRecord:
    """What is kept of a task that did not just succeed at its first attempt.

    payload is empty after a success. evidence: what went wrong on the way, in order.
    """

    __slots__ = ("attempt", "payload", "texts")

    def __init__(self, attempt: int, payload: bytes, evidence: list[str]) -> None:
        self.attempt = attempt
        self.payload = payload
        self.texts = evidence


class TasksEnded:
    """Tasks that ended in one step, in columns, without their results: one fact per batch, whatever its size.

    cpu_us and peak_bytes are empty when none was profiled. Tasks of one function that end on one worker follow each
    other mostly, so that function and worker are kept per run of such tasks, and cost nothing per task. The tasks
    themselves are not kept: each would be an object for the collector to look at.
    """

    __slots__ = (
        "_runs",
        "cpu_us",
        "duration_us",
        "failure_records",
        "group",
        "ids",
        "outcomes",
        "peak_bytes",
        "step_at",
        "terminated",
    )

    def __init__(
        self,
        group: Group,
        terminated: TaskState,
        ids: list[bytes],
        outcomes: list[int],
        duration_us: list[int],
        cpu_us: list[int],
        peak_bytes: list[int],
    ) -> None:
        """Begin with a run of tasks of this group that ended in this state. The columns are filled by their owner."""
        self.ids = ids
        self.outcomes = outcomes
        self.duration_us = duration_us
        self.cpu_us = cpu_us
        self.peak_bytes = peak_bytes
        self.failure_records: dict[int, FailureRecord] = {}
        """By index, those that failed, were cancelled, or were sent more than once."""
        self.step_at = 0.0
        """The clock's time of the step in which they ended."""
        self.group = group
        """Of the last run, as `gone`."""
        self.terminated = terminated
        self._runs: list[tuple[int, Group, TaskState]] = []
        """Runs that are over: the index behind their last task, their group, their state."""

    def __len__(self) -> int:
        return len(self.ids)

    def begin_run(self, index: int, group: Group, terminated: TaskState) -> None:
        """Note that the task of this index and those behind it are of another group or worker than those before."""
        self._runs.append((index, self.group, self.terminated))
        self.group = group
        self.terminated = terminated

    def count_time(self) -> None:
        """Add what these tasks took to their functions' sums. Once, when no more come."""
        begin = 0
        for end, group, _ in self._runs:
            group.function.wall_us += sum(self.duration_us[begin:end])
            begin = end
        self.group.function.wall_us += sum(self.duration_us[begin:] if begin else self.duration_us)

    def function(self, index: int) -> str:
        return self._run(index)[0].spec.name

    def client(self, index: int) -> str:
        return self._run(index)[0].client.name

    def worker(self, index: int) -> str:
        """Return the name of the worker that had it when it ended; empty when none did."""
        return getattr(self._run(index)[1], "worker", "")

    def attempt(self, index: int) -> int:
        """Return how often it was sent to a worker."""
        odd = self.failure_records.get(index)
        return 1 if odd is None else odd.attempt

    def attempt_errors(self, index: int) -> list[str]:
        """Return what went wrong on the way, in order."""
        odd = self.failure_records.get(index)
        return [] if odd is None else odd.texts

    def failure(self, index: int) -> FailureTexts:
        """Return what one that did not succeed says of it."""
        return failure_texts(self.outcomes[index], self.failure_records[index].payload)

    def profile(self, index: int) -> tuple[int, int, int]:
        """Return wall time and CPU time in microseconds, and the peak of memory in bytes; 0 for what is not known."""
        if not self.cpu_us:
            return self.duration_us[index], 0, 0
        return self.duration_us[index], self.cpu_us[index], self.peak_bytes[index]

    def _run(self, index: int) -> tuple[Group, TaskState]:
        place = bisect_right(self._runs, index, key=_end_of)
        if place == len(self._runs):
            return self.group, self.terminated
        return self._runs[place][1:]


def _end_of(run: tuple[int, Group, TaskState]) -> int:
    return run[0]


@dataclass(frozen=True, slots=True)
class TasksStarted:
    """Tasks that run on a worker, and have done so for a while."""

    worker: str
    tasks: list[Task]


@dataclass(frozen=True, slots=True)
class TaskRetried:
    """An attempt failed, and another one follows. worker: the name of the one that had it.

    reason: which attempt it was, where, and what happened to it.
    """

    task: Task
    attempt: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class PeerJoined:
    kind: str
    peer: bytes
    name: str


@dataclass(frozen=True, slots=True)
class PeerLost:
    kind: str
    peer: bytes
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerQuarantined:
    worker: bytes
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScalingInputs:
    """What a scaling decision about one manager was made from. Tasks are those that its workers could run."""

    queued: int
    running: int
    unmeasured: int
    """Of these: tasks of functions none of which has ended yet."""
    backlog_seconds: float
    """What the others take on one slot; running ones count half."""
    units_running: int
    units_pending: int
    units_idle: int
    startup_seconds: float | None
    """Measured; None until a unit has connected."""
    max_units: int | None
    """None for any number."""
    trouble: str


@dataclass(frozen=True, slots=True)
class ScalingDecided:
    """How many units a manager should have from now on (those that drain not counted), and why, as one sentence."""

    manager_id: str
    units: int
    draining: int
    reason: str
    inputs: ScalingInputs


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    """The scaling policy raised, or answered nonsense; text says which, with the policy's own traceback."""

    text: str


@dataclass(frozen=True, slots=True)
class PeerProtocolError:
    """A peer said something that it may not, or that makes no sense; it was dropped."""

    peer: bytes
    text: str


Fact = (
    TasksStarted
    | TasksEnded
    | TaskRetried
    | PeerJoined
    | PeerLost
    | WorkerQuarantined
    | ScalingDecided
    | PolicyFailed
    | PeerProtocolError
)


class Facts:
    """Collects facts. Those about single peers and decisions always; those about tasks only when `watched` is set."""

    __slots__ = ("_pending", "dropped", "watched")

    def __init__(self) -> None:
        self.watched = False
        self.dropped = 0
        self._pending: deque[Fact] = deque()

    def add(self, fact: Fact) -> None:
        if len(self._pending) >= MAX_PENDING_FACTS:
            self._pending.popleft()
            self.dropped += 1
        self._pending.append(fact)

    def drain(self) -> list[Fact]:
        """Return all facts since the last call, oldest first."""
        facts = list(self._pending)
        self._pending.clear()
        return facts
