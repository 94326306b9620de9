"""The built-in policies `target_v1`, `waterfall_v1`, and `simple`, which share the optimizer of `sizing.py`. Pure."""

from __future__ import annotations

import math
from operator import itemgetter

from scaler.errors import UsageError
from scaler.policy.load import entries, key_value, unknown
from scaler.policy.sizing import Constraints, Sizing
from scaler.policy.view import NO_LIMIT, Allocation, ClusterView, ManagerView, Wanted

FIRST_SLOTS = 16
UNPRICED = "; ceiling_per_hour has no effect: set unit_price of a worker manager, or price_per_hour"
GLOBAL_KEYS = ("finish_seconds", "ceiling_per_hour", "first_slots")
MANAGER_KEYS = ("minimum_units", "maximum_units", "idle_seconds", "price_per_hour")
WHOLE = ("first_slots", "minimum_units", "maximum_units")
ABOVE_ZERO = ("finish_seconds", "first_slots", "maximum_units")


class TargetPolicy:
    """Finishes work in time on the cheapest suitable units, within a cost ceiling.

    The content has entries `key=value`, one per line or separated by `;`. All are optional::

        finish_seconds=600          # acceptable completion time; default: the best trade-off of time and cost
        ceiling_per_hour=12         # maximum cost of all units together
        first_slots=16              # for a function without finished tasks
        cloud.price_per_hour=0.35   # per unit of the worker manager cloud; cheaper units start first
        cloud.maximum_units=40
        own.minimum_units=2         # kept even without work
        idle_seconds=60             # time until unneeded units stop

    The last four keys apply to every worker manager without its own entry. Text after `#` is ignored.
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
        wanted = self._sizing.plan(view, limits, self._constraints)
        if math.isinf(self._constraints.ceiling) or any(map(price, view.managers)):
            return wanted
        return {key: Wanted(each.units, each.reason + UNPRICED, each.most_units) for key, each in wanted.items()}

    def _limit_units(self, manager: ManagerView) -> int | None:
        limits = [self._constraints.get("maximum_units", manager.manager_id), manager.max_units]
        return min((int(units) for units in limits if units is not None), default=None)


def parse(policy_content: str) -> Constraints:
    values: dict[tuple[str, str], float] = {}
    for entry in entries(policy_content):
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
    constraints = Constraints({("first_slots", ""): FIRST_SLOTS, **values})
    _check(constraints)
    return constraints


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


def _check(constraints: Constraints) -> None:
    values, ceiling = constraints.values, constraints.ceiling
    for manager_id in sorted({manager_id for key, manager_id in values if key in MANAGER_KEYS}):
        minimum = constraints.get("minimum_units", manager_id) or 0
        maximum = constraints.get("maximum_units", manager_id)
        of = f" of {manager_id}" if manager_id else ""
        if maximum is not None and minimum > maximum:
            raise UsageError(f"policy_content: minimum_units{of} is {minimum:g}, above maximum_units, {maximum:g}")
        cost = minimum * (constraints.get("price_per_hour", manager_id) or 0.0)
        if cost > ceiling:
            raise UsageError(
                f"policy_content: minimum_units{of} cost {cost:g} per hour, above ceiling_per_hour, {ceiling:g}"
            )


COLUMNS = "priority,worker_manager_id,max_task_concurrency"


class WaterfallPolicy:
    """A list of worker managers, filled from the first and drained from the last.

    The content has one entry per manager, on separate lines or separated by `;`::

        priority,worker_manager_id,max_task_concurrency
        1,local,8
        2,cloud,-1

    The smallest priority is filled first; managers of equal priority are filled in the order of their entries. A
    manager gets the work that its predecessors cannot take, up to max_task_concurrency slots (-1: its own limit).
    Unlisted managers start nothing. The first line of the example and text after `#` are ignored.
    """

    def __init__(self, policy_content: str) -> None:
        self.allocation = Allocation()
        self._most_slots = _parse_waterfall(policy_content)
        self.named_managers = frozenset(self._most_slots)
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        managers = {manager.manager_id: manager for manager in view.managers}
        limits: dict[str, int | None] = {}
        for key, slots in self._most_slots.items():
            if key in managers:
                own, given = managers[key].max_units, slots // managers[key].unit_slots
                limits[key] = own if slots == NO_LIMIT else given if own is None else min(given, own)
        unlisted = {key: 0 for key in managers if key not in limits}
        wanted = self._sizing.plan(view, limits | unlisted)
        for key in unlisted & wanted.keys():
            text = f"the policy does not include this worker manager; it includes {', '.join(self._most_slots)}"
            wanted[key] = Wanted(wanted[key].units, text, 0)
        return wanted


def _parse_waterfall(policy_content: str) -> dict[str, int]:
    """Return maximum slots by manager, in filling order. Raises UsageError that quotes the invalid entry."""
    steps: list[tuple[int, str, int]] = []
    for entry in entries(policy_content):
        fields = [part.strip() for part in entry.split(",")]
        if ",".join(fields) == COLUMNS:
            continue
        if len(fields) != 3 or not fields[1]:
            raise UsageError(f"policy_content {entry!r}: write {COLUMNS}, such as 1,local,8")
        priority = _number(entry, "priority", fields[0])
        slots = _number(entry, "max_task_concurrency", fields[2])
        if slots < 1 and slots != NO_LIMIT:
            raise UsageError(f"policy_content {entry!r}: max_task_concurrency must be at least 1, or -1 for no limit")
        if any(manager_id == fields[1] for _, manager_id, _ in steps):
            raise UsageError(f"policy_content {entry!r}: worker manager {fields[1]!r} is listed twice")
        steps.append((priority, fields[1], slots))
    if not steps:
        raise UsageError(f"policy_content is empty: waterfall_v1 needs a line {COLUMNS} for each worker manager")
    return {manager_id: slots for _, manager_id, slots in sorted(steps, key=itemgetter(0))}


def _number(entry: str, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"policy_content {entry!r}: {name} {text!r} is not a whole number") from None


SIMPLE_CHOICES = {"allocate": ("even_load", "capability"), "scaling": ("no", "vanilla", "capability")}


class SimplePolicy:
    """`allocate=even_load|capability; scaling=no|vanilla|capability`.

    scaling=no: no units are started or stopped; fixed managers provide their configured units. scaling=vanilla: any
    manager that can run the work may grow, in order of connection. scaling=capability: managers with fewer capabilities
    grow first, so that plain tasks do not start GPU machines while other managers may grow.
    """

    def __init__(self, policy_content: str) -> None:
        allocate, self._scaling = _parse_simple(policy_content)
        self.allocation = Allocation(prefer_least_capable=allocate == "capability")
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        if self._scaling == "no":
            return {
                manager.manager_id: Wanted(manager.units, "scaling=no", manager.units)
                for manager in view.managers
                if not manager.fixed
            }
        managers = list(view.managers)
        if self._scaling == "capability":
            managers.sort(key=lambda manager: len(manager.offers.items))
        return self._sizing.plan(view, {manager.manager_id: manager.max_units for manager in managers})


def _parse_simple(policy_content: str) -> tuple[str, str]:
    given: dict[str, str] = {"allocate": "even_load", "scaling": "vanilla"}
    seen: set[str] = set()
    for entry in entries(policy_content):
        prefix, key, value = key_value(entry, given, "allocate=even_load; scaling=vanilla")
        if prefix:
            raise UsageError(unknown("policy_content: key", f"{prefix}.{key}", given))
        if key in seen:
            raise UsageError(f"policy_content: {key!r} is given twice")
        seen.add(key)
        given[key] = value
    for key, values in SIMPLE_CHOICES.items():
        if given[key] not in values:
            raise UsageError(unknown(f"policy_content: {key}", given[key], values))
    return given["allocate"], given["scaling"]
