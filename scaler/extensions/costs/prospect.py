"""Forecasts for each worker manager: the end of the current work, and the effect of one more unit. Pure.

A manager's work is every task that it can run, at the mean duration, spread over all slots that can run the task. A
running task counts as a whole task. Invariant: one more unit never delays the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from scaler.policy.capacity import Budget, CapacityPlan, SlotBatch, soonest_seconds
from scaler.policy.view import ClusterView, Demand, ManagerView, Wanted
from scaler.protocol.cost_rows import ScalingRow

MAX_MANAGERS = 20  # further managers get no forecast
MAX_TEXT = 200


def scaling_rows(view: ClusterView, wanted: Mapping[str, Wanted]) -> list[ScalingRow]:
    targets = {manager.manager_id: manager.units for manager in view.managers}
    targets |= {key: each.units for key, each in wanted.items()}
    rows = []
    for manager in view.managers[:MAX_MANAGERS]:
        row = _row(manager, view, targets)
        reason = wanted[row.id].reason if row.id in wanted else ""
        rows.append(row._replace(id=row.id[:MAX_TEXT], reason=reason[:MAX_TEXT], note=row.note[:MAX_TEXT]))
    return rows


def _row(manager: ManagerView, view: ClusterView, targets: Mapping[str, int]) -> ScalingRow:
    target = targets[manager.manager_id]
    row = ScalingRow(manager.manager_id, manager.units, target)
    demand = [each for each in view.demand if each.tasks and each.needs.fits(manager.offers)]
    if not demand:
        return row._replace(note="there are no tasks that it can run")
    unknown = [each.function for each in demand if _seconds(each) is None]
    if unknown:
        return row._replace(note=f"no task of {unknown[0]} has ended, so it is not known how long they take")
    tasks = sum(each.tasks for each in demand)
    task_seconds = sum(each.tasks * (_seconds(each) or 0.0) for each in demand) / tasks
    able = [each for each in view.managers if all(part.needs.fits(each.offers) for part in demand)]

    def end(extra: Mapping[str, int]) -> float:
        batches = [batch for each in able for batch in _batches(each, extra.get(each.manager_id, 0))]
        return soonest_seconds(_merged(batches), tasks, task_seconds)

    changes = {each.manager_id: targets[each.manager_id] - each.units for each in able}
    present, then = end({}), end(changes)
    row = row._replace(present_seconds=_known(present, 1), wanted_seconds=_known(then, 1))
    if note := _why_no_more(manager, target):
        return row._replace(note=note)
    more = min(then, end({**changes, manager.manager_id: changes[manager.manager_id] + 1}))
    rate = sum(targets[each.manager_id] * each.unit_price for each in able)
    saved = then - more if math.isfinite(then) else 0.0
    cost = (manager.unit_price * max(manager.unit_minimum_seconds, more) - rate * saved) / 3600
    return row._replace(more_seconds=_known(more, 1), more_cost=_known(cost, 6))


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


def _known(value: float, digits: int) -> float | None:
    return round(value, digits) if math.isfinite(value) else None
