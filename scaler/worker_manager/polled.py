"""A backend for units that live at a service: the service is polled, and asked once more when it was too busy.

A subclass supplies start, stop, list and describe of its service. What is the same for all services is here: how often
they are polled, which units are adopted, that no unit is started twice when an answer is lost, and that a stop is
repeated until it is accepted.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from scaler.backoff import Backoff
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import BackendError, Capacity, Unit
from scaler.worker_manager.units import SeenUnit, UnitCache

STOP_REASON = "Stopped by scaler"
"""Distinguishes units that this platform stopped from those that others did, in the service's records."""
MANAGER_STOP_SECONDS = 20.0
"""How long the manager may take to have the service accept that all units stop. It does not wait for their end."""
POLL_SHARE = 0.9
"""The service is polled at most once in this part of a heartbeat, however often something else happens."""
STOP_RETRY_SECONDS = 8.0
"""A stop that the service was too busy for is repeated for this long."""
STOP_BACKOFF = Backoff(0.25, 4.0, jitter=0.0)
STOPS_AT_ONCE = 8

Stopped = Literal["stopping", "not found"]

_log = logging.getLogger(__name__)


class PolledBackend(ABC):
    """A `Backend`. Units outlive their manager, and the next manager of the same name adopts them."""

    def __init__(
        self,
        *,
        service: str,
        noun: str,
        stop_by_hand: str,
        slots: int,
        max_units: int | None,
        heartbeat_seconds: float,
        first_state: UnitState | None = None,
    ) -> None:
        """service, noun: names of the service and of its units in messages. stop_by_hand: says how users stop a unit.

        first_state: see `UnitCache`.
        """
        self.capacity = Capacity(
            unit_slots=slots,
            max_slots=-1 if max_units is None else max_units * slots,
            max_units=max_units,
            stop_seconds=MANAGER_STOP_SECONDS,
            outlive_manager=True,
        )
        self._service_name = service
        self._noun = noun
        self._stop_by_hand = stop_by_hand
        self._units = UnitCache(slots, first_state)
        self._poll_seconds = heartbeat_seconds * POLL_SHARE
        self._polled_at: float | None = None
        self._unstopped: set[str] = set()
        """Units that the service has not agreed to stop."""

    # -- what a service supplies; all raise BackendError

    @abstractmethod
    def start_some(self, count: int) -> list[str]:
        """Start up to this many units with one request, and return their ids."""

    @abstractmethod
    def started_unanswered(self) -> list[str]:
        """Return what a start that was not answered has started. Raises BackendError while that is unknown."""

    @abstractmethod
    def stop_one(self, unit_id: str) -> Stopped:
        """Ask the service to stop a unit. Called in several threads at once."""

    @abstractmethod
    def list_ids(self, *, search: bool) -> Iterable[str]:
        """Return ids of units that may be unknown. search: also those that only a costly request finds."""

    @abstractmethod
    def describe(self, unit_ids: Sequence[str]) -> Mapping[str, SeenUnit]:
        """Return what the service says of these; those that it does not know are missing."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close all connections."""

    # -- the backend

    def start(self, count: int) -> list[str]:
        started: list[str] = []
        try:
            started += self._take(self.started_unanswered())
            while (missing := count - len(started)) > 0:
                started += self._take(self.start_some(missing))
        except BackendError as error:
            raise BackendError(str(error), started + self._take(error.started)) from error
        return started

    def stop(self, unit_ids: Sequence[str]) -> None:
        left = self._units.to_stop(unit_ids)
        if not left:
            return
        deadline = time.monotonic() + STOP_RETRY_SECONDS
        tries = 0
        final: list[BackendError] = []
        with ThreadPoolExecutor(STOPS_AT_ONCE, "stop") as pool:
            while left:
                tries += 1
                failed: dict[str, BackendError] = {}
                for unit_id, outcome in zip(left, pool.map(self._try_stop, left), strict=True):
                    if isinstance(outcome, BackendError):
                        failed[unit_id] = outcome
                    elif outcome == "stopping":
                        self._units.stopping(unit_id)
                    else:
                        self._units.forget(unit_id)
                self._unstopped = (self._unstopped - set(left)) | set(failed)
                pause = STOP_BACKOFF.seconds(tries)
                is_over = time.monotonic() + pause >= deadline
                final += [error for error in failed.values() if is_over or not error.is_temporary]
                left = [] if is_over else [unit_id for unit_id, error in failed.items() if error.is_temporary]
                if left:
                    time.sleep(pause)
        if final:
            raise final[0]

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        try:
            self.stop(self.started_unanswered())
        except BackendError as error:
            _log.error(
                "a start of %s that %s did not answer may have left some: %s", self._noun, self._service_name, error
            )
        if self._unstopped:
            _log.error(
                "these %s may be left: %s; %s", self._noun, ", ".join(sorted(self._unstopped)), self._stop_by_hand
            )
        self.disconnect()

    def _take(self, unit_ids: Iterable[str]) -> list[str]:
        """Note units that were started. Returns those that were unknown: a search may have found the others before."""
        new = [unit_id for unit_id in unit_ids if not self._units.knows(unit_id)]
        self._units.started(new, time.monotonic())
        return new

    def _poll(self, now: float) -> None:
        search = self._units.is_search_due(now)
        listed = [unit_id for unit_id in self.list_ids(search=search) if not self._units.knows(unit_id)]
        known = self._units.alive
        seen = self.describe([*known, *listed])
        for unit_id, unit in seen.items():
            self._units.seen(unit_id, unit, now)
        for unit_id in self._units.not_found(set(known) - set(seen), now):
            _log.warning("%s does not know the unit %s any more", self._service_name, unit_id)
        if search:
            self._units.searched(now)

    def _try_stop(self, unit_id: str) -> Stopped | BackendError:
        try:
            outcome = self.stop_one(unit_id)
        except BackendError as error:
            return error
        if outcome == "not found" and self._units.is_new(unit_id, time.monotonic()):
            too_early = BackendError(f"{self._service_name} does not know a unit yet that was started just now")
            too_early.is_temporary = True
            return too_early
        return outcome

    def list(self) -> list[Unit]:
        now = time.monotonic()
        if self._polled_at is None or now - self._polled_at >= self._poll_seconds:
            self._poll(now)
            self._polled_at = now
        return self._units.units(now)
