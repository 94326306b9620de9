"""The policy `target_v1`: finishes work in time, at the least cost. Pure."""

from __future__ import annotations

import math

from scaler.errors import UsageError
from scaler.policy.load import entries, key_value
from scaler.policy.sizing import Constraints, Sizing
from scaler.policy.view import Allocation, ClusterView, Wanted

FIRST_SLOTS = 16
GLOBAL_KEYS = ("finish_seconds", "first_slots")
MANAGER_KEYS = ("idle_seconds",)
MOVED = {
    "ceiling_per_hour": "set spend_limit in [scheduler] instead, such as 12/hour",
    "minimum_units": "set it in the manager's [[worker_manager]] instead",
    "maximum_units": "set max_task_concurrency in the manager's [[worker_manager]] instead",
    "price_per_hour": "set unit_price in the manager's [[worker_manager]] instead",
}


class TargetPolicy:
    """Finishes work in time on the cheapest suitable units.

    The content has entries `key=value`, one per line or separated by `;`. All are optional::

        finish_seconds=600          # acceptable completion time; default: nearly the shortest
        first_slots=16              # initial slots for a function without finished tasks
        idle_seconds=60             # time until unneeded units stop
        cloud.idle_seconds=300      # for the worker manager cloud only

    Cheaper units, by their manager's unit_price, start first. Text after `#` is ignored.
    """

    def __init__(self, policy_content: str) -> None:
        self.allocation = Allocation(prefer_least_capable=True)
        self._constraints = parse(policy_content)
        self.named_managers = frozenset(manager_id for _, manager_id in self._constraints.values if manager_id)
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        # Cheapest slots first, then fewest capabilities, then order of connection.
        preferred = sorted(view.managers, key=lambda each: (each.slot_price, len(each.offers.items)))
        return self._sizing.plan(view, {each.manager_id: each.max_units for each in preferred}, self._constraints)


def parse(policy_content: str) -> Constraints:
    values: dict[tuple[str, str], float] = {}
    for entry in entries(policy_content):
        if text := MOVED.get(entry.partition("=")[0].rpartition(".")[2].strip()):
            raise UsageError(f"policy_content {entry!r}: {text}")
        manager_id, key, text = key_value(
            entry, GLOBAL_KEYS + MANAGER_KEYS, "finish_seconds=600, or manager.key=value, such as cloud.idle_seconds=60"
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
    if not math.isfinite(value) or value < 0 or (value == 0 and key in GLOBAL_KEYS):
        raise UsageError(f"policy_content {entry!r}: {key} must be {'above' if key in GLOBAL_KEYS else 'at least'} 0")
    if key == "first_slots" and value != int(value):
        raise UsageError(f"policy_content {entry!r}: {key} must be a whole number")
    return value
