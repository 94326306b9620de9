"""How many items of a `map` or `imap` may be ahead of the results that were taken. Pure."""

from __future__ import annotations

import sys

from scaler.client.chunks import MAX_CHUNK_ITEMS, TARGET_SECONDS
from scaler.client.options import check_integer

FIRST_ITEMS = 64
CHUNKS_OF_WINDOW = 8
"""No chunk has more than this part of the window, so that several workers have some and others are on their way."""
MAX_ITEMS = CHUNKS_OF_WINDOW * MAX_CHUNK_ITEMS
UNBOUNDED = sys.maxsize
QUICK_SECONDS = 0.001
"""A chunk's items are taken from their iterable in about this time: a slow one fills no chunks."""
PART_WAITED = 1 / 8
"""Of the time that a slow iterable took for an item: how long the next one waits for the result of the last."""


class Window:
    """Number of items ahead of the taken results. Pure.

    An automatic window begins small, for large items, and doubles when the consumer waits although workers are free.
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
        """How many are sent before the first result is asked for."""

    def ended(self, waited_seconds: float, ran_seconds: float) -> None:
        """Learn from a chunk that ended. waited_seconds: how long it did not run."""
        self._has_free_workers = waited_seconds <= max(ran_seconds, TARGET_SECONDS)

    def starved(self, running: int) -> bool:
        """Tell whether the used-up window grows. running: items without outcome; if few, more would only pile up."""
        if not self._has_free_workers or self.items >= self._max_items or 2 * running < self.items:
            return False
        self.items = min(2 * self.items, self._max_items)
        self._has_free_workers = False
        return True
