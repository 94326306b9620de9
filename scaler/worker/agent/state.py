"""Records of an agent: attempts, the queue, and processors. Pure."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from scaler.ids import PEER_ID_BYTES
from scaler.protocol.messages import Outcome, Spec
from scaler.worker.frames import Results, Snapshot, skip_rows

Rank = tuple[int, int]
"""Sort key of attempts, as in the scheduler: negated priority, negated nesting depth."""
UNKNOWN_COST_US = 10_000.0
WEIGHT = 0.25
DISPATCH_AHEAD_US = 10_000.0
"""Maximum work queued behind a processor's running task; at least one task is queued in any case."""
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
    """Name whose tasks should run in the same processor."""


class KillReason(NamedTuple):
    """Outcome of a killed attempt. peak_bytes: 0 if unknown."""

    outcome: Outcome
    text: str
    peak_bytes: int = 0


CANCELLED = KillReason(Outcome.CANCELLED, "cancelled")
RECALLED = KillReason(Outcome.NOT_STARTED, "recalled")
"""Request to return an attempt unless it has started."""
PREEMPTED = KillReason(Outcome.NOT_STARTED, "stopped for another task")
"""Request to return an attempt, and to stop it if it has started. It may still end within its grace period."""


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
    """Order among attempts of equal rank; see `ROUND`."""
    executor: int = 0
    """Number of its processor or call; 0: queued."""
    cost_us: float = 0.0
    announced_started: bool = False
    request: KillReason | None = None
    """Action to take when its processor's tasks are reclaimed."""
    dispatched_at: float = 0.0
    started_at: float = 0.0
    """Only for calls, like dispatched_at and lane. 0: not known to have started."""
    lane: int = 0
    devices: tuple[int, ...] = ()


_Entry = tuple[Rank, int, Attempt]
ROUND = 1 << 40
"""A place is round * ROUND + arrival number. A single integer compares fast."""


class AttemptQueue:
    """Undispatched attempts by rank, then round robin over clients, then first in, first out.

    A client's single task waits for at most one task of each other client. Requeued attempts keep their places. Removed
    attempts are skipped lazily, in O(1). Invariants: `attempts` has all queued and dispatched attempts; `waiting` is
    the number of queued ones.
    """

    def __init__(self) -> None:
        self.attempts: dict[bytes, Attempt] = {}
        self._in_order: deque[_Entry] = deque()
        """Entries that arrived in dispatch order. The heap contains the rest."""
        self._heap: list[_Entry] = []
        self._round = 0
        self._rounds: dict[bytes, int] = {}
        self.waiting = 0
        self.added = 0
        """Number of attempts ever added, excluding requeued ones."""

    def nested_rank(self, spec: Spec) -> Rank:
        """Return the rank of nested tasks. They precede their parent's siblings, so that fewer parents wait at once."""
        parent = self.attempts.get(spec.parent)
        return (-spec.priority, -1 if parent is None else parent.rank[1] - 1)

    def add(self, items: Iterable[Attempt]) -> list[Attempt]:
        """Add attempts. Returns the refused attempts, whose tasks it already has."""
        attempts, rounds, present = self.attempts, self._rounds, self._round
        added, in_order, refused = self.added, self._in_order, list[Attempt]()
        for item in items:
            if item.id in attempts:
                refused.append(item)
                continue
            added += 1
            client = item.id[:PEER_ID_BYTES]
            last = rounds.get(client, 0)
            number = rounds[client] = (last if last > present else present) + 1  # noqa: FURB136 (max takes longer)
            item.place = number * ROUND + added
            attempts[item.id] = item
            entry = item.rank, item.place, item
            if not in_order or in_order[-1] < entry:
                in_order.append(entry)
            else:
                heapq.heappush(self._heap, entry)
        self.waiting += added - self.added
        self.added = added
        if len(rounds) > 64 + 2 * self.waiting:
            self._rounds = {each: last for each, last in rounds.items() if last > present}
        return refused

    def take(self) -> Attempt | None:
        in_order, heap = self._in_order, self._heap
        while in_order or heap:
            if heap and not (in_order and in_order[0] < heap[0]):
                item = heapq.heappop(heap)[2]
            else:
                item = in_order.popleft()[2]
            if self.attempts.get(item.id) is item:
                self.waiting -= 1
                self._round = item.place // ROUND
                return item
        return None

    def take_nested(self) -> Attempt | None:
        passed = []
        while (item := self.take()) is not None and not item.rank[1]:
            passed.append(item)
        self.put_back(passed)
        return item

    def put_back(self, items: Iterable[Attempt]) -> None:
        for item in items:
            item.executor = 0
            item.request = None
            heapq.heappush(self._heap, (item.rank, item.place, item))
            self.waiting += 1

    def remove(self, items: Iterable[Attempt]) -> None:
        for item in items:
            del self.attempts[item.id]
            self.waiting -= 1
        if not self.waiting:
            self._in_order.clear()
            self._heap.clear()

    def drain(self) -> list[Attempt]:
        items = []
        while (item := self.take()) is not None:
            del self.attempts[item.id]
            items.append(item)
        return items


class ProcessorState(Enum):
    ACTIVE = "active"
    SPARE = "spare"
    SUSPENDED = "suspended"
    WAITING = "waiting"
    ENDING = "ending"
    """Asked to exit, or killed; the exit has not been detected."""


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
    """Names (`KnownSpec.near`) of tasks sent to it, most recent last, each with whether such a task has ended."""
    kill_reason: KillReason | None = None
    kill_at: float = math.inf
    """End of the grace period after SIGTERM."""
    is_worn: bool = False
    """Receives no more tasks and is replaced once its tasks have finished."""
    is_yielding: bool = False
    """Hands over its slot to a waiting processor after the running task."""
    waits_for: str = ""
    """What its running task waits for other than nested tasks; "": nothing."""
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
        """Return the estimated time of its tasks; of an overdue task, the time that it has run."""
        return max(self.work_us, 1e6 * self.running_seconds(now)) if self.dispatched else 0.0

    def may_take(self) -> bool:
        is_open = self.state is ProcessorState.ACTIVE and self.is_ready and not self.is_worn
        return is_open and not (self.is_yielding or self.is_reclaiming) and len(self.dispatched) < MAX_DISPATCHED

    def has_capacity(self) -> bool:
        dispatched = self.dispatched
        count = len(dispatched)
        if self.is_worn:
            return False
        if count < 2:
            return True
        return count < MAX_DISPATCHED and self.work_us - dispatched[0].cost_us < DISPATCH_AHEAD_US

    def new_rows(self, results: Results, sent: bool) -> Results:
        """Return the new rows of a batch whose head may have been read from the page. sent: the batch is complete."""
        taken = self.rows_taken if results.batch == self.batch else 0
        self.batch = results.batch
        self.rows_taken = 2**32 if sent else max(taken, len(results.rows))
        return skip_rows(results, taken) if taken else results
