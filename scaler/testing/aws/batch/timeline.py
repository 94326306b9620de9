"""What is due when in the emulated Batch, what must be done outside, and how long things take."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

Action = Callable[[float], None]
"""Something to do; takes the time."""


@dataclass(slots=True)
class Times:
    """How long things take, in seconds. May be changed at any time, for what begins later."""

    submitted: float = 0.02
    pending: float = 0.02
    starting: float = 0.05
    changing: float = 0.05
    """Creation, update and deletion of queues and compute environments."""
    listing: float = 0.1
    """How long ListJobs does not show a new job."""
    stop: float = 30.0
    """From SIGTERM to SIGKILL."""
    notice: float = 120.0
    """From a spot notice to SIGKILL."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start a container."""

    run_id: str
    job_id: str
    command: tuple[str, ...]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class TerminateContainer:
    """Send SIGTERM to a container."""

    run_id: str


@dataclass(frozen=True, slots=True)
class KillContainer:
    """Kill a container."""

    run_id: str


Command = StartContainer | TerminateContainer | KillContainer


class Timeline:
    """Things to do later, in the order of their times, and of their coming where these are equal."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, due: float, action: Action) -> None:
        """Have something done at a time."""
        self._count += 1
        heapq.heappush(self._entries, (due, self._count, action))

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
