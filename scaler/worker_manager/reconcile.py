"""What to start and stop so that reality becomes what is wanted. Pure: time and chance are arguments.

Level-triggered: every step looks at the units that exist, and remembers only what they cannot say: which ones were
started and are not listed yet, which were asked to stop, since when one has run, and what failed before.

Laws:
- Units that exist, those on their way out and those not listed yet included, never exceed the limit by our doing.
- A unit is stopped only when the scheduler has named it, which alone knows that it has no work, or when there have been
  too many for `DRAIN_DEADLINE_SECONDS`: then the youngest go, pending ones first.
- A unit that is lost after it has proven itself is replaced at once; one that never did counts as a failure, whatever
  its reason was, and after repeated failures one unit at a time is tried, with growing delays. Units that were started
  before the last failure was known count with it: losing many at once is one failure. Each unit that proves itself
  makes up for one: where one in five dies as it starts, the others are not held up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from scaler.backoff import BackoffByCause
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import Unit

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
"""A pending unit counts as starting for so long at most; after that it waits for something else."""
MAX_STARTS_PER_STEP = 100
FAR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Goal:
    """units: how many should exist, None to leave them as they are and start none. drained: those without work.

    joined: those whose worker has connected.
    """

    units: int | None
    drained: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Actions:
    """What to do now, and when to look again at the latest, if nothing changes before."""

    start: int
    stop: tuple[str, ...]
    look_again_seconds: float
    trouble: str


@dataclass(slots=True)
class _Existing:
    """Units by what may be done with them; each is in one list."""

    pending: list[Unit]
    running: list[Unit]
    drained: list[Unit]
    leaving: int


class Reconciler:
    """Decides for one worker manager. Every step costs O(units).

    max_units: the most that may exist. max_starting: the most that start at the same time, so that where they share a
    machine the first one is there early. None for any number. running_is_joined: see `Capacity`.
    """

    __slots__ = (
        "_calls",
        "_drained",
        "_has_looked",
        "_joined",
        "_judged",
        "_lives",
        "_max_starting",
        "_max_units",
        "_running_is_joined",
        "_running_since",
        "_started",
        "_stopping",
        "_surplus_since",
    )

    def __init__(self, max_units: int | None, max_starting: int | None = None, running_is_joined: bool = True) -> None:
        self._max_units = max_units
        self._running_is_joined = running_is_joined
        self._max_starting = max_starting
        self._calls = BackoffByCause()
        """After calls of the backend that failed."""
        self._lives = BackoffByCause()
        """After units that ended before they had proven themselves."""
        self._started: dict[str, float] = {}
        """Units that `start` returned and that were not listed yet, and when."""
        self._stopping: dict[str, float] = {}
        """Listed units that were asked to stop, and when."""
        self._drained: set[str] = set()
        """Listed units that were named as drained at any time: they never get work again."""
        self._joined: dict[str, float] = {}
        """Units whose worker has connected, as the scheduler said, and when: they may not be listed yet."""
        self._running_since: dict[str, float] = {}
        """Listed units whose worker has connected, and when that was seen; -inf once they have proven themselves."""
        self._judged: set[str] = set()
        """Ended units that are still listed."""
        self._surplus_since: float | None = None
        self._has_looked = False

    def started(self, unit_ids: Sequence[str], now: float) -> None:
        """Take note of units that were started just now, all that were asked for."""
        self._calls.succeeded()
        self._started.update(dict.fromkeys(unit_ids, now))

    def failed(self, cause: str, started: Sequence[str], now: float, jitter: float) -> None:
        """Take note that the backend could not start units, or started only these."""
        self._started.update(dict.fromkeys(started, now))
        self._calls.failed(cause, now, jitter)

    def unlisted(self, now: float) -> dict[str, float]:
        """Return the units that were started and are not listed yet, by their age in seconds."""
        return {unit_id: now - at for unit_id, at in self._started.items()}

    def step(self, goal: Goal, units: Sequence[Unit], now: float, jitter: float) -> Actions:
        """Look at all units and decide. jitter: a random number from 0 up to 1."""
        existing = self._look(goal, units, now, jitter)
        unlisted = len(self._started)
        wanted = len(existing.pending) + len(existing.running) + unlisted if goal.units is None else goal.units
        if self._max_units is not None:
            wanted = min(wanted, self._max_units)
        staying = len(existing.pending) + len(existing.running) + unlisted
        stop = [unit.unit_id for unit in existing.drained]
        stop += self._surplus(existing, staying - wanted, now)
        start, wait = self._starts(wanted - staying, existing, now)
        again = [FAR_SECONDS, wait] if wait else [FAR_SECONDS]
        if start:
            again.append(0.0)
        if self._surplus_since is not None:
            again.append(max(0.0, self._surplus_since + DRAIN_DEADLINE_SECONDS - now))
        self._stopping.update(dict.fromkeys(stop, now))
        trouble = (self._calls.degraded_reason(now) or self._lives.degraded_reason(now)) if wanted > staying else ""
        return Actions(start, tuple(stop), min(again), trouble)

    def _look(self, goal: Goal, units: Sequence[Unit], now: float, jitter: float) -> _Existing:
        existing = _Existing([], [], [], 0)
        listed = {unit.unit_id for unit in units}
        self._drained = (self._drained | goal.drained) & listed
        self._joined.update(dict.fromkeys(goal.joined, now))
        if not self._has_looked:
            # What had ended before this manager began says nothing about what it does.
            self._has_looked = True
            self._judged = {unit.unit_id for unit in units if unit.state in (UnitState.FAILED, UnitState.STOPPED)}
        for unit in units:
            self._started.pop(unit.unit_id, None)
            match unit.state:
                case UnitState.PENDING | UnitState.RUNNING:
                    self._sort(unit, existing, now)
                case UnitState.STOPPING:
                    existing.leaving += 1
                case UnitState.FAILED | UnitState.STOPPED:
                    if unit.unit_id not in self._judged:
                        self._judged.add(unit.unit_id)
                        if self._is_failure(unit, now):
                            text = unit.reason or "ended at once"
                            self._lives.failed("a unit ended early", now, jitter, text, now - unit.age_seconds)
                case never:
                    assert_never(never)
        self._judged &= listed
        self._joined = {key: at for key, at in self._joined.items() if key in listed or now - at < JOINED_GRACE_SECONDS}
        self._running_since = {key: since for key, since in self._running_since.items() if key in listed}
        self._stopping = {key: at for key, at in self._stopping.items() if key in listed}
        self._started = {key: at for key, at in self._started.items() if now - at < LISTING_GRACE_SECONDS}
        return existing

    def _sort(self, unit: Unit, existing: _Existing, now: float) -> None:
        if unit.state is UnitState.RUNNING and (self._running_is_joined or unit.unit_id in self._joined):
            since = self._running_since.setdefault(unit.unit_id, now)
            if now - since >= PROVEN_SECONDS and not math.isinf(since):
                self._lives.proven(now - unit.age_seconds)
                self._running_since[unit.unit_id] = -math.inf
        if now - self._stopping.get(unit.unit_id, -STOP_AGAIN_SECONDS) < STOP_AGAIN_SECONDS:
            existing.leaving += 1
        elif unit.unit_id in self._drained:
            existing.drained.append(unit)
        elif unit.state is UnitState.RUNNING:
            existing.running.append(unit)
        else:
            existing.pending.append(unit)

    def _is_failure(self, unit: Unit, now: float) -> bool:
        if unit.unit_id in self._stopping or unit.unit_id in self._drained:
            return False
        since = self._running_since.get(unit.unit_id)
        if since is not None and unit.state is UnitState.STOPPED:
            return False  # it was told to end by the scheduler, whose word to us is still on its way
        return since is None or now - since < PROVEN_SECONDS

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
        start = min(missing, MAX_STARTS_PER_STEP)
        if self._max_units is not None:
            total = len(existing.pending) + len(existing.running) + len(existing.drained) + existing.leaving
            start = min(start, self._max_units - total - len(self._started))
        if self._lives.failing:
            # One unit is tried at a time until it has proven itself: no storm of units that die at once.
            unproven = sum(self._is_unproven(unit, now) for unit in existing.running)
            start = min(start, 1 - unproven - len(existing.pending) - len(self._started))
            return (start, 0.0) if start > 0 else (0, PROVEN_SECONDS)
        if self._max_starting is not None:
            starting = sum(unit.age_seconds < STARTING_SECONDS for unit in existing.pending) + len(self._started)
            start = min(start, self._max_starting - starting)
            return (start, 0.0) if start > 0 else (0, STARTING_SECONDS)
        return max(0, start), 0.0

    def _is_unproven(self, unit: Unit, now: float) -> bool:
        since = self._running_since.get(unit.unit_id)
        return since is None or now - since < PROVEN_SECONDS


def _age(unit: Unit) -> float:
    return unit.age_seconds
