"""The policy `target_v1`: finishes work in time, at the least cost. Pure."""

from __future__ import annotations

import math

from scaler.errors import UsageError
from scaler.policy.load import entries, key_value
from scaler.policy.sizing import Constraints, Sizing
from scaler.policy.view import Allocation, ClusterView, ManagerView, Wanted

FIRST_SLOTS = 16
GLOBAL_KEYS = ("finish_seconds", "first_slots")
MANAGER_KEYS = ("maximum_units", "idle_seconds", "price_per_hour")
MOVED = {
    "ceiling_per_hour": "set spend_limit in [scheduler] instead, such as 12/hour",
    "minimum_units": "set it in the manager's [[worker_manager]] instead",
}
WHOLE = ("first_slots", "maximum_units")
ABOVE_ZERO = ("finish_seconds", "first_slots", "maximum_units")


class TargetPolicy:
    """Finishes work in time on the cheapest suitable units.

    The content has entries `key=value`, one per line or separated by `;`. All are optional::

        finish_seconds=600          # acceptable completion time; default: nearly the shortest
        first_slots=16              # for a function without finished tasks
        cloud.price_per_hour=0.35   # per unit of the worker manager cloud; cheaper units start first
        cloud.maximum_units=40
        idle_seconds=60             # time until unneeded units stop

    The last three keys apply to every worker manager without its own entry. Text after `#` is ignored.
    """

    def __init__(self, policy_content: str) -> None:
        self.allocation = Allocation(prefer_least_capable=True)
        self._constraints = parse(policy_content)
        self.named_managers = frozenset(manager_id for _, manager_id in self._constraints.values if manager_id)
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        # Cheapest slots first, then fewest capabilities, then order of connection.
        price = self._constraints.price
        preferred = sorted(view.managers, key=lambda each: (price(each) / each.unit_slots, len(each.offers.items)))
        limits = {manager.manager_id: self._limit_units(manager) for manager in preferred}
        return self._sizing.plan(view, limits, self._constraints)

    def _limit_units(self, manager: ManagerView) -> int | None:
        limits = [self._constraints.get("maximum_units", manager.manager_id), manager.max_units]
        return min((int(units) for units in limits if units is not None), default=None)


def parse(policy_content: str) -> Constraints:
    values: dict[tuple[str, str], float] = {}
    for entry in entries(policy_content):
        if text := MOVED.get(entry.partition("=")[0].rpartition(".")[2].strip()):
            raise UsageError(f"policy_content {entry!r}: {text}")
        manager_id, key, text = key_value(
            entry,
            GLOBAL_KEYS + MANAGER_KEYS,
            "finish_seconds=600, or manager.key=value, such as cloud.price_per_hour=0.35",
        )
        if manager_id and key in GLOBAL_KEYS:
            raise UsageError(
                f"policy_content {entry!r}: {key} applies to all worker managers together: write {key}={text}"
            )
        if (key, manager_id) in values:
            raise UsageError(f"policy_content {entry!r}: {key!r} is given twice")
        values[key, manager_id] = _value(entry, key, text)
    return Constraints({("first_slots", ""): FIRST_SLOTS, **values})


def _value(entry: str, key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"policy_content {entry!r}: {text!r} is not a number") from None
    if not math.isfinite(value) or value < 0 or (value == 0 and key in ABOVE_ZERO):
        raise UsageError(f"policy_content {entry!r}: {key} must be {'above' if key in ABOVE_ZERO else 'at least'} 0")
    if key in WHOLE and value != int(value):
        raise UsageError(f"policy_content {entry!r}: {key} must be a whole number")
    return value
