"""What to start and stop so that the units that exist become those that are wanted. Pure.

Level-triggered: every listing is compared with what is wanted, and only what a listing cannot say is remembered.

Laws:
- Units that exist, those that are stopping and those not listed yet included, never exceed the limit by our doing.
- A unit is stopped only when the scheduler has named it, which alone knows that it has no work, or when there have been
  too many for `DRAIN_DEADLINE_SECONDS`: then the youngest are stopped, pending ones first.
- A unit that is lost after it has proven itself is replaced at once; one that never did counts as a failure, whatever
  its reason was, and after repeated failures one unit at a time is tried, with growing delays. Units that were started
  before the last failure was known count with it: losing many at once is one failure. Each unit that proves itself
  makes up for one: where one in five dies as it starts, the others are not held up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from scaler.backoff import BackoffByCause
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, Unit

PROVEN_SECONDS = 5.0
"""A unit whose worker has been connected for this long has started well."""
LISTING_GRACE_SECONDS = 30.0
"""A unit that was started and is not listed after this time does not exist."""
JOINED_GRACE_SECONDS = 600.0
"""How long a unit is remembered whose worker has connected and that is not listed."""
STOP_AGAIN_SECONDS = 15.0
"""A unit that still runs this long after it was asked to stop is asked again."""
DRAIN_DEADLINE_SECONDS = 600.0
STARTING_SECONDS = 2.0
"""A pending unit counts as starting for this long at most; after that it waits for something else."""
MAX_STARTS_PER_STEP = 100
FAR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class UnitsWanted:
    """units: how many should exist; None: leave them as they are and start none. drained: units without work."""

    units: int | None
    drained: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkersJoined:
    """The workers of these units have connected to the scheduler."""

    unit_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class UnitsStarted:
    """The backend started all units that it was asked for."""

    unit_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The backend could not start units, or started only these. chance: random, from 0 up to 1."""

    cause: str
    unit_ids: Sequence[str]
    chance: float


@dataclass(frozen=True, slots=True)
class UnitsListed:
    """All units that exist, and those that ended lately. chance: random, from 0 up to 1."""

    units: Sequence[Unit]
    chance: float


ReconcilerInput = UnitsWanted | WorkersJoined | UnitsStarted | StartFailed | UnitsListed


@dataclass(frozen=True, slots=True)
class StartUnits:
    """Start units; the answer is UnitsStarted or StartFailed."""

    count: int


@dataclass(frozen=True, slots=True)
class StopUnits:
    """Begin to stop units."""

    unit_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportDegraded:
    """Report why units cannot be started; empty: nothing keeps them from it."""

    reason: str


@dataclass(frozen=True, slots=True)
class ListAgain:
    """List units after this time at the latest, if nothing changes before."""

    after_seconds: float


ReconcilerCommand = StartUnits | StopUnits | ReportDegraded | ListAgain


@dataclass(slots=True)
class _Record:
    """What a listing does not say of a unit."""

    started_at: float | None = None
    """When the backend started it; None once it is listed."""
    joined_at: float | None = None
    """When the scheduler said that its worker has connected: it may not be listed yet."""
    at_work_since: float | None = None
    """When it was first listed as RUNNING with its worker connected."""
    is_proven: bool = False
    stopping_at: float | None = None
    """When it was asked to stop."""
    is_drained: bool = False
    """The scheduler named it as drained at any time: it never gets work again."""
    is_judged: bool = False
    """It has ended, and that was taken into account."""


@dataclass(slots=True)
class _Existing:
    """Units by what may be done with them; each is in one list."""

    pending: list[Unit] = field(default_factory=list)
    running: list[Unit] = field(default_factory=list)
    drained: list[Unit] = field(default_factory=list)
    stopping: int = 0

    @property
    def staying(self) -> int:
        return len(self.pending) + len(self.running)


