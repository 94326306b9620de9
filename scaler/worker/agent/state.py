"""Records of an agent: attempts and processors. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from scaler.protocol.messages import Outcome, Spec
from scaler.worker.frames import Snapshot

Rank = tuple[int, int]
"""Sort key of attempts, as in the scheduler: negated priority, negated nesting depth."""
UNKNOWN_COST_US = 10_000.0
WEIGHT = 0.25
DISPATCH_AHEAD_US = 10_000.0
"""Maximum estimated time (us) of tasks queued behind a running task. One task may always be queued."""
MAX_DISPATCHED = 256
_IDLE = Snapshot(0, 0.0, 0)


def micros(seconds: float) -> int:
    """Return whole microseconds, equal to nanoseconds // 1000 despite float rounding."""
    return int(seconds * 1e6 + 5e-4)


@dataclass(slots=True, eq=False)
class KnownSpec:
    number: int
    wire: Spec
    limit_seconds: float
    mean_us: float = UNKNOWN_COST_US
    is_measured: bool = False
    near: str = ""
    """Tasks with equal names should run in the same processor."""


class KillReason(NamedTuple):
    """Outcome of a killed attempt. peak_bytes: 0 if unknown."""

    outcome: Outcome
    text: str
    peak_bytes: int = 0


CANCELLED = KillReason(Outcome.CANCELLED, "cancelled")
RECALLED = KillReason(Outcome.NOT_STARTED, "recalled")
"""Request to return an attempt unless it has started."""
PREEMPTED = KillReason(Outcome.NOT_STARTED, "stopped for another task")
"""Request to return an attempt, and to stop it if it has started. The task may still finish in its grace period."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a task, from Run until Done or Returned."""

    id: bytes
    attempt: int
    spec: KnownSpec
    payload: bytes
    inputs: tuple[bytes, ...]
    rank: Rank
    place: int = 0
    """Order among attempts of equal rank; see `base.ROUND`."""
    executor: int = 0
    """Number of its processor or call; 0: queued."""
    cost_us: float = 0.0
    announced_started: bool = False
    request: KillReason | None = None
    """Action to take when its processor's tasks are reclaimed."""
    dispatched_at: float = 0.0
    started_at: float = 0.0
    """Set only for calls, like dispatched_at and lane. 0: no start has been reported."""
    lane: int = 0
    devices: tuple[int, ...] = ()


class ProcessorState(Enum):
    ACTIVE = "active"
    SPARE = "spare"
    SUSPENDED = "suspended"
    WAITING = "waiting"
    ENDING = "ending"
    """Asked to exit, or killed, but not known to have exited."""


@dataclass(slots=True, eq=False)
class PooledProcessor:
    number: int
    since: float
    lane: int
    """Row in the worker's timeline, unique among living processors."""
    environment: bytes = b""
    state: ProcessorState = ProcessorState.ACTIVE
    is_ready: bool = False
    made_at: float = 0.0
    dispatched: deque[Attempt] = field(default_factory=deque)
    """Attempts without a result, in execution order."""
    work_us: float = 0.0
    results: int = 0
    snapshot: Snapshot = _IDLE
    specs: set[int] = field(default_factory=set)
    functions: set[bytes] = field(default_factory=set)
    ended: set[KnownSpec] = field(default_factory=set)
    names: dict[str, bool] = field(default_factory=dict)
    """Names (`KnownSpec.near`) of tasks sent here, most recent last, each with whether one of its tasks has ended."""
    kill_reason: KillReason | None = None
    kill_at: float = math.inf
    """End of the grace period after SIGTERM."""
    is_worn: bool = False
    """Receives no more tasks and is replaced once its tasks have finished."""
    is_yielding: bool = False
    """Yields its slot to a waiting processor after the running task."""
    waits_for: str = ""
    """Reason why its running task waits, other than nested tasks; "": none."""
    is_reclaiming: bool = False
    rests_until: float = 0.0
    """Time before which a waiting task needs no checks."""
    progress_at: float = 0.0
    """Time at which the processor last read a task or had none to read."""
    batch: int = -1
    """Last batch of results read. rows_taken: number of its rows processed."""
    rows_taken: int = 0

    @property
    def first_task(self) -> bytes:
        return self.dispatched[0].id if self.dispatched else b""

    def running_seconds(self, now: float) -> float:
        return now - self.snapshot.begun_at if self.snapshot.begun > self.results else 0.0

    def left_us(self, now: float) -> float:
        """Return the estimated time of the dispatched tasks; at least the running time of the current task."""
        return max(self.work_us, 1e6 * self.running_seconds(now)) if self.dispatched else 0.0

    def may_take(self) -> bool:
        is_open = self.state is ProcessorState.ACTIVE and self.is_ready and not self.is_worn
        return is_open and not (self.is_yielding or self.is_reclaiming) and len(self.dispatched) < MAX_DISPATCHED
