"""Chunk sizes of a `map` or `imap`, and the size of its window: items sent ahead of the results taken. Pure.

A chunk of automatic size runs for about `TARGET_SECONDS`, but contains at most `GROWTH` times as many items as a proven
size. While the size is unproven, few chunks are in flight, and more only if no result arrives for a while.
"""

from __future__ import annotations

import sys

from scaler.client.options import check_integer

TARGET_SECONDS = 0.01
GROWTH = 8
UNPROVEN_CHUNKS = 16
PROBE_TIMEOUT_SECONDS = 0.05
"""Time (seconds) without a result after which more chunks of an unproven size are sent."""
MAX_CHUNK_ITEMS = 4096
"""Maximum number of items per chunk. More items rarely fit in a message and would need the slower object storage."""
FIRST_ITEMS = 64
CHUNKS_OF_WINDOW = 8
"""A chunk contains at most 1/CHUNKS_OF_WINDOW of the window, which spreads items over several workers."""
MAX_ITEMS = CHUNKS_OF_WINDOW * MAX_CHUNK_ITEMS
UNBOUNDED = sys.maxsize
QUICK_SECONDS = 0.001
"""Time (seconds) to take a chunk's items from their iterable: a slow iterable gets partial chunks."""
PART_WAITED = 1 / 8
"""Maximum wait for the last result before a slow iterable's next item, as a multiple of the time per item."""


class Chunking:
    def __init__(self, fixed_size: int | None, now: float) -> None:
        self._fixed = fixed_size
        self._size = 1
        self._proven = 0
        self._seconds_per_item: float | None = None
        self._in_flight = 0
        self._limit = UNPROVEN_CHUNKS
        self.wake_at = now + PROBE_TIMEOUT_SECONDS

    def next_size(self, now: float) -> int:
        """Return the maximum size of the next chunk; 0: wait for a result, or until `wake_at`."""
        if self._fixed is not None:
            return self._fixed
        if self._size > self._proven and self._in_flight >= self._limit:
            if now < self.wake_at:
                return 0
            self._limit *= 2
            self.wake_at = now + PROBE_TIMEOUT_SECONDS
        return self._size

    def sent(self) -> None:
        self._in_flight += 1

    def ended(self, items: int, seconds: float | None, now: float) -> None:
        """seconds: run time on the worker; None if the whole chunk failed."""
        self._in_flight -= 1
        self.wake_at = now + PROBE_TIMEOUT_SECONDS
        if seconds is None:
            return
        measured = seconds / items
        old = self._seconds_per_item
        self._seconds_per_item = measured if old is None else max(measured, 0.8 * old + 0.2 * measured)
        fitting = max(1, min(MAX_CHUNK_ITEMS, int(TARGET_SECONDS / max(self._seconds_per_item, 1e-9))))
        self._proven = min(max(self._proven, items), fitting)
        self._size = min(fitting, GROWTH * self._proven)


class Window:
    """Number of items ahead of the taken results. Pure.

    An automatic window doubles when the consumer waits while workers are free.
    """

    def __init__(self, items: int | None, chunk_size: int | None) -> None:
        smallest = chunk_size or 1
        self.items: int
        self._has_free_workers = False
        if items is None:
            self.items = max(FIRST_ITEMS, CHUNKS_OF_WINDOW * smallest)
            self._max_items = max(MAX_ITEMS, self.items)
        else:
            check_integer("window", items, smallest)
            self.items = self._max_items = items
        self.first_items = min(self.items, max(FIRST_ITEMS, CHUNKS_OF_WINDOW * smallest))

    def ended(self, waited_seconds: float, ran_seconds: float) -> None:
        self._has_free_workers = waited_seconds <= max(ran_seconds, TARGET_SECONDS)

    def starved(self, running: int) -> bool:
        """Return whether an exhausted window grows. running: number of unfinished items; with only a few, sending more
        would not help."""
        if not self._has_free_workers or self.items >= self._max_items or 2 * running < self.items:
            return False
        self.items = min(2 * self.items, self._max_items)
        self._has_free_workers = False
        return True
