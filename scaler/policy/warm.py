"""Warm capacity: a worker manager's units beyond the number that the policy wants. Pure.

`minimum_units` always exist. `warm_units` running units remain when work ends; no unit starts to reach this number.
`buffer_units` are free or starting units in addition to the busy ones, while there is work. The buffer does not grow
while tasks wait for slots, because they would occupy it, and the policy decides how many units they justify.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from scaler.grammar import counted
from scaler.policy.capacity import Cooldown, longest_idle_seconds, replacement_seconds
from scaler.policy.view import ClusterView, ManagerView, Wanted

WARM_KEYS = ("minimum_units", "warm_units", "buffer_units")


class WarmCapacity:
    def __init__(self) -> None:
        self._buffers: dict[str, Cooldown] = {}
        self._reported: set[str] = set()

    def added(self, view: ClusterView, answer: Mapping[str, Wanted]) -> tuple[dict[str, Wanted], str]:
        """Return a policy's answer raised to the warm capacity, and a complaint about its limits, or ""."""
        here = {manager.manager_id: manager for manager in view.managers if not manager.fixed}
        self._buffers = {key: buffer for key, buffer in self._buffers.items() if key in here}
        raised, complaint = dict(answer), ""
        for key, manager in here.items():
            floors = {
                "minimum_units": manager.minimum_units,
                "warm_units": min(manager.warm_units, manager.units_running),
                "buffer_units": self._buffered(manager, view) if manager.buffer_units else 0,
            }
            name = max(floors, key=lambda name: floors[name])
            wanted, units = answer.get(key), floors[name]
            most = _policy_limit(manager, wanted)
            if most is not None and units > most:
                units = most
                if manager.minimum_units > most and key not in self._reported:
                    self._reported.add(key)
                    allowed = f"allows {counted(most, 'unit')} of {key}"
                    complaint = f"{allowed}, fewer than its minimum_units ({manager.minimum_units})"
            if wanted is not None:
                kept = units - wanted.units
            else:  # an omitted manager keeps its units
                kept = units - math.ceil(manager.busy_slots / manager.unit_slots) if manager.units <= units else 0
            if kept > 0:
                text = f"kept: {name}={getattr(manager, name)}{_cost(manager, kept)}"
                before = Wanted(units, text) if wanted is None else wanted
                reason = text if wanted is None else f"{wanted.reason}; {text}"
                raised[key] = replace(before, units=units, reason=reason, kept=kept)
        return raised, complaint

    def _buffered(self, manager: ManagerView, view: ClusterView) -> int:
        """Return the units needed for the busy slots plus the buffer. The number falls only after a cooldown."""
        key, slots = manager.manager_id, manager.unit_slots
        waiting = any(row.queued for row in view.demand if row.needs.fits(manager.offers))
        has_work = manager.busy_slots > 0
        is_full = waiting and manager.busy_slots >= manager.units_running * slots
        needed = math.ceil(manager.busy_slots / slots) + manager.buffer_units if has_work and not is_full else 0
        if manager.max_units is not None:
            needed = min(needed, manager.max_units)
        cooldown = self._buffers.setdefault(key, Cooldown(0, view.now))
        return cooldown.level(needed, longest_idle_seconds(replacement_seconds(manager)), view.now, has_work=has_work)


def _policy_limit(manager: ManagerView, wanted: Wanted | None) -> int | None:
    """Return the policy's maximum if it is below the manager's limit, else None."""
    most = None if wanted is None else wanted.most_units
    return most if most is not None and (manager.max_units is None or most < manager.max_units) else None


def _cost(manager: ManagerView, units: int) -> str:
    price = 0.0 if manager.charges_tasks else units * manager.unit_price
    return f", {price:.2f} per hour" if price >= 0.01 else f", {price:.2g} per hour" if price else ""
