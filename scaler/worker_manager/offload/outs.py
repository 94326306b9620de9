"""Attempts that an executor has, or is about to get, and what time asks of them. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from scaler.protocol.messages import STARTED_AFTER_SECONDS
from scaler.worker.attempts import Attempt
from scaler.worker.executor import CallKey


@dataclass(slots=True)
class Out:
    """One of them."""

    item: Attempt
    handed_at: float
    started_at: float | None = None


class Outs:
    """By task, the oldest first. Iterating gives the ids of tasks; it may be changed meanwhile."""

    def __init__(self) -> None:
        self._outs: dict[bytes, Out] = {}
        self._limits: list[tuple[float, int, Attempt]] = []
        self._count = 0
        self._to_announce: deque[tuple[float, Attempt]] = deque()

    def __len__(self) -> int:
        return len(self._outs)

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._outs))

    def __contains__(self, task: bytes) -> bool:
        return task in self._outs

    def all(self) -> list[Out]:
        return list(self._outs.values())

    def find(self, key: CallKey) -> Out | None:
        out = self._outs.get(key[0])
        return out if out is not None and out.item.attempt == key[1] else None

    def add(self, item: Attempt, now: float) -> None:
        self._outs[item.id] = Out(item, now)

    def remove(self, task: bytes) -> None:
        """Forget one; nothing happens when it is not here."""
        self._outs.pop(task, None)

    def clear(self) -> None:
        self._outs.clear()

    def started(self, out: Out, now: float) -> None:
        """One runs; its time limit counts from now."""
        item = out.item
        out.started_at = now
        self._to_announce.append((now + STARTED_AFTER_SECONDS, item))
        if item.spec.limit_seconds:
            self._count += 1
            heapq.heappush(self._limits, (now + item.spec.limit_seconds, self._count, item))

    def take_to_announce(self, now: float) -> list[bytes]:
        """Return, once, those that have run for so long that it is worth saying."""
        waiting = self._to_announce
        found = []
        while waiting and waiting[0][0] <= now:
            item = waiting.popleft()[1]
            if self._has(item):
                found.append(item.id)
        return found

    def take_overdue(self, now: float) -> list[Attempt]:
        """Return, once, those that have run out of time."""
        limits = self._limits
        found = []
        while limits and limits[0][0] <= now:
            item = heapq.heappop(limits)[2]
            if self._has(item):
                found.append(item)
        return found

    @property
    def wake_at(self) -> float:
        """When one of them is next to be announced or out of time."""
        times = [self._to_announce[0][0]] if self._to_announce else []
        if self._limits:
            times.append(self._limits[0][0])
        return min(times, default=float("inf"))

    def _has(self, item: Attempt) -> bool:
        out = self._outs.get(item.id)
        return out is not None and out.item is item
