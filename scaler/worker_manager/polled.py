"""A backend that polls a service for the state of its units.

A subclass implements start, stop, list, and describe. This class decides when to poll and which units to adopt, and
never starts a unit twice after a lost answer. Services may report units late, report outdated states, and omit units.
Therefore, this process's starts, stops, and observed ends outrank later answers from the service. The scheduler
outranks both: a unit with a connected worker exists and runs.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, BackendError, Capacity, EndedUnits, Unit

STOP_REASON = "Stopped by scaler"  # marks units stopped by Scaler in the service's records
MANAGER_STOP_SECONDS = 20.0  # time limit for the service to accept the stop of all units, without awaiting their end
POLL_SHARE = 0.9  # minimum poll interval as a share of the heartbeat
STOPS_AT_ONCE = 8
NOT_FOUND_SECONDS = 60.0  # a unit that the service does not find for this long does not exist
LISTED_SECONDS = 60.0  # lists are eventually consistent: a unit is listed at most this long after its start
ADOPT_AGAIN_SECONDS = 60.0  # interval between later searches for units of an abandoned start
ENDED_REMEMBERED = 10_000
MIN_REMAINING_SECONDS = 0.001  # reported for a unit past its end time

Stopped = Literal["stopping", "not found"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SeenUnit:
    """A unit as reported by the service. age_seconds: by the service's clock; for an ended unit, at its end.
    remaining_seconds: until the service ends the unit; 0 for no limit. slots: of this unit; 0: the default."""

    state: UnitState
    age_seconds: float
    reason: str = ""
    remaining_seconds: float = 0.0
    slots: int = 0


@dataclass(slots=True)
class _Alive:
    born_at: float
    state: UnitState
    reason: str = ""
    ends_at: float | None = None  # when the service ends the unit; None for no limit
    is_stopping: bool = False  # the service has accepted its stop
    not_found_since: float | None = None
    slots: int = 0
    has_joined: bool = False


class PolledBackend(ABC):
    """A `Backend` whose units outlive their manager. The next manager with the same name adopts them."""

    def __init__(
        self,
        *,
        service: str,
        noun: str,
        stop_by_hand: str,
        capacity: Capacity,
        heartbeat_seconds: float,
        first_state: UnitState = UnitState.PENDING,
    ) -> None:
        """service, noun: names of the service and its units. stop_by_hand: how users can stop a unit. first_state:
        state of a started unit until the service reports it."""
        self.capacity = replace(capacity, stop_seconds=MANAGER_STOP_SECONDS, outlive_manager=True)
        self._service_name = service
        self._noun = noun
        self._stop_by_hand = stop_by_hand
        self._first_state = first_state
        self._alive: dict[str, _Alive] = {}
        self._ended: dict[str, None] = {}
        self._shown = EndedUnits()
        self._poll_seconds = heartbeat_seconds * POLL_SHARE
        self._polled_at: float | None = None
        self._settled_at: float | None = None  # time by which all units of earlier processes are listed
        self._search_at = 0.0
        self._unstopped: set[str] = set()
        self.connected: frozenset[str] | None = frozenset()  # None: not reported by the scheduler yet
        self.together = 0  # number of units for one gang in the next start

    # -- supplied by each service; all raise BackendError

    @abstractmethod
    def start_some(self, count: int) -> list[str]:
        """Start up to this many units with one request, and return their ids."""

    @abstractmethod
    def started_unanswered(self) -> list[str]:
        """Return the units that an unanswered request started. Raises BackendError while unknown."""

    @abstractmethod
    def stop_one(self, unit_id: str) -> Stopped:
        """Ask the service to stop a unit. Called from several threads at once."""

    def stop_some(self, unit_ids: Sequence[str]) -> Mapping[str, Stopped | BackendError]:
        """Ask the service to stop units, and return each outcome. Override if the service has a bulk call."""
        with ThreadPoolExecutor(STOPS_AT_ONCE, "stop") as pool:
            return dict(zip(unit_ids, pool.map(self._try_stop, unit_ids), strict=True))

    @abstractmethod
    def list_ids(self, *, search: bool) -> Iterable[str]:
        """Return unit ids, including ids of new units. search: include units that only a costly request finds."""

    @abstractmethod
    def describe(self, unit_ids: Sequence[str]) -> Mapping[str, SeenUnit]:
        """Return the states of these units. Omits units that the service does not know."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close all connections."""

    # -- the backend

    def start(self, count: int) -> list[str]:
        started: list[str] = []
        most = count
        try:
            started += self._take(self.started_unanswered())
            while (missing := count - len(started)) > 0:
                asked = min(most, missing)
                try:
                    started += self._take(self.start_some(asked))
                except BackendError as error:
                    if not error.fewer_may_start or asked == 1:
                        raise
                    most = asked // 2
        except BackendError as error:
            raise BackendError(str(error), started + self._take(error.started)) from error
        return started

    def stop(self, unit_ids: Sequence[str]) -> None:
        stopping = {unit_id for unit_id, unit in self._alive.items() if unit.is_stopping}
        left = [unit_id for unit_id in unit_ids if unit_id not in self._ended and unit_id not in stopping]
        failures: dict[str, BackendError] = {}
        for unit_id, outcome in (self.stop_some(left) if left else {}).items():
            if isinstance(outcome, BackendError):
                failures[unit_id] = outcome
            elif outcome == "not found":
                self._alive.pop(unit_id, None)
            elif unit_id in self._alive:
                self._alive[unit_id].is_stopping = True
        self._unstopped = (self._unstopped - set(left)) | set(failures)
        for error in failures.values():
            raise error  # the manager retries

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        try:
            self.stop(self.started_unanswered())
        except BackendError as error:
            _log.error("%s may remain from a start that %s did not answer: %s", self._noun, self._service_name, error)
        if self._unstopped:
            _log.error(
                "these %s may remain: %s; %s", self._noun, ", ".join(sorted(self._unstopped)), self._stop_by_hand
            )
        self.disconnect()

    def _take(self, unit_ids: Iterable[str]) -> list[str]:
        new = [unit_id for unit_id in unit_ids if not self._knows(unit_id)]
        now = time.monotonic()
        self._alive.update({unit_id: _Alive(now, self._first_state) for unit_id in new})
        return new

    def _knows(self, unit_id: str) -> bool:
        return unit_id in self._alive or unit_id in self._ended

    def _poll(self, now: float) -> None:
        if self._settled_at is None:
            self._settled_at = now + LISTED_SECONDS
        search = now < self._settled_at or now >= self._search_at
        listed = [unit_id for unit_id in self.list_ids(search=search) if not self._knows(unit_id)]
        known = list(self._alive)
        seen = self.describe([*known, *(unit_id for unit_id in listed if unit_id not in self._alive)])
        for unit_id, unit in seen.items():
            self._note(unit_id, unit, now)
        for unit_id in known:
            if unit_id not in seen:
                self._note_missing(unit_id, now)
        if search:
            self._search_at = now + ADOPT_AGAIN_SECONDS

    def _note_connected(self, now: float) -> None:
        """Adopt units with a connected worker, even if the service omits them or reports their end."""
        for unit_id in self.connected or ():
            unit = self._alive.get(unit_id)
            if unit is None:
                self._ended.pop(unit_id, None)
                unit = self._alive[unit_id] = _Alive(now, UnitState.RUNNING)
            if unit.state in (UnitState.WAITING, UnitState.PENDING):
                unit.state, unit.reason = UnitState.RUNNING, ""
            unit.has_joined = True
            unit.not_found_since = None

    def _note_missing(self, unit_id: str, now: float) -> None:
        """Record that the service does not report a unit. The unit has ended if its worker left or a stop was
        requested. Otherwise the unit must be missing for `NOT_FOUND_SECONDS`."""
        unit = self._alive[unit_id]
        if self.connected is None or unit_id in self.connected:
            return
        if unit.not_found_since is None:
            unit.not_found_since = now
        if not (unit.has_joined or unit.is_stopping) and now - unit.not_found_since <= NOT_FOUND_SECONDS:
            return
        # Not recorded as ended: if the service reports the unit again, adopt it again.
        del self._alive[unit_id]
        state, reason = UnitState.FAILED, f"{self._service_name} no longer lists the unit or how it ended"
        if unit.is_stopping:
            state, reason = UnitState.STOPPED, "stopped"
        self._shown.add(Unit(unit_id, state, unit.slots or self.capacity.unit_slots, now - unit.born_at, reason), now)

    def _note(self, unit_id: str, seen: SeenUnit, now: float) -> None:
        unit = self._alive.get(unit_id)
        is_connected = self.connected is not None and unit_id in self.connected
        if seen.state in ENDED:
            if is_connected:
                return
            self._alive.pop(unit_id, None)
            self._ended[unit_id] = None
            if len(self._ended) > ENDED_REMEMBERED:
                del self._ended[next(iter(self._ended))]
            # A unit that ended before this process found it is not a failed start.
            if unit is not None:
                age = max(seen.age_seconds, now - unit.born_at)
                slots = seen.slots or self.capacity.unit_slots
                self._shown.add(Unit(unit_id, seen.state, slots, age, seen.reason), now)
            return
        if unit is None:
            # If a newly found unit is stopping, an earlier process stopped it.
            is_stopping = seen.state is UnitState.STOPPING
            unit = self._alive[unit_id] = _Alive(now - seen.age_seconds, seen.state, is_stopping=is_stopping)
        is_late = is_connected and seen.state in (UnitState.WAITING, UnitState.PENDING)
        unit.state = UnitState.RUNNING if is_late else seen.state
        unit.reason = "" if is_late else seen.reason
        unit.slots = seen.slots
        unit.ends_at = now + seen.remaining_seconds if seen.remaining_seconds else None
        unit.not_found_since = None

    def _try_stop(self, unit_id: str) -> Stopped | BackendError:
        try:
            outcome = self.stop_one(unit_id)
        except BackendError as error:
            return error
        unit = self._alive.get(unit_id)
        if outcome == "not found" and unit is not None and time.monotonic() - unit.born_at < NOT_FOUND_SECONDS:
            text = f"{self._service_name} does not list a newly started unit yet"
            return BackendError(text, is_temporary=True)
        return outcome

    def list(self) -> list[Unit]:
        """Return the units as last polled, with stops accepted since then, and recently ended units."""
        now = time.monotonic()
        self._note_connected(now)
        if self._polled_at is None or now - self._polled_at >= self._poll_seconds:
            self._poll(now)
            self._polled_at = now
        alive = []
        for unit_id, unit in self._alive.items():
            state = UnitState.STOPPING if unit.is_stopping else unit.state
            left = 0.0 if unit.ends_at is None else max(MIN_REMAINING_SECONDS, unit.ends_at - now)
            slots = unit.slots or self.capacity.unit_slots
            alive.append(Unit(unit_id, state, slots, now - unit.born_at, unit.reason, left))
        return alive + [unit for unit in self._shown.shown(now) if unit.unit_id not in self._alive]
