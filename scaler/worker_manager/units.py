"""Units at a service whose lists are late: what is known of them between two polls. Pure: time is an argument.

A service shows a new unit with a delay, and may show again what was true before. What this process has started,
stopped or seen to end therefore outranks what the service says later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, Unit

NOT_FOUND_SECONDS = 60.0
"""A unit that the service does not know for this long does not exist."""
LISTED_SECONDS = 60.0
"""Lists are eventually consistent: a unit is listed at the latest this long after its start."""
ADOPT_AGAIN_SECONDS = 60.0
"""Pause between searches for unknown units once all of an earlier process must have been listed. They find what a
request without an answer has started after it was given up."""
ENDED_SHOWN = 64
ENDED_SHOWN_SECONDS = 300.0
ENDED_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class SeenUnit:
    """What the service says of a unit. age_seconds counts by the service's clock, to its end if it has ended."""

    state: UnitState
    age_seconds: float
    reason: str = ""


@dataclass(slots=True)
class _Alive:
    born_at: float
    state: UnitState | None
    """None: the service has not shown it yet, and it is not listed before it has."""
    reason: str = ""
    is_stopping: bool = False
    not_found_since: float | None = None


class EndedUnits:
    """The last units that ended, for as long as they are listed."""

    def __init__(self) -> None:
        self._units: deque[tuple[float, Unit]] = deque(maxlen=ENDED_SHOWN)

    def add(self, unit: Unit, now: float) -> None:
        self._units.append((now, unit))

    def shown(self, now: float) -> list[Unit]:
        return [unit for at, unit in self._units if now - at <= ENDED_SHOWN_SECONDS]


class UnitCache:
    """The units of one manager by their ids, and when to search for those that an earlier process has left."""

    def __init__(self, slots: int, first_state: UnitState | None) -> None:
        """slots: of each unit. first_state: state of a unit that was started and that the service has not shown."""
        self._slots = slots
        self._first_state = first_state
        self._alive: dict[str, _Alive] = {}
        self._ended: dict[str, None] = {}
        self._shown = EndedUnits()
        self._settled_at: float | None = None
        """When all units of earlier processes must have been listed; None before the first search."""
        self._search_at = 0.0

    @property
    def alive(self) -> list[str]:
        """The units that have not ended, as far as is known."""
        return list(self._alive)

    def knows(self, unit_id: str) -> bool:
        """Tell whether a unit was seen, or started here."""
        return unit_id in self._alive or unit_id in self._ended

    def is_search_due(self, now: float) -> bool:
        """Tell whether to search for unknown units: with every poll of the first minute, and now and then after it."""
        if self._settled_at is None:
            self._settled_at = now + LISTED_SECONDS
        return now < self._settled_at or now >= self._search_at

    def searched(self, now: float) -> None:
        """Note that a search is done."""
        self._search_at = now + ADOPT_AGAIN_SECONDS

    def started(self, unit_ids: Iterable[str], now: float) -> None:
        """Note units that were started just now."""
        for unit_id in unit_ids:
            self._alive.setdefault(unit_id, _Alive(now, self._first_state))

    def seen(self, unit_id: str, seen: SeenUnit, now: float) -> None:
        """Note what the service says of a unit. One that was unknown is adopted, unless it has ended."""
        unit = self._alive.get(unit_id)
        if seen.state in ENDED:
            self._alive.pop(unit_id, None)
            self._ended[unit_id] = None
            if len(self._ended) > ENDED_REMEMBERED:
                del self._ended[next(iter(self._ended))]
            # A unit that ended before this process knew it is no failure of its starts.
            if unit is not None:
                age = max(seen.age_seconds, now - unit.born_at)
                self._shown.add(Unit(unit_id, seen.state, self._slots, age, seen.reason), now)
            return
        if unit is None:
            unit = self._alive[unit_id] = _Alive(now - seen.age_seconds, seen.state)
        unit.state = seen.state
        unit.reason = seen.reason
        unit.not_found_since = None

    def not_found(self, unit_ids: Iterable[str], now: float) -> list[str]:
        """Note units that the service did not show when asked for them. Returns those that are given up."""
        lost = []
        for unit_id in unit_ids:
            if (unit := self._alive.get(unit_id)) is None:
                continue
            if unit.not_found_since is None:
                unit.not_found_since = now
            elif now - unit.not_found_since > NOT_FOUND_SECONDS:
                del self._alive[unit_id]
                lost.append(unit_id)
        return lost

    def stopping(self, unit_id: str) -> None:
        """Note that the service has accepted to stop a unit."""
        if (unit := self._alive.get(unit_id)) is not None:
            unit.is_stopping = True

    def forget(self, unit_id: str) -> None:
        """Note that a unit does not exist."""
        self._alive.pop(unit_id, None)

    def to_stop(self, unit_ids: Iterable[str]) -> list[str]:
        """Return those that are not known to be stopping or ended."""
        return [
            unit_id
            for unit_id in unit_ids
            if unit_id not in self._ended and not ((unit := self._alive.get(unit_id)) and unit.is_stopping)
        ]

    def is_new(self, unit_id: str, now: float) -> bool:
        """Tell whether a unit was started so recently that the service may not know it yet."""
        unit = self._alive.get(unit_id)
        return unit is not None and now - unit.born_at < NOT_FOUND_SECONDS

    def units(self, now: float) -> list[Unit]:
        """Return what was seen last, with the stops accepted since, and the units that ended lately."""
        alive = [
            Unit(
                unit_id,
                UnitState.STOPPING if unit.is_stopping else unit.state,
                self._slots,
                now - unit.born_at,
                unit.reason,
            )
            for unit_id, unit in self._alive.items()
            if unit.state is not None
        ]
        return alive + self._shown.shown(now)
