"""Reports and progress of one worker. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from scaler.protocol.messages import WorkerHeartbeat

PREFETCH_SECONDS = 0.05
"""Minimum seconds of prefetched work per slot."""
PREFETCH_ROUND_TRIPS = 1.5
"""Prefetched work in round trips to the worker: one in flight, the rest as margin."""
ROUND_TRIPS_KEPT = 5
"""Number of heartbeats from which the fastest counts, since a busy process answers late."""
MAX_ROUND_TRIP_SECONDS = 1.0
"""Maximum round trip, as reported by a worker, that increases its prefetch."""


@dataclass(slots=True, eq=False)
class WorkerClock:
    """A worker's monotonic clock. offset_seconds: add to convert to the scheduler's clock; None: unknown."""

    offset_seconds: float | None = None
    reported_seconds: float | None = None

    def keep(self, heartbeat: WorkerHeartbeat) -> None:
        if heartbeat.clock_error_seconds and heartbeat.clock_offset_seconds != self.reported_seconds:
            self.offset_seconds = self.reported_seconds = heartbeat.clock_offset_seconds

    def has_read(self, us: int, now: float) -> None:
        """Record that the clock showed `us` before the scheduler's showed `now`."""
        latest = now - us / 1e6
        if self.offset_seconds is None or self.offset_seconds > latest:
            self.offset_seconds = latest


@dataclass(slots=True, eq=False)
class Reports:
    """A worker's reports about itself. at: time of the last heartbeat, or of joining."""

    at: float
    heartbeat: WorkerHeartbeat | None = None
    ended: int = 0
    """Tasks ended or returned up to the last heartbeat."""
    clock: WorkerClock = field(default_factory=WorkerClock)
    round_trips: deque[float] = field(default_factory=partial(deque, maxlen=ROUND_TRIPS_KEPT))
    far_seconds: float = 0.0
    """Round trip, if long enough to need a larger prefetch; otherwise 0."""
    is_awaited: bool = False
    """The worker reconnected from an earlier session, and has not reported its tasks yet."""

    def add(self, heartbeat: WorkerHeartbeat, now: float, ended: int) -> None:
        self.heartbeat, self.at, self.ended = heartbeat, now, ended
        self.clock.keep(heartbeat)
        if heartbeat.latency_seconds:
            self.round_trips.append(heartbeat.latency_seconds)
            # The first one may include the process's start.
            round_trip = min(MAX_ROUND_TRIP_SECONDS, *self.round_trips) if len(self.round_trips) > 1 else 0.0
            self.far_seconds = round_trip if round_trip * PREFETCH_ROUND_TRIPS > PREFETCH_SECONDS else 0.0

    @property
    def degraded_reason(self) -> str:
        return self.heartbeat.degraded_reason if self.heartbeat is not None else ""

    def expect(self) -> None:
        self.is_awaited = True

    def came(self) -> None:
        self.is_awaited = False


@dataclass(slots=True, eq=False)
class Progress:
    """Whether a worker's tasks end. at: time of the last results, or of the first task after it was idle."""

    at: float
    checks_without: int = 0
    is_stalled: bool = False
    """Gets no prefetch until a task ends."""
    failures_in_row: int = 0
    has_begun: bool = False
    """Some task has run. Until then, processors may still be starting."""

    def begin(self) -> None:
        self.has_begun = True

    def restart(self, now: float) -> None:
        self.at = now
        self.checks_without = 0

    def add(self, now: float, healthy: bool) -> None:
        """Record results. healthy: a task's own code ran to its end, so the worker works."""
        if healthy:
            self.failures_in_row = 0
            self.has_begun = True
        self.is_stalled = False
        self.at = now
        self.checks_without = 0

    def fail(self) -> None:
        self.failures_in_row += 1

    def check(self, now: float, seconds: float, checks: int, *, is_recalled: bool) -> bool:
        """Return whether this many checks in a row found no progress for `seconds`, which stops prefetching."""
        self.checks_without = 0 if now - self.at < seconds else self.checks_without + 1
        stalls = self.checks_without >= checks and not is_recalled
        self.is_stalled = self.is_stalled or stalls
        return stalls
