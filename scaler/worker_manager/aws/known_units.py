"""What a manager knows of its units at a service of AWS, whose answers are late and change their order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import Unit

MISSING_SECONDS = 60.0
"""A unit that the service does not know for so long does not exist."""
LISTED_SECONDS = 60.0
"""Lists are eventually consistent: a unit is listed at the latest this long after its start."""
ENDED_SHOWN = 64
ENDED_SHOWN_SECONDS = 300.0
ENDED_KNOWN = 10_000


@dataclass(slots=True)
class KnownUnit:
    """A unit that has not ended, as far as is known."""

    born_at: float
    """Monotonic; by our clock when we started it, by the service's otherwise."""
    state: UnitState | None
    """None: the service has not shown it yet."""
    reason: str = ""
    is_stopping: bool = False
    missing_since: float | None = None


class KnownUnits:
    """Units by their ids. What was started or stopped here counts for more than an older answer. For one thread."""

    def __init__(self, slots: int, first_state: UnitState | None) -> None:
        """slots: of each unit. first_state: of one that was started and that the service has not shown."""
        self.alive: dict[str, KnownUnit] = {}
        self._slots = slots
        self._first_state = first_state
        self._shown: deque[tuple[float, Unit]] = deque(maxlen=ENDED_SHOWN)
        self._ended: dict[str, None] = {}

    def knows(self, unit_id: str) -> bool:
        """Tell whether a unit was listed, or started here."""
        return unit_id in self.alive or unit_id in self._ended

    def has_ended(self, unit_id: str) -> bool:
        """Tell whether a unit was seen to have ended."""
        return unit_id in self._ended

    def started(self, unit_ids: Iterable[str]) -> None:
        """Take note of units that were started just now."""
        now = time.monotonic()
        for unit_id in unit_ids:
            self.found(unit_id, now)

    def found(self, unit_id: str, born_at: float) -> KnownUnit:
        """Return what is known of a unit that exists."""
        return self.alive.setdefault(unit_id, KnownUnit(born_at, self._first_state))

    def stopping(self, unit_id: str) -> None:
        """Take note that the service has accepted to stop a unit."""
        if (unit := self.alive.get(unit_id)) is not None:
            unit.is_stopping = True

    def gone(self, unit_id: str) -> None:
        """Take note that the service does not know a unit any more."""
        self.alive.pop(unit_id, None)

    def ended(self, unit_id: str, unit: Unit | None) -> None:
        """Take note that a unit has ended. unit: is shown for a while; None when it is no news."""
        self.alive.pop(unit_id, None)
        self._ended[unit_id] = None
        if len(self._ended) > ENDED_KNOWN:
            del self._ended[next(iter(self._ended))]
        if unit is not None:
            self._shown.append((time.monotonic(), unit))

    def missed(self, unit_ids: Iterable[str]) -> list[str]:
        """Take note of units that the service did not show when it was asked. Returns those that it has lost."""
        now = time.monotonic()
        lost = []
        for unit_id in unit_ids:
            unit = self.alive.get(unit_id)
            if unit is None:
                continue
            if unit.missing_since is None:
                unit.missing_since = now
            elif now - unit.missing_since > MISSING_SECONDS:
                del self.alive[unit_id]
                lost.append(unit_id)
        return lost

    def to_stop(self, unit_ids: Iterable[str]) -> list[str]:
        """Return those that are not stopping, and did not end, as far as is known."""
        return [
            unit_id
            for unit_id in unit_ids
            if unit_id not in self._ended and not ((unit := self.alive.get(unit_id)) and unit.is_stopping)
        ]

    def is_new(self, unit_id: str) -> bool:
        """Tell whether the service may not know a unit yet, which has been started."""
        unit = self.alive.get(unit_id)
        return unit is not None and time.monotonic() - unit.born_at < MISSING_SECONDS

    def units(self) -> list[Unit]:
        """Return what was seen last, with what was asked for since."""
        now = time.monotonic()
        while self._shown and now - self._shown[0][0] > ENDED_SHOWN_SECONDS:
            self._shown.popleft()
        alive = [
            Unit(
                unit_id,
                UnitState.STOPPING if unit.is_stopping else unit.state,
                self._slots,
                now - unit.born_at,
                unit.reason,
            )
            for unit_id, unit in self.alive.items()
            if unit.state is not None
        ]
        return alive + [unit for _, unit in self._shown]
