"""What an agent holds: attempts that the scheduler sent, and the specs and definitions that they refer to. Pure."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from scaler.protocol.messages import Spec
from scaler.worker.frames import SpecFlag, SpecFrame

Rank = tuple[int, int]
"""Order of attempts, as in the scheduler: priority, then depth of nesting, both descending and so both negative."""
MAX_SPECS = 4096
"""Specs that an agent remembers. One that returns after it fell out is announced to the processors anew."""
UNKNOWN_COST_US = 10_000.0
"""What a task of a function without a measurement is taken to cost."""
_WEIGHT = 0.25


class Pace:
    """How long the tasks of one function take here: a moving mean, in microseconds."""

    __slots__ = ("mean_us",)

    def __init__(self) -> None:
        self.mean_us = UNKNOWN_COST_US

    def observe(self, duration_us: float) -> None:
        if self.mean_us == UNKNOWN_COST_US:
            self.mean_us = float(duration_us)
        else:
            self.mean_us += _WEIGHT * (duration_us - self.mean_us)


class KnownSpec:
    """A spec under the number by which processors know it."""

    __slots__ = ("frame", "limit_seconds", "number", "pace", "retries")

    def __init__(self, number: int, spec: Spec, pace: Pace, limit_seconds: float) -> None:
        flags = SpecFlag.PROFILING * spec.profiling | SpecFlag.STREAM_OUTPUT * spec.stream_output
        self.number = number
        self.pace = pace
        self.retries = spec.retries
        self.limit_seconds = limit_seconds
        """0: none."""
        self.frame = SpecFrame(
            number=number,
            flags=flags | SpecFlag.ONCE * (spec.retries == 0),
            function=spec.function,
            serializer=spec.serializer,
            retry_on=spec.retry_on,
            name=spec.name,
        )

    @property
    def definitions(self) -> tuple[bytes, ...]:
        """Ids of the definitions that a processor needs for it."""
        frame = self.frame
        return (frame.function, frame.serializer) if frame.serializer else (frame.function,)


class Library:
    """The definitions that the scheduler has said, and the specs that came lately."""

    def __init__(self, task_timeout_seconds: float) -> None:
        """task_timeout_seconds: the limit of every task here, 0 for none."""
        self._timeout_seconds = task_timeout_seconds
        self._specs: OrderedDict[Spec, KnownSpec] = OrderedDict()
        self._numbers = 0
        self._paces: OrderedDict[bytes, Pace] = OrderedDict()
        self.definitions: dict[bytes, bytes] = {}

    def know(self, spec: Spec) -> tuple[KnownSpec, KnownSpec | None]:
        """Return the spec under its number, and the one that was forgotten for it, if any.

        Who submitted a task makes no difference to those who run it: such specs are one.
        """
        if spec.parent:
            spec = replace(spec, parent=b"")
        known = self._specs.get(spec)
        if known is not None:
            self._specs.move_to_end(spec)
            return known, None
        self._numbers += 1
        limits = [limit for limit in (spec.timeout_seconds, self._timeout_seconds) if limit > 0]
        known = KnownSpec(self._numbers, spec, self._pace(spec.function), min(limits, default=0.0))
        self._specs[spec] = known
        evicted = self._specs.popitem(last=False)[1] if len(self._specs) > MAX_SPECS else None
        return known, evicted

    def undefine(self, identifiers: Iterable[bytes]) -> list[KnownSpec]:
        """Forget definitions; return the specs that were forgotten with them."""
        gone = set(identifiers)
        for identifier in gone:
            self.definitions.pop(identifier, None)
            self._paces.pop(identifier, None)
        stale = [spec for spec in self._specs if spec.function in gone or spec.serializer in gone]
        return [self._specs.pop(spec) for spec in stale]

    def clear(self) -> None:
        """Forget everything; numbers are not used again."""
        self._specs.clear()
        self._paces.clear()
        self.definitions.clear()

    def _pace(self, function: bytes) -> Pace:
        pace = self._paces.get(function)
        if pace is None:
            pace = self._paces[function] = Pace()
            if len(self._paces) > MAX_SPECS:
                self._paces.popitem(last=False)
        return pace


class Attempt:
    """One attempt of one task, from Run until Done or Returned."""

    __slots__ = ("attempt", "cost_us", "id", "inputs", "payload", "processor", "rank", "said_started", "spec")

    def __init__(
        self,
        identifier: bytes,
        attempt: int,
        spec: KnownSpec,
        payload: bytes,
        inputs: tuple[bytes, ...],
        rank: Rank,
    ) -> None:
        self.rank = rank
        self.id = identifier
        self.attempt = attempt
        self.spec = spec
        self.payload = payload
        self.inputs = inputs
        self.cost_us = 0.0
        """What it was taken to cost when it was fed."""
        self.processor = 0
        """Number of the processor that it was fed to; 0: it is in the queue."""
        self.said_started = False


class Queue:
    """Attempts that are not fed: by rank, and first in first out within one. Removal is O(1): the removed are skipped.

    Invariant: `attempts` has every attempt that is here or with a processor; `len(queue)` counts the former.
    """

    def __init__(self) -> None:
        self.attempts: dict[bytes, Attempt] = {}
        self._lanes: dict[Rank, deque[Attempt]] = {}
        self._ranks: list[Rank] = []
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def rank(self, spec: Spec) -> Rank:
        """Return the rank of tasks: children go before their parent's siblings, so that fewer parents wait at once."""
        if not spec.parent:
            return (-spec.priority, 0)
        parent = self.attempts.get(spec.parent)
        return (-spec.priority, -1 if parent is None else parent.rank[1] - 1)

    def add(self, attempt: Attempt) -> None:
        self.attempts[attempt.id] = attempt
        self._lane(attempt.rank).append(attempt)
        self._waiting += 1

    def take(self) -> Attempt | None:
        """Take the first one out, to be fed."""
        attempts = self.attempts
        ranks = self._ranks
        while ranks:
            lane = self._lanes[ranks[0]]
            while lane:
                item = lane.popleft()
                if attempts.get(item.id) is item:
                    self._waiting -= 1
                    return item
            del self._lanes[ranks.pop(0)]
        return None

    def put_back(self, items: Iterable[Attempt]) -> None:
        """Put attempts that were fed, in their order, before all others of their rank."""
        for item in reversed(list(items)):
            item.processor = 0
            self._lane(item.rank).appendleft(item)
            self._waiting += 1

    def remove(self, item: Attempt) -> None:
        """Forget an attempt that is in the queue."""
        del self.attempts[item.id]
        self._waiting -= 1
        if not self._waiting:
            self._lanes.clear()
            self._ranks.clear()

    def drain(self) -> Iterator[Attempt]:
        """Forget all that are in the queue, yielding them in their order."""
        while (item := self.take()) is not None:
            del self.attempts[item.id]
            yield item

    def _lane(self, rank: Rank) -> deque[Attempt]:
        lane = self._lanes.get(rank)
        if lane is None:
            lane = self._lanes[rank] = deque()
            insort(self._ranks, rank)
        return lane
