"""Results that an agent has reported and keeps, to report them again to a restarted scheduler. Pure.

A scheduler that ends may have acknowledged results that no client has got, or that other tasks still need. So an agent
keeps each Done until the scheduler releases it: when no client and no task needs its results any more. Both sides count
the Done of a session from 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from scaler.protocol.codec import split
from scaler.protocol.messages import Done, Outcome

MAX_RETAINED_BYTES = 64 * 1024 * 1024
"""Results that an agent keeps for a restarted scheduler. Beyond it the oldest go: their tasks would run again."""
ROW_BYTES = 192
"""What a result counts beside its payload."""
_DROPPED = b"the result was dropped (MAX_RETAINED_BYTES of the worker) before a restarted scheduler asked for it"


class RetainedResults:
    """Invariant: `size_bytes` counts what `_batches` has, by their numbers, in ascending order."""

    def __init__(self) -> None:
        self._batches: dict[int, tuple[Done, int]] = {}
        self._dropped: dict[int, list[bytes]] = {}
        """Tasks with retries=0 of batches that were too much, by their numbers."""
        self._number = 0
        self.size_bytes = 0
        self.once: dict[bytes, int] = {}
        """Tasks with retries=0 whose results are or were here, with their attempts, until they are released."""

    def keep(self, done: Done) -> list[Done]:
        """Keep a Done that is about to be sent. Returns the messages to send in its place."""
        parts = split(done)
        for part in parts:
            size = ROW_BYTES * len(part.ids) + sum(map(len, part.payloads))
            self._number += 1
            self._batches[self._number] = part, size
            self.size_bytes += size
        while self.size_bytes > MAX_RETAINED_BYTES:
            number = next(iter(self._batches))
            if once := [identifier for identifier in self._drop(number) if identifier in self.once]:
                self._dropped[number] = once
        return parts

    def release(self, numbers: Iterable[int]) -> None:
        """Forget results that the scheduler needs no more."""
        for number in numbers:
            ids = self._dropped.pop(number, None) or self._drop(number)
            if self.once:
                for identifier in ids:
                    self.once.pop(identifier, None)

    def take_all(self) -> list[Done]:
        """Take everything, oldest first, at a new session. A retries=0 task without its result counts as lost."""
        found = [done for done, _ in self._batches.values()]
        lost = self.once.keys() - {identifier for done in found for identifier in done.ids}
        if lost:
            count, attempts = len(lost), [self.once[identifier] for identifier in lost]
            found.append(Done([*lost], attempts, [Outcome.WORKER_LOST] * count, [_DROPPED] * count, [0] * count))
        self._batches.clear()
        self._dropped.clear()
        self.once = {}
        self._number = self.size_bytes = 0
        return found

    def _drop(self, number: int) -> list[bytes]:
        """Forget a batch. Returns the ids of its tasks; empty when it is not here."""
        if number not in self._batches:
            return []
        done, size = self._batches.pop(number)
        self.size_bytes -= size
        return done.ids