class Reconciler:
    """Decides for one worker manager, with every UnitsListed; that costs O(units).

    max_units: the most that may exist. max_starting: the most that start at the same time, so that where they share a
    machine the first one is ready early. None for any number.
    """

    def __init__(self, max_units: int | None, max_starting: int | None = None) -> None:
        self._max_units = max_units
        self._max_starting = max_starting
        self._wanted = UnitsWanted(None)
        self._calls = BackoffByCause()
        """After calls of the backend that failed."""
        self._lives = BackoffByCause()
        """After units that ended before they had proven themselves."""
        self._records: dict[str, _Record] = {}
        self._surplus_since: float | None = None
        self._has_listed = False

    def step(self, inputs: Sequence[ReconcilerInput], now: float) -> list[ReconcilerCommand]:
        """Take inputs in, and return what to do."""
        commands: list[ReconcilerCommand] = []
        for event in inputs:
            match event:
                case UnitsWanted():
                    self._wanted = event
                case WorkersJoined(unit_ids):
                    for unit_id in unit_ids:
                        self._record(unit_id).joined_at = now
                case UnitsStarted(unit_ids):
                    self._calls.succeeded()
                    for unit_id in unit_ids:
                        self._record(unit_id).started_at = now
                case StartFailed(cause, unit_ids, chance):
                    for unit_id in unit_ids:
                        self._record(unit_id).started_at = now
                    self._calls.failed(cause, now, chance)
                case UnitsListed(units, chance):
                    commands += self._decide(self._sort_all(units, now, chance), now)
                case never:
                    assert_never(never)
        return commands

    def unlisted(self, now: float) -> dict[str, float]:
        """Return the units that were started and are not listed yet, by their age in seconds."""
        records = self._records.items()
        return {unit_id: now - record.started_at for unit_id, record in records if record.started_at is not None}

    def _record(self, unit_id: str) -> _Record:
        return self._records.setdefault(unit_id, _Record())

    def _decide(self, existing: _Existing, now: float) -> list[ReconcilerCommand]:
        staying = existing.staying + len(self.unlisted(now))
        wanted = staying if self._wanted.units is None else self._wanted.units
        if self._max_units is not None:
            wanted = min(wanted, self._max_units)
        stop = [unit.unit_id for unit in existing.drained]
        stop += self._surplus(existing, staying - wanted, now)
        start, wait = self._starts(wanted - staying, existing, now)
        again = wait or FAR_SECONDS
        if self._surplus_since is not None:
            again = min(again, max(0.0, self._surplus_since + DRAIN_DEADLINE_SECONDS - now))
        for unit_id in stop:
            self._records[unit_id].stopping_at = now
        reason = (self._calls.degraded_reason(now) or self._lives.degraded_reason(now)) if wanted > staying else ""
        commands: list[ReconcilerCommand] = [ReportDegraded(reason)]
        if stop:
            commands.append(StopUnits(tuple(stop)))
        if start:
            commands.append(StartUnits(start))
        return [*commands, ListAgain(0.0 if start else again)]

    def _sort_all(self, units: Sequence[Unit], now: float, chance: float) -> _Existing:
        existing = _Existing()
        before, self._records = self._records, {}
        for unit in units:
            record = self._records[unit.unit_id] = before.pop(unit.unit_id, _Record())
            record.started_at = None
            record.is_drained = record.is_drained or unit.unit_id in self._wanted.drained
            if unit.state is UnitState.STOPPING:
                existing.stopping += 1
            elif unit.state not in ENDED:
                self._sort(unit, record, existing, now)
            elif not record.is_judged:
                record.is_judged = True
                # What had ended before this manager began says nothing about what it does.
                if self._has_listed and self._is_failure(unit, record, now):
                    text = unit.reason or "ended at once"
                    self._lives.failed("a unit ended early", now, chance, text, now - unit.age_seconds)
        self._has_listed = True
        for unit_id, record in before.items():  # those that are not listed
            started = record.started_at if now - (record.started_at or 0.0) < LISTING_GRACE_SECONDS else None
            joined = record.joined_at if now - (record.joined_at or 0.0) < JOINED_GRACE_SECONDS else None
            if started is not None or joined is not None:
                self._records[unit_id] = _Record(started, joined)
        return existing

    def _sort(self, unit: Unit, record: _Record, existing: _Existing, now: float) -> None:
        if unit.state is UnitState.RUNNING and record.joined_at is not None:
            if record.at_work_since is None:
                record.at_work_since = now
            if not record.is_proven and now - record.at_work_since >= PROVEN_SECONDS:
                self._lives.proven(now - unit.age_seconds)
                record.is_proven = True
        if record.stopping_at is not None and now - record.stopping_at < STOP_AGAIN_SECONDS:
            existing.stopping += 1
        elif record.is_drained:
            existing.drained.append(unit)
        elif unit.state is UnitState.RUNNING:
            existing.running.append(unit)
        else:
            existing.pending.append(unit)

    def _is_failure(self, unit: Unit, record: _Record, now: float) -> bool:
        if record.stopping_at is not None or record.is_drained:
            return False
        if record.at_work_since is None:
            return True
        # A worker that was at work and ended in order: the scheduler ended it, and its word to us is on its way.
        return unit.state is UnitState.FAILED and not record.is_proven and now - record.at_work_since < PROVEN_SECONDS

    def _surplus(self, existing: _Existing, surplus: int, now: float) -> list[str]:
        if surplus <= 0:
            self._surplus_since = None
            return []
        if self._surplus_since is None:
            self._surplus_since = now
        if now - self._surplus_since < DRAIN_DEADLINE_SECONDS:
            return []
        self._surplus_since = None
        youngest = sorted(existing.pending, key=_age) + sorted(existing.running, key=_age)
        return [unit.unit_id for unit in youngest[:surplus]]

    def _starts(self, missing: int, existing: _Existing, now: float) -> tuple[int, float]:
        """Return how many to start, and how long to wait when it is too early."""
        if missing <= 0:
            return 0, 0.0
        wait = max(self._calls.wait_seconds(now), self._lives.wait_seconds(now))
        if wait > 0:
            return 0, wait
        unlisted = len(self.unlisted(now))
        start = min(missing, MAX_STARTS_PER_STEP)
        if self._max_units is not None:
            total = existing.staying + len(existing.drained) + existing.stopping
            start = min(start, self._max_units - total - unlisted)
        if self._lives.failing:
            # One unit is tried at a time until it has proven itself: no storm of units that die at once.
            unproven = sum(not self._records[unit.unit_id].is_proven for unit in existing.running)
            start = min(start, 1 - unproven - len(existing.pending) - unlisted)
            return (start, 0.0) if start > 0 else (0, PROVEN_SECONDS)
        if self._max_starting is not None:
            starting = sum(unit.age_seconds < STARTING_SECONDS for unit in existing.pending) + unlisted
            start = min(start, self._max_starting - starting)
            return (start, 0.0) if start > 0 else (0, STARTING_SECONDS)
        return max(0, start), 0.0


def _age(unit: Unit) -> float:
    return unit.age_seconds
