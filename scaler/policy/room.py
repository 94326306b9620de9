"""What is left of one worker manager while work is laid out on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scaler.policy.forecast import Batch
from scaler.policy.view import ManagerView

ASSUMED_STARTUP_SECONDS = 4.0
"""Until a unit of the manager has connected."""
PENDING_STEPS = 10
"""Pending units are told apart by tenths of the start-up time."""
_ROUNDING = 1e-9


def startup_seconds(manager: ManagerView) -> float:
    """Return how long a unit of this manager takes to start, as far as it is known."""
    if manager.startup_seconds is not None:
        return max(0.0, manager.startup_seconds)
    return max(ASSUMED_STARTUP_SECONDS, *manager.pending_ages, 0.0)


@dataclass(slots=True)
class Purse:
    """What may be spent per hour beyond what is spent already; infinite when nobody counts."""

    left: float = math.inf

    def affords(self, price: float, set_aside: float = 0.0) -> float:
        """Return how many units."""
        left = self.left - set_aside
        return math.inf if price <= 0 or math.isinf(left) else max(0, math.floor(left / price + _ROUNDING))


class Room:
    """Law: used and free slots are what exists, together.

    promised: units, those that exist included, whose price the purse does not hold any more.
    """

    __slots__ = (
        "_free",
        "_growth_used",
        "_price",
        "_promised",
        "_purse",
        "grown",
        "limit",
        "manager",
        "promised",
        "reasons",
        "startup",
        "used",
        "wished",
    )

    def __init__(self, manager: ManagerView, purse: Purse, price: float, promised: int) -> None:
        self.manager = manager
        self.startup = startup_seconds(manager)
        self.used = 0
        """Slots of existing units that have work."""
        self.grown = 0
        """Units to be started."""
        self.wished = 0
        """Slots that would be of use and are not worth to be started."""
        self.reasons: list[str] = []
        self.limit = ""
        """What kept more units from being started; empty when nothing did."""
        self._purse = purse
        self._price = price
        self.promised = promised
        self._promised = max(0, promised - manager.units)
        self._growth_used = 0
        step = manager.unit_slots
        self._free = [Batch(manager.units_running * step, 0.0)]
        tick = self.startup / PENDING_STEPS
        left: dict[int, int] = {}
        for age in manager.pending_ages:
            ticks = max(1, math.ceil((self.startup - age) / tick)) if tick > 0 else 0
            left[ticks] = left.get(ticks, 0) + step
        self._free += [Batch(left[ticks], ticks * tick) for ticks in sorted(left)]

    @property
    def free(self) -> Sequence[Batch]:
        """Slots of running units, then those of pending ones, the earliest first."""
        return self._free

    def use(self, slots: int) -> int:
        """Take free slots; returns how many there were."""
        missing = slots
        for index, batch in enumerate(self._free):
            missing -= self._use(index, min(missing, batch.slots))
        return slots - missing

    def run(self, tasks: int, task_seconds: float, within_seconds: float) -> int:
        """Take as many free slots as it takes to run these tasks in time; returns how many tasks they run."""
        left = tasks
        for index, batch in enumerate(self._free):
            each = batch.tasks_each(task_seconds, within_seconds)
            left -= each * self._use(index, batch.slots_for(left, task_seconds, within_seconds))
        return tasks - max(0, left)

    def _use(self, index: int, slots: int) -> int:
        batch = self._free[index]
        self._free[index] = Batch(batch.slots - slots, batch.from_seconds)
        self.used += slots
        return slots

    def reserve(self, units: int) -> None:
        """Start units up to this number, whether there is work for them or not."""
        if self.manager.fixed:
            return
        short = units - self.manager.units
        if self.manager.max_units is not None:
            short = min(short, self.manager.max_units - self.manager.units)
        if short > 0:
            self._start(int(min(short, self._affordable())))
            self.reasons.append(f"the minimum is {units}")

    def growth(self, limit_units: int | None, most_slots: int, set_aside: float = 0.0) -> Batch:
        """Return the slots that may be added, at most so many. set_aside: what may be spent on others only."""
        if self.manager.fixed:
            return Batch(0, self.startup)
        step = self.manager.unit_slots
        units = self._affordable(set_aside)
        if limit_units is not None:
            units = min(units, max(0, limit_units - self.manager.units - self.grown))
        return Batch(int(min(most_slots, self.grown * step - self._growth_used + units * step)), self.startup)

    def wish(self, slots: int, limit_units: int | None) -> int:
        """Note that so many more slots would be of use, though not enough to start them; returns how many may be."""
        taken = self.growth(limit_units, max(0, slots)).slots
        self.wished += taken
        return taken

    def grow(self, slots: int, limit_units: int | None) -> int:
        """Add up to so many slots; returns how many."""
        taken = self.growth(limit_units, max(0, slots)).slots
        step = self.manager.unit_slots
        units = math.ceil(max(0, taken - (self.grown * step - self._growth_used)) / step)
        self._start(units)
        self._growth_used += taken
        if taken < slots:
            self.limit = "no more may be spent" if self._affordable() < 1 else "it may have no more"
        return taken

    def cost(self, growth: Batch) -> float:
        """Return what it would add per hour to start the units of these slots."""
        return max(0, math.ceil(growth.slots / self.manager.unit_slots) - self._promised) * self._price

    def _affordable(self, set_aside: float = 0.0) -> float:
        return self._promised + self._purse.affords(self._price, set_aside)

    def _start(self, units: int) -> None:
        self.grown += units
        free = min(units, self._promised)
        self._promised -= free
        self._purse.left -= (units - free) * self._price
