"""The processors of an agent and who of them holds a slot. Pure.

A processor whose task waits for tasks of its own is *suspended* and lends its slot; when its wait is over it *waits*
for a slot, ahead of all new tasks. *Spare* processors hold none and are kept a while: nested tasks come in bursts.

Invariants: at most `slots` processors are active; only active ones are fed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from scaler.worker.attempts import Attempt
from scaler.worker.frames import Results, skip_rows

FEED_AHEAD_US = 10_000.0
"""Work that a processor has behind its running task, at most; but always one task."""
MAX_FED = 256
SPARE_SECONDS = 10.0
MAX_SUSPENDED = 1000
"""Suspended processors of one agent. Beyond it slots are not lent: the machine's memory comes first."""


class Standing(Enum):
    ACTIVE = "active"
    SPARE = "spare"
    SUSPENDED = "suspended"
    WAITING = "waiting"
    ENDING = "ending"
    """Told to end, or killed; its exit has not been seen."""


@dataclass(frozen=True, slots=True)
class Doom:
    """What becomes of the running attempt of a processor that was killed. Outcome None: it is forgotten."""

    outcome: int | None
    text: str


class Processor:
    """One processor as its agent knows it."""

    __slots__ = (
        "_batch",
        "_rows_seen",
        "definitions",
        "doom",
        "fed",
        "number",
        "paused",
        "ready",
        "resulted",
        "since",
        "specs",
        "standing",
        "work_us",
        "yielding",
    )

    def __init__(self, number: int, now: float) -> None:
        self.number = number
        self.standing = Standing.ACTIVE
        self.since = now
        """When its standing last changed."""
        self.ready = False
        self.fed: deque[Attempt] = deque()
        """What it was fed and has no result yet, in order: it works through them one by one."""
        self.work_us = 0.0
        self.resulted = 0
        """Results that came since its birth."""
        self.specs: set[int] = set()
        self.definitions: set[bytes] = set()
        self.doom: Doom | None = None
        self.yielding = False
        """It gives its slot to a waiting one after the task that it runs."""
        self.paused = False
        self._batch = -1
        self._rows_seen = 0

    def has_room(self) -> bool:
        """Tell whether it should get another task."""
        fed = self.fed
        count = len(fed)
        if count < 2:
            return True
        return count < MAX_FED and self.work_us - fed[0].cost_us < FEED_AHEAD_US

    def stand(self, standing: Standing, now: float) -> None:
        self.standing = standing
        self.since = now

    def unseen(self, results: Results, sent: bool) -> Results:
        """Return what is new in a batch: its first rows may have been read from the page before it was sent.

        sent: the batch is complete, so that the page holds the next one from now on.
        """
        seen = self._rows_seen if results.batch == self._batch else 0
        self._batch = results.batch
        self._rows_seen = 2**32 if sent else max(seen, len(results.rows))
        return skip_rows(results, seen) if seen else results


class Pool:
    """All processors, and the slots."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.processors: dict[int, Processor] = {}
        self._numbers = 0

    def __iter__(self) -> Iterator[Processor]:
        return iter(list(self.processors.values()))

    def add(self, now: float) -> Processor:
        """Make a record of a new, active processor."""
        self._numbers += 1
        processor = self.processors[self._numbers] = Processor(self._numbers, now)
        return processor

    def active(self) -> list[Processor]:
        return [each for each in self.processors.values() if each.standing is Standing.ACTIVE]

    def waiting(self) -> list[Processor]:
        """Return those that wait for a slot, the longest waiting first."""
        found = [each for each in self.processors.values() if each.standing is Standing.WAITING]
        return sorted(found, key=lambda each: each.since)

    def spares(self) -> list[Processor]:
        """Return the spare ones, the longest idle first."""
        found = [each for each in self.processors.values() if each.standing is Standing.SPARE]
        return sorted(found, key=lambda each: each.since)

    def suspended(self) -> list[Processor]:
        return [each for each in self.processors.values() if each.standing is Standing.SUSPENDED]

    def unsuspended(self) -> int:
        """Return how many processors are neither suspended nor ending."""
        off = (Standing.SUSPENDED, Standing.ENDING)
        return sum(each.standing not in off for each in self.processors.values())
