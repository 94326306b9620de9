"""Decides which units to start and stop to reach the wanted number. Pure.

Level-triggered: every listing is compared with the wanted state. Only facts missing from listings are stored.
Invariants:
- Our starts never push existing units, including stopping and unlisted ones, above the limit.
- A unit is stopped only if the scheduler drained it, or after a surplus of `DRAIN_DEADLINE_SECONDS`, which stops the
youngest units, pending ones first.
- A refused start is retried with one unit, after growing delays, and at once when a unit ends, which may free capacity.
- A proven unit that is lost is replaced at once. An unproven one counts as a failure, and after repeated failures units
  are tried one at a time, with growing delays. Losing many units at once is one failure: a lost unit that started
  before the last known failure does not count again. Each unit that proves itself cancels one failure, so that
  occasional failures delay nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter
from typing import NamedTuple

from scaler.backoff import BackoffByCause
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, Unit

PROVEN_SECONDS = 5.0  # a unit is proven once its worker has been connected for this long
LISTING_GRACE_SECONDS = 30.0  # a started unit that is not listed after this time does not exist
JOINED_GRACE_SECONDS = 600.0  # how long to remember an unlisted unit whose worker has connected
STOP_AGAIN_SECONDS = 15.0  # interval of stop requests to a unit that still runs
DRAIN_DEADLINE_SECONDS = 600.0
STARTING_SECONDS = 2.0  # maximum time for which a pending unit counts as starting
MAX_STARTS_PER_STEP = 100
FAR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class UnitsWanted:
    """The scheduler's request, and its view of the units. units: wanted number; None: keep the existing ones and start
    none. drained: without work. joined: workers that connected since the last call. connected: currently connected
    workers, whose units exist even if the listing omits them."""

    units: int | None
    drained: Collection[str] = ()
    joined: Collection[str] = ()
    connected: Collection[str] = ()


class Decision(NamedTuple):
    """stop: ids of units. start: number of units, answered by `Reconciler.started`. reason: why wanted units cannot be
    started. again: seconds until the next listing if nothing changes."""

    stop: Sequence[str]
    start: int
    reason: str
    again: float


@dataclass(slots=True)
class _Record:
    started_at: float | None = None
    joined_at: float | None = None  # when the scheduler reported its worker, possibly before the first listing
    at_work_since: float | None = None  # when it was first listed as RUNNING with its worker connected
    is_proven: bool = False
    stopping_at: float | None = None
    is_drained: bool = False  # drained by the scheduler, so it never gets work again
    is_judged: bool = False  # its end has been taken into account


@dataclass(slots=True)
class _Existing:
    pending: list[Unit] = field(default_factory=list)  # including queued ones
    running: list[Unit] = field(default_factory=list)
    drained: list[Unit] = field(default_factory=list)
    stopping: list[Unit] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)  # unlisted units with a connected worker

    def add(self, unit: Unit, record: _Record, now: float) -> None:
        is_asked = record.stopping_at is not None and now - record.stopping_at < STOP_AGAIN_SECONDS
        if is_asked or unit.state is UnitState.STOPPING:
            self.stopping.append(unit)
        elif record.is_drained:
            self.drained.append(unit)
        elif unit.state is UnitState.RUNNING:
            self.running.append(unit)
        else:
            self.pending.append(unit)


class Reconciler:
    """Decides for one worker manager, in O(units). max_units: maximum existing units. max_starting: maximum concurrent
    starts, so that the first unit on a shared machine is ready early. None for no limit. backlog: waiting units that
    are never surplus."""

    def __init__(self, max_units: int | None, max_starting: int | None = None, backlog: int = 0) -> None:
        self._max_units = max_units
        self._max_starting = max_starting
        self._backlog = backlog
        self._calls = BackoffByCause()  # after failed calls of the backend
        self._lives = BackoffByCause()  # after units that ended unproven
        self._records: defaultdict[str, _Record] = defaultdict(_Record)
        self._surplus_since: float | None = None
        self._has_listed = False

    def step(self, wanted: UnitsWanted, units: Sequence[Unit], now: float, chance: float) -> Decision:
        """Decide after a listing. units: all existing and recently ended ones. chance: random, from 0 up to 1."""
        for unit_id in wanted.joined:
            self._records[unit_id].joined_at = now
        return self._decide(wanted.units, self._sort(wanted, units, chance, now), now)

    def started(self, unit_ids: Sequence[str], now: float, error: str | None = None, chance: float = 0.5) -> None:
        """Record units that the backend started. error: why fewer. chance: random, from 0 up to 1."""
        for unit_id in unit_ids:
            self._records[unit_id].started_at = now
        if error is None:
            self._calls.succeeded()
        else:
            self._calls.failed(error, now, chance)

    def unlisted(self, now: float) -> dict[str, float]:
        records = self._records.items()
        return {unit_id: now - record.started_at for unit_id, record in records if record.started_at is not None}

    def _decide(self, wanted: int | None, existing: _Existing, now: float) -> Decision:
        unlisted = len(self.unlisted(now).keys() | existing.left_out)
        staying = len(existing.pending) + len(existing.running) + unlisted
        wanted = staying if wanted is None else wanted
        if self._max_units is not None:
            wanted = min(wanted, self._max_units)
        stop = [*existing.drained, *self._surplus(existing, staying - wanted, now)]
        for unit in stop:
            self._records[unit.unit_id].stopping_at = now
        start, again, reason = 0, FAR_SECONDS, ""
        if wanted > staying:
            reason = self._calls.degraded_reason(now) or self._lives.degraded_reason(now)
            start, again = self._starts(wanted - staying, existing, unlisted, now)
        elif self._surplus_since is not None:
            again = self._surplus_since + DRAIN_DEADLINE_SECONDS - now
        return Decision(tuple(unit.unit_id for unit in stop), start, reason, again)

    def _sort(self, wanted: UnitsWanted, units: Sequence[Unit], chance: float, now: float) -> _Existing:
        existing = _Existing(left_out={*wanted.connected}.difference(unit.unit_id for unit in units))
        before, self._records = self._records, defaultdict(_Record)
        for unit in units:
            record = self._records[unit.unit_id] = before.pop(unit.unit_id, _Record())
            record.started_at = None
            record.is_drained = record.is_drained or unit.unit_id in wanted.drained
            if unit.state in ENDED:
                self._judge(unit, record, chance, now)
            else:
                self._note_work(unit, record, now)
                existing.add(unit, record, now)
        self._has_listed = True
        for unit_id, record in before.items():  # unlisted units
            started = record.started_at if now - (record.started_at or 0.0) < LISTING_GRACE_SECONDS else None
            joined = record.joined_at if now - (record.joined_at or 0.0) < JOINED_GRACE_SECONDS else None
            if started is not None or joined is not None:
                self._records[unit_id] = _Record(started, joined)
        return existing

    def _judge(self, unit: Unit, record: _Record, chance: float, now: float) -> None:
        # Units that ended before this manager started are not its failures.
        if self._has_listed and not record.is_judged:
            if self._is_failure(unit, record, now):
                text = unit.reason or "ended at once"
                self._lives.failed("a unit ended early", now, chance, text, now - unit.age_seconds)
            self._calls.hurry(now)
        record.is_judged = True

    def _note_work(self, unit: Unit, record: _Record, now: float) -> None:
        if unit.state is UnitState.RUNNING and record.joined_at is not None:
            if record.at_work_since is None:
                record.at_work_since = now
            if not record.is_proven and now - record.at_work_since >= PROVEN_SECONDS:
                self._lives.proven(now - unit.age_seconds)
                record.is_proven = True

    def _is_failure(self, unit: Unit, record: _Record, now: float) -> bool:
        if record.stopping_at is not None or record.is_drained:
            return False
        if record.at_work_since is None:
            return True
        # A proven worker that exited in order: the scheduler stopped it, and its notice is in flight.
        return unit.state is UnitState.FAILED and not record.is_proven and now - record.at_work_since < PROVEN_SECONDS

    def _surplus(self, existing: _Existing, surplus: int, now: float) -> list[Unit]:
        age = attrgetter("age_seconds")
        kept = nlargest(self._backlog, [unit for unit in existing.pending if unit.state is UnitState.WAITING], key=age)
        surplus -= len(kept)
        if surplus <= 0:
            self._surplus_since = None
            return []
        if self._surplus_since is None:
            self._surplus_since = now
        if now - self._surplus_since < DRAIN_DEADLINE_SECONDS:
            return []
        self._surplus_since = None
        pending = [unit for unit in existing.pending if unit not in kept]
        return [*sorted(pending, key=age), *sorted(existing.running, key=age)][:surplus]

    def _starts(self, missing: int, existing: _Existing, unlisted: int, now: float) -> tuple[int, float]:
        if (wait := max(self._calls.wait_seconds(now), self._lives.wait_seconds(now))) > 0:
            return 0, wait
        start = min(missing, MAX_STARTS_PER_STEP)
        if self._max_units is not None:
            total = sum(map(len, (existing.pending, existing.running, existing.drained, existing.stopping)))
            start = min(start, self._max_units - total - unlisted)
        again = FAR_SECONDS
        if self._calls.failing:
            start = min(start, 1)
        if self._lives.failing:
            # Try one unit at a time until proven, to avoid a storm of failing starts.
            unproven = sum(not self._records[unit.unit_id].is_proven for unit in existing.running)
            start, again = min(start, 1 - unproven - len(existing.pending) - unlisted), PROVEN_SECONDS
        elif self._max_starting is not None:
            pending = [unit for unit in existing.pending if unit.state is UnitState.PENDING]
            starting = sum(unit.age_seconds < STARTING_SECONDS for unit in pending)
            start, again = min(start, self._max_starting - starting - unlisted), STARTING_SECONDS
        return (start, 0.0) if start > 0 else (0, again)
