"""The records of an agent: attempts at tasks, the queue of those that are not dispatched, and processors. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import NamedTuple

from scaler.ids import PEER_ID_BYTES
from scaler.protocol.messages import Outcome, Spec
from scaler.worker.frames import Results, Snapshot, skip_rows

Rank = tuple[int, int]
"""Order of attempts, as in the scheduler: priority, then depth of nesting, both descending and so both negative."""
UNKNOWN_COST_US = 10_000.0
"""Assumed duration of a task whose function has no measurement."""
_WEIGHT = 0.25
DISPATCH_AHEAD_US = 10_000.0
"""Work that a processor has behind its running task, at most; but always one task."""
MAX_DISPATCHED = 256
_IDLE = Snapshot(0, 0.0, 0)


def micros(seconds: float) -> int:
    """Return a clock's reading in whole microseconds: the same as its nanoseconds // 1000, despite float rounding."""
    return int(seconds * 1e6 + 5e-4)


@dataclass(slots=True, eq=False)
class KnownSpec:
    """A spec of the scheduler, and the number by which processors know it."""

    number: int
    wire: Spec
    limit_seconds: float
    """0: none."""
    mean_us: float = UNKNOWN_COST_US
    """How long its tasks take here: a moving mean."""

    def observe(self, duration_us: float) -> None:
        if self.mean_us == UNKNOWN_COST_US:
            self.mean_us = float(duration_us)
        else:
            self.mean_us += _WEIGHT * (duration_us - self.mean_us)


class KillReason(NamedTuple):
    """What becomes of a running attempt that is ended."""

    outcome: Outcome
    text: str
    peak_bytes: int = 0
    """0: not known."""


CANCELLED = KillReason(Outcome.CANCELLED, "cancelled")
RECALLED = KillReason(Outcome.NOT_STARTED, "recalled")
"""Not for attempts that run: the request to give one back if it has not started, and to let it go on if it has."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of one task, from Run until Done or Returned."""

    id: bytes
    attempt: int
    spec: KnownSpec
    payload: bytes
    inputs: tuple[bytes, ...]
    rank: Rank
    place: int = 0
    """Its place among those of its rank: see `ROUND`."""
    executor: int = 0
    """Number of the processor that it was dispatched to, or of its call; 0: it is in the queue."""
    cost_us: float = 0.0
    """What it was assumed to cost when it was dispatched to a processor."""
    announced_started: bool = False
    request: KillReason | None = None
    """What is to become of it when its processor's tasks are reclaimed."""
    dispatched_at: float = 0.0
    started_at: float = 0.0
    """These two: of a call. 0: it has not started, as far as is known."""
    lane: int = 0
    """Of a call."""
    devices: tuple[int, ...] = ()
    """Indexes of its gpus among those of this worker."""
    follower: Attempt | None = None
    """What runs as soon as this has succeeded, with its value."""
    is_sent_with_follower: bool = False
    """Its processor goes on with the follower by itself."""
    is_reported: bool = False
    """It follows another one, and a restarted scheduler was told that it is here: it must be given back."""

    def run(self) -> Iterator[Attempt]:
        """Yield this, and what its processor does behind it by itself."""
        item: Attempt | None = self
        while item is not None:
            yield item
            item = item.follower if item.is_sent_with_follower else None

    def followers(self) -> Iterator[Attempt]:
        """Yield what is to run behind this, in order."""
        item = self.follower
        while item is not None:
            yield item
            item = item.follower

    def fill(self, value: bytes) -> None:
        """Take the payload of the value of the task before."""
        self.inputs = tuple([each or value for each in self.inputs])


_Entry = tuple[Rank, int, Attempt]
ROUND = 1 << 40
"""A place is the number of a client's turn, times this, and the number of the arrival: one integer compares quickly."""


