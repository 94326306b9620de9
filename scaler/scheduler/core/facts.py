"""What happened, for monitors and logs. A batch of tasks makes one fact, never one per task.

Facts are collected only while somebody wants them, and bounded: beyond `MAX_PENDING_FACTS` the oldest go.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MAX_PENDING_FACTS = 100_000


@dataclass(frozen=True, slots=True)
class TasksSubmitted:
    client: bytes
    name: str
    ids: list[bytes]


@dataclass(frozen=True, slots=True)
class TasksSent:
    worker: bytes
    name: str
    ids: list[bytes]


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """Columns: outcome and microseconds of wall time per task."""

    client: bytes
    ids: list[bytes]
    outcomes: list[int]
    duration_us: list[int]


@dataclass(frozen=True, slots=True)
class TaskRetried:
    task: bytes
    worker: bytes
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
class PeerNonsense:
    """A peer said something that it may not, or that makes no sense; it was dropped."""

    peer: bytes
    text: str


Fact = (
    TasksSubmitted
    | TasksSent
    | TasksEnded
    | TaskRetried
    | PeerJoined
    | PeerLost
    | WorkerQuarantined
    | ScalingDecided
    | PolicyFailed
    | PeerNonsense
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
