"""Conformance checks for worker managers' backends, and a backend in memory.

Run each function of CHECKS with a new `BackendCase`. A check raises AssertionError.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psutil

from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, Backend, BackendError, Capacity, Unit

DEADLINE_SECONDS = 10.0


class MemoryBackend:
    """A `Backend` whose units are table entries. A unit runs from the first `list` after its start. Not thread-safe.

    Tests control the backend through `now`, `hold`, `start_errors`, `lingers`, and `lose`.
    """

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.now = 0.0
        self.hold = False
        """True: started units stay PENDING."""
        self.start_errors: list[str] = []
        """Error texts of the next calls of `start`, in order."""
        self.lingers = False
        """True: stopped units stay STOPPING."""
        self.most_alive = 0
        """Maximum number of units alive at once."""
        self.starts = 0
        """Units started so far."""
        self.closed = False
        self._units: dict[str, Unit] = {}
        self._born: dict[str, float] = {}

    def alive(self) -> list[str]:
        return [unit_id for unit_id, unit in self._units.items() if unit.state not in ENDED]

    def start(self, count: int) -> list[str]:
        if self.start_errors:
            raise BackendError(self.start_errors.pop(0))
        ids = [f"unit-{self.starts + index}" for index in range(1, count + 1)]
        self.starts += count
        for unit_id in ids:
            self._units[unit_id] = Unit(unit_id, UnitState.PENDING, self.capacity.unit_slots, 0.0)
            self._born[unit_id] = self.now
        self.most_alive = max(self.most_alive, len(self.alive()))
        return ids

    def stop(self, unit_ids: Sequence[str]) -> None:
        for unit_id in unit_ids:
            if unit_id in self.alive():
                self._end(unit_id, UnitState.STOPPING if self.lingers else UnitState.STOPPED, "stopped")

    def list(self) -> list[Unit]:
        listed = [replace(unit, age_seconds=self.now - self._born[unit.unit_id]) for unit in self._units.values()]
        for unit in listed:
            if unit.state is UnitState.PENDING and not self.hold:
                self._units[unit.unit_id] = replace(unit, state=UnitState.RUNNING)
        return listed

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        if not self.capacity.outlive_manager:
            self.stop(self.alive())
        self.closed = True

    def lose(self, unit_id: str, reason: str) -> None:
        """Let a unit fail with this reason."""
        self._end(unit_id, UnitState.FAILED, reason)

    def _end(self, unit_id: str, state: UnitState, reason: str) -> None:
        self._units[unit_id] = replace(self._units[unit_id], state=state, reason=reason)


# -- the conformance suite


@dataclass
class BackendCase:
    """A backend under test, which the test creates and closes.

    The backend can start three units at once, of one slot or `capacity.unit_slots` each. Units stop on SIGTERM or
    through their service.
    """

    backend: Backend
    lose: Callable[[str], None]
    """Makes a unit fail, by SIGKILL if the unit is a process."""
    lost_reason: str = "killed by signal 9 (SIGKILL)"
    """Expected reason of a lost unit."""
    another: Callable[[], Backend] | None = None
    """Makes the backend of a later manager, for units that outlive their manager. None: units do not outlive it."""

    def until(self, fits: Callable[[list[Unit]], bool]) -> list[Unit]:
        """List units after each change until they meet the condition. Raises AssertionError on timeout."""
        descriptor = self.backend.fileno()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not fits(units := self.backend.list()):
            assert time.monotonic() < deadline, units
            if descriptor is not None:
                select.select([descriptor], [], [], DEADLINE_SECONDS)
            else:
                time.sleep(0.01)
        return units

    def stop(self, unit_ids: Sequence[str]) -> None:
        """Stop units, and repeat that while the service is busy, as a manager does."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                self.backend.stop(unit_ids)
            except BackendError as error:
                if not error.is_temporary or time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
            else:
                return


def alive(units: Sequence[Unit]) -> list[Unit]:
    return [unit for unit in units if unit.state not in ENDED]


def running(count: int) -> Callable[[list[Unit]], bool]:
    """Return a condition: exactly `count` units are alive, and all are running."""
    return lambda units: [unit.state for unit in alive(units)] == [UnitState.RUNNING] * count


def started_units_are_listed_until_they_run(case: BackendCase) -> None:
    ids = case.backend.start(2)
    assert {unit.unit_id for unit in case.backend.list()} == set(ids)
    units = case.until(running(2))
    assert [unit.slots for unit in units] == [case.backend.capacity.unit_slots] * 2
    assert all(unit.age_seconds >= 0 for unit in units)


def ids_are_never_used_again(case: BackendCase) -> None:
    first = case.backend.start(2)
    case.stop(first)
    assert not set(first) & set(case.backend.start(2))


def stopped_units_end_in_order_and_the_others_stay(case: BackendCase) -> None:
    first, second = case.backend.start(2)
    case.until(running(2))
    case.stop([first])
    units = case.until(lambda units: len(alive(units)) == 1)
    assert {unit.unit_id: unit.state for unit in units} == {first: UnitState.STOPPED, second: UnitState.RUNNING}


def stopping_what_has_ended_or_is_unknown_is_no_error(case: BackendCase) -> None:
    [unit_id] = case.backend.start(1)
    case.until(running(1))
    case.stop([unit_id, "never-was"])
    case.until(lambda units: not alive(units))
    case.stop([unit_id])


def a_unit_that_ended_unseen_may_be_stopped(case: BackendCase) -> None:
    [unit_id] = case.backend.start(1)
    case.until(running(1))
    case.lose(unit_id)
    if (descriptor := case.backend.fileno()) is not None:
        select.select([descriptor], [], [], DEADLINE_SECONDS)
    case.stop([unit_id])
    [unit] = case.until(lambda units: not alive(units))
    assert unit.unit_id == unit_id


def a_unit_that_is_lost_is_listed_as_failed_with_the_reason(case: BackendCase) -> None:
    [unit_id] = case.backend.start(1)
    case.until(running(1))
    case.lose(unit_id)
    [unit] = case.until(lambda units: not alive(units))
    assert (unit.state, unit.reason) == (UnitState.FAILED, case.lost_reason)


def close_leaves_nothing_that_does_not_outlive_the_manager(case: BackendCase) -> None:
    before = {child.pid for child in psutil.Process().children()}
    started = case.backend.start(3)
    case.backend.close()
    if case.another is None:
        assert {child.pid for child in psutil.Process().children()} <= before
        return
    case.backend = case.another()
    assert {unit.unit_id for unit in case.until(running(3))} == set(started), "the next manager adopts them"
    case.stop(started)
    case.until(lambda units: not alive(units))


CHECKS: Sequence[Callable[[BackendCase], None]] = (
    started_units_are_listed_until_they_run,
    ids_are_never_used_again,
    stopped_units_end_in_order_and_the_others_stay,
    stopping_what_has_ended_or_is_unknown_is_no_error,
    a_unit_that_ended_unseen_may_be_stopped,
    a_unit_that_is_lost_is_listed_as_failed_with_the_reason,
    close_leaves_nothing_that_does_not_outlive_the_manager,
)
