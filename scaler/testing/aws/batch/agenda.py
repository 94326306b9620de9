"""What is due when."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Turn = Callable[[float], None]
"""Something to do; takes the time."""


class Agenda:
    """Things to do later, in the order of their times, and of their coming where these are equal."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Turn]] = []
        self._count = 0

    def at(self, due: float, turn: Turn) -> None:
        """Have something done at a time."""
        self._count += 1
        heapq.heappush(self._entries, (due, self._count, turn))

    def step(self, now: float) -> float | None:
        """Do what was due first, each with that time, and return the time. None: nothing is due."""
        if not self._entries or self._entries[0][0] > now:
            return None
        first = self._entries[0][0]
        while self._entries and self._entries[0][0] == first:
            heapq.heappop(self._entries)[2](first)
        return first

    def next_due(self) -> float | None:
        """Return when something is due next. None: nothing is."""
        return self._entries[0][0] if self._entries else None
