"""Decides which units to start and stop to reach the wanted number. Pure.

Level-triggered: every listing is compared with the wanted state. Only facts missing from listings are stored.
Invariants:
- Starts never bring the number of existing units, including stopping ones, above the limit.
- A unit is stopped only if the scheduler drained it, or if a surplus has lasted `DRAIN_DEADLINE_SECONDS`. Pending units
  stop before running ones, youngest first.
- A refused start is retried with one unit after increasing delays, or as soon as a unit ends, which may free capacity.
- A lost unit that was proven is replaced at once. The loss of an unproven unit counts as a failure. After repeated
  failures, units start one at a time, with increasing delays. Losing many units at once is one failure: a unit that
  started before the last failure does not count. Each unit that becomes proven cancels one failure, so that occasional
  failures delay nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter
from typing import NamedTuple

from scaler.backoff import BackoffByCause
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, Unit

PROVEN_SECONDS = 5.0  # a unit is proven once its worker has been connected for this long
STOP_AGAIN_SECONDS = 15.0  # interval between stop requests for a unit that still runs
DRAIN_DEADLINE_SECONDS = 600.0
STARTING_SECONDS = 2.0  # maximum time for which a pending unit counts as starting
MAX_STARTS_PER_STEP = 100
FAR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class UnitsWanted:
    """The scheduler's request, and its view of the units. units: wanted number; None: keep the existing units and start
    none. drained: units without work. connected: units with a connected worker."""

    units: int | None
    drained: Collection[str] = ()
    connected: Collection[str] = ()


class Decision(NamedTuple):
    """stop: ids of units. start: number of units; report the outcome with `Reconciler.started`. reason: why wanted
    units cannot be started. again: seconds until the next listing if nothing changes."""

    stop: Sequence[str]
    start: int
    reason: str
    again: float


@dataclass(slots=True)
class _Record:
    at_work_since: float | None = None  # when it was first listed as RUNNING with its worker connected
    is_proven: bool = False
    stopping_at: float | None = None
    is_drained: bool = False  # drained by the scheduler, so it never gets work again
    is_judged: bool = False  # the unit's end has been taken into account


@dataclass(slots=True)
class _Existing:
    pending: list[Unit] = field(default_factory=list)  # including queued units
    running: list[Unit] = field(default_factory=list)
    drained: list[Unit] = field(default_factory=list)
    stopping: list[Unit] = field(default_factory=list)

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
    starts, so that the first unit on a shared machine is ready sooner. None: no limit. backlog: waiting units that
    never count as surplus."""

    def __init__(self, max_units: int | None, max_starting: int | None = None, backlog: int = 0) -> None:
        self._max_units = max_units
        self._max_starting = max_starting
        self._backlog = backlog
        self._calls = BackoffByCause()  # backoff after failed backend calls
        self._lives = BackoffByCause()  # backoff after unproven units have ended
        self._records: dict[str, _Record] = {}
        self._surplus_since: float | None = None
        self._has_listed = False

    def step(self, wanted: UnitsWanted, units: Sequence[Unit], now: float, chance: float) -> Decision:
        """Decide after a listing. units: all existing and recently ended units. chance: random number in [0, 1)."""
        return self._decide(wanted.units, self._sort(wanted, units, chance, now), now)

    def started(self, now: float, error: str | None = None, chance: float = 0.5) -> None:
        """Record the result of a start. error: why fewer units started. chance: random number in [0, 1)."""
        if error is None:
            self._calls.succeeded()
        else:
            self._calls.failed(error, now, chance)

    def _decide(self, wanted: int | None, existing: _Existing, now: float) -> Decision:
        staying = len(existing.pending) + len(existing.running)
        wanted = staying if wanted is None else wanted
        if self._max_units is not None:
            wanted = min(wanted, self._max_units)
        stop = [*existing.drained, *self._surplus(existing, staying - wanted, now)]
        for unit in stop:
            self._records[unit.unit_id].stopping_at = now
        start, again, reason = 0, FAR_SECONDS, ""
        if wanted > staying:
            reason = self._calls.degraded_reason(now) or self._lives.degraded_reason(now)
            start, again = self._starts(wanted - staying, existing, now)
        elif self._surplus_since is not None:
            again = self._surplus_since + DRAIN_DEADLINE_SECONDS - now
        return Decision(tuple(unit.unit_id for unit in stop), start, reason, again)

    def _sort(self, wanted: UnitsWanted, units: Sequence[Unit], chance: float, now: float) -> _Existing:
        existing = _Existing()
        before, self._records = self._records, {}
        for unit in units:
            record = self._records[unit.unit_id] = before.get(unit.unit_id) or _Record()
            record.is_drained = record.is_drained or unit.unit_id in wanted.drained
            if unit.state in ENDED:
                self._judge(unit, record, chance, now)
            else:
                self._note_work(unit, record, now, is_connected=unit.unit_id in wanted.connected)
                existing.add(unit, record, now)
        self._has_listed = True
        return existing

    def _judge(self, unit: Unit, record: _Record, chance: float, now: float) -> None:
        # Units that ended before this manager started are not its failures.
        if self._has_listed and not record.is_judged:
            if self._is_failure(unit, record, now):
                text = unit.reason or "ended at once"
                self._lives.failed("a unit ended early", now, chance, text, now - unit.age_seconds)
            self._calls.hurry(now)
        record.is_judged = True

    def _note_work(self, unit: Unit, record: _Record, now: float, *, is_connected: bool) -> None:
        if unit.state is not UnitState.RUNNING:
            return
        if record.at_work_since is None and is_connected:
            record.at_work_since = now
        if record.at_work_since is not None and not record.is_proven and now - record.at_work_since >= PROVEN_SECONDS:
            self._lives.proven(now - unit.age_seconds)
            record.is_proven = True

    def _is_failure(self, unit: Unit, record: _Record, now: float) -> bool:
        if record.stopping_at is not None or record.is_drained:
            return False
        if record.at_work_since is None:
            return True
        # A worker that exited normally was stopped by the scheduler, whose notice is still in flight.
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

    def _starts(self, missing: int, existing: _Existing, now: float) -> tuple[int, float]:
        if (wait := max(self._calls.wait_seconds(now), self._lives.wait_seconds(now))) > 0:
            return 0, wait
        start = min(missing, MAX_STARTS_PER_STEP)
        if self._max_units is not None:
            total = sum(map(len, (existing.pending, existing.running, existing.drained, existing.stopping)))
            start = min(start, self._max_units - total)
        again = FAR_SECONDS
        if self._calls.failing:
            start = min(start, 1)
        if self._lives.failing:
            # Start one unit at a time until a unit works, to avoid many failing starts.
            unproven = sum(not self._records[unit.unit_id].is_proven for unit in existing.running)
            start, again = min(start, 1 - unproven - len(existing.pending)), PROVEN_SECONDS
        elif self._max_starting is not None:
            pending = [unit for unit in existing.pending if unit.state is UnitState.PENDING]
            starting = sum(unit.age_seconds < STARTING_SECONDS for unit in pending)
            start, again = min(start, self._max_starting - starting), STARTING_SECONDS
        return (start, 0.0) if start > 0 else (0, again)
