"""A worker manager's backend in memory, for tests of everything above it."""

from __future__ import annotations

from collections.abc import Sequence

from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import BackendError, Capacity, Unit


class MemoryBackend:
    """A `Backend` whose units are entries of a table. A unit runs from the first `list` after its start.

    Tests move its time and its fate: `now`, `lose`, `start_errors`, `hold`. Not safe to use from two threads at once.
    """

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.now = 0.0
        self.hold = False
        """True: started units stay PENDING."""
        self.start_errors: list[str] = []
        """Texts with which the next calls of `start` fail, in this order."""
        self.unlisted: set[str] = set()
        """Units that `list` leaves out: a service may need a while until it shows them."""
        self.lingers = False
        """True: stopped units stay STOPPING."""
        self.most_alive = 0
        """The most units that were alive at once."""
        self.starts = 0
        """Units started so far."""
        self.closed = False
        self._units: dict[str, Unit] = {}
        self._born: dict[str, float] = {}

    def alive(self) -> list[str]:
        """Return the ids of the units that have not ended."""
        ended = (UnitState.FAILED, UnitState.STOPPED)
        return [unit_id for unit_id, unit in self._units.items() if unit.state not in ended]

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
        listed = [
            Unit(unit.unit_id, unit.state, unit.slots, self.now - self._born[unit.unit_id], unit.reason)
            for unit in self._units.values()
            if unit.unit_id not in self.unlisted
        ]
        for unit in listed:
            if unit.state is UnitState.PENDING and not self.hold:
                self._units[unit.unit_id] = Unit(unit.unit_id, UnitState.RUNNING, unit.slots, 0.0)
        return listed

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        if not self.capacity.outlive_manager:
            self.stop(self.alive())
        self.closed = True

    def lose(self, unit_id: str, reason: str) -> None:
        """Let a unit end by itself."""
        self._end(unit_id, UnitState.FAILED, reason)

    def _end(self, unit_id: str, state: UnitState, reason: str) -> None:
        unit = self._units[unit_id]
        self._units[unit_id] = Unit(unit_id, state, unit.slots, unit.age_seconds, reason)