class AttemptQueue:
    """Attempts that are not dispatched: by rank, then clients go round robin, first in, first out within a client. So
    the single task of a client waits for one task of each other client here, whatever those have queued. What is put
    back has its old place.

    Removal is O(1): the removed are skipped. Invariant: `attempts` has every attempt that is here or dispatched;
    `waiting` counts the former.
    """

    def __init__(self) -> None:
        self.attempts: dict[bytes, Attempt] = {}
        self._in_order: deque[_Entry] = deque()
        """Those that came in the order in which they are taken."""
        self._heap: list[_Entry] = []
        """The others."""
        self._round = 0
        """Of the attempt that was taken last."""
        self._rounds: dict[bytes, int] = {}
        """Of the last attempt of each client."""
        self.waiting = 0
        self.added = 0
        """Attempts that ever came; those that are put back do not count."""

    def rank(self, spec: Spec) -> Rank:
        """Return the rank of tasks: children go before their parent's siblings, so that fewer parents wait at once."""
        if not spec.parent:
            return (-spec.priority, 0)
        parent = self.attempts.get(spec.parent)
        return (-spec.priority, -1 if parent is None else parent.rank[1] - 1)

    def add(self, items: Iterable[Attempt], room: int) -> list[Attempt]:
        """Add attempts while there is room for more. Returns those that are not added: it has them, or is full."""
        attempts, rounds, present = self.attempts, self._rounds, self._round
        added, in_order, refused = self.added, self._in_order, list[Attempt]()
        full = added + room
        for item in items:
            if added >= full or item.id in attempts:
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
        """Return the next one that a task has submitted; the others keep their places."""
        passed = []
        while (item := self.take()) is not None and not item.rank[1]:
            passed.append(item)
        self.put_back(passed)
        return item

    def put_back(self, items: Iterable[Attempt]) -> None:
        """Put attempts that were dispatched to where they were."""
        for item in items:
            item.executor = 0
            item.request = None
            item.is_sent_with_follower = False
            heapq.heappush(self._heap, (item.rank, item.place, item))
            self.waiting += 1

    def follow(self, before: Attempt, item: Attempt) -> None:
        """Put an attempt in the place of the one before, which has ended."""
        self.attempts[item.id] = item
        item.place = before.place
        self.put_back((item,))

    def remove(self, items: Iterable[Attempt]) -> None:
        """Forget attempts that are in the queue."""
        for item in items:
            del self.attempts[item.id]
            self.waiting -= 1
        if not self.waiting:
            self._in_order.clear()
            self._heap.clear()

    def drain(self) -> list[Attempt]:
        """Forget all that are in the queue; return them in their order."""
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
    """Asked to end, or killed; its exit has not been seen."""


@dataclass(slots=True, eq=False)
class PooledProcessor:
    """One processor as its agent knows it."""

    number: int
    since: float
    lane: int
    """Its place in the worker's timeline: no other living processor has the same."""
    state: ProcessorState = ProcessorState.ACTIVE
    is_ready: bool = False
    made_at: float = 0.0
    dispatched: deque[Attempt] = field(default_factory=deque)
    """Attempts without a result yet, in order: it works through them one by one."""
    work_us: float = 0.0
    results: int = 0
    snapshot: Snapshot = _IDLE
    specs: set[int] = field(default_factory=set)
    functions: set[bytes] = field(default_factory=set)
    ended: set[KnownSpec] = field(default_factory=set)
    """Specs of tasks that have ended since the last sample of its memory."""
    kill_reason: KillReason | None = None
    is_worn: bool = False
    """It gets no more tasks, and is replaced when it has ended those that it has."""
    is_yielding: bool = False
    """It gives its slot to a waiting one after the task that it runs."""
    is_paused: bool = False
    waits_for: str = ""
    """What its running task waits for besides tasks of its own; empty: nothing."""
    is_reclaiming: bool = False
    rests_until: float = 0.0
    """Until then its task waits, and there is nothing to watch."""
    progress_at: float = 0.0
    """When it was last seen to have nothing to read, or to have read a task."""
    batch: int = -1
    """The batch of results that was read last, and how many of its rows."""
    rows_taken: int = 0

    @property
    def runs(self) -> Iterator[Attempt]:
        """Yield what it has without a result yet, in the order in which it does it."""
        return chain.from_iterable(item.run() for item in self.dispatched)

    @property
    def first_task(self) -> bytes:
        """Id of the first task without a result here; empty without one."""
        return self.dispatched[0].id if self.dispatched else b""

    def running_seconds(self, now: float) -> float:
        """Return how long the task that it runs has run; 0 when it runs none whose result is not here."""
        return now - self.snapshot.begun_at if self.snapshot.begun > self.results else 0.0

    def has_capacity(self) -> bool:
        dispatched = self.dispatched
        count = len(dispatched)
        if self.is_worn:
            return False
        if count < 2:
            return True
        return count < MAX_DISPATCHED and self.work_us - dispatched[0].cost_us < DISPATCH_AHEAD_US

    def new_rows(self, results: Results, sent: bool) -> Results:
        """Return the new rows of a batch, whose first rows may be known from the page. sent: it is complete."""
        taken = self.rows_taken if results.batch == self.batch else 0
        self.batch = results.batch
        self.rows_taken = 2**32 if sent else max(taken, len(results.rows))
        return skip_rows(results, taken) if taken else results
