"""Forecasts for each worker manager: the end of the current work, and the effect of one more unit. Pure.

A manager's work is every task that it can run, at the mean duration, spread over all slots that can run the task. A
running task counts as a whole task. Invariant: one more unit never delays the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scaler.policy.capacity import Budget, CapacityPlan, SlotBatch, soonest_seconds
from scaler.policy.view import ClusterView, Demand, ManagerView, Wanted

MAX_MANAGERS = 20  # further managers get no forecast


@dataclass(frozen=True, slots=True)
class Prospect:
    """Forecast for one manager. Times are seconds from now. None if never, or unknown for the reason in note.

    present_seconds: end with the present units. wanted_seconds: end with the units that the policy wants.
    more_seconds: end with one more unit. more_cost: cost of that unit, less the savings on other units that end
    sooner.
    """

    manager_id: str
    units: int
    wanted_units: int
    present_seconds: float | None = None
    wanted_seconds: float | None = None
    more_seconds: float | None = None
    more_cost: float | None = None
    note: str = ""


def prospects(view: ClusterView, wanted: Mapping[str, Wanted]) -> list[Prospect]:
    targets = {manager.manager_id: manager.units for manager in view.managers}
    targets |= {key: each.units for key, each in wanted.items()}
    return [_prospect(manager, view, targets) for manager in view.managers[:MAX_MANAGERS]]


def _prospect(manager: ManagerView, view: ClusterView, targets: Mapping[str, int]) -> Prospect:
    target = targets[manager.manager_id]
    prospect = Prospect(manager.manager_id, manager.units, target)
    rows = [row for row in view.demand if row.tasks and row.needs.fits(manager.offers)]
    if not rows:
        return replace(prospect, note="there are no tasks that it can run")
    unknown = [row.function for row in rows if _seconds(row) is None]
    if unknown:
        return replace(prospect, note=f"no task of {unknown[0]} has ended, so it is not known how long they take")
    tasks = sum(row.tasks for row in rows)
    task_seconds = sum(row.tasks * (_seconds(row) or 0.0) for row in rows) / tasks
    able = [each for each in view.managers if all(row.needs.fits(each.offers) for row in rows)]

    def end(extra: Mapping[str, int]) -> float:
        batches = [batch for each in able for batch in _batches(each, extra.get(each.manager_id, 0))]
        return soonest_seconds(_merged(batches), tasks, task_seconds)

    changes = {each.manager_id: targets[each.manager_id] - each.units for each in able}
    present, then = end({}), end(changes)
    prospect = replace(prospect, present_seconds=_known(present), wanted_seconds=_known(then))
    if note := _why_no_more(manager, target):
        return replace(prospect, note=note)
    more = min(then, end({**changes, manager.manager_id: changes[manager.manager_id] + 1}))
    rate = sum(targets[each.manager_id] * each.unit_price for each in able)
    saved = then - more if math.isfinite(then) else 0.0
    cost = (manager.unit_price * max(manager.unit_minimum_seconds, more) - rate * saved) / 3600
    return replace(prospect, more_seconds=_known(more), more_cost=_known(cost))


def _seconds(row: Demand) -> float | None:
    """Return a task's measured duration or its user's estimate. The median of other functions is no basis."""
    return row.task_seconds if row.task_seconds is not None else row.expected_seconds if row.is_hint else None


def _why_no_more(manager: ManagerView, target: int) -> str:
    if manager.fixed:
        return "it starts what it is configured to, and no more"
    if manager.trouble:
        return f"it cannot start units now: {manager.trouble}"
    if manager.max_units is not None and target >= manager.max_units:
        return "it may have no more units"
    return ""


def _batches(manager: ManagerView, change: int) -> list[SlotBatch]:
    """Return a manager's slots after a change of units. Removes the units that would join last first."""
    plan = CapacityPlan(manager, None, Budget(), 0.0, manager.units)
    slots = change * manager.unit_slots
    if slots >= 0:
        return [*plan.free, SlotBatch(slots, plan.startup, dispatch_seconds=manager.dispatch_seconds)]
    left, batches = sum(batch.slots for batch in plan.free) + slots, []
    for batch in plan.free:
        batches.append(SlotBatch(min(batch.slots, max(0, left)), batch.from_seconds, 0.0, batch.dispatch_seconds))
        left -= batch.slots
    return batches


def _merged(batches: Sequence[SlotBatch]) -> list[SlotBatch]:
    slots: Counter[tuple[float, float]] = Counter()
    for batch in batches:
        slots[batch.from_seconds, batch.dispatch_seconds] += batch.slots
    return [SlotBatch(count, since, 0.0, late) for (since, late), count in slots.items()]


def _known(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
