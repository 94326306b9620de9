"""The policy `target_v1`: work done in time, on the cheapest units that can do it, and never for more than was allowed.

Its content has entries `key=value`, on lines of their own or separated by `;`. All of them may be left out::

    finish_seconds=600          # work need not be done sooner; without it: as soon as is worth its cost
    ceiling_per_hour=12         # the most that all units together may cost
    first_slots=16              # for a function none of whose tasks has ended yet
    cloud.price_per_hour=0.35   # of one unit of the worker manager cloud; cheaper ones are started first
    cloud.maximum_units=40
    own.minimum_units=2         # kept even without work
    idle_seconds=60             # for how long units stay that are not needed

The last four keys hold for every worker manager that has no entry of its own. Text after `#` says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scaler.errors import UsageError
from scaler.needs import Needs
from scaler.policy.load import unknown
from scaler.policy.sizing import Choice, Sizing, Terms
from scaler.policy.view import Allocation, ClusterView, ManagerView, Wanted
from scaler.policy.work import demanded

FIRST_SLOTS = 16
OF_ALL = ("finish_seconds", "ceiling_per_hour", "first_slots")
OF_EACH = ("minimum_units", "maximum_units", "idle_seconds", "price_per_hour")
WHOLE = ("first_slots", "minimum_units", "maximum_units")
ABOVE_ZERO = ("finish_seconds", "first_slots", "maximum_units")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the content says. of_each: by key, then by manager id; the empty id stands for all others."""

    finish_seconds: float | None = None
    ceiling_per_hour: float = math.inf
    first_slots: int = FIRST_SLOTS
    of_each: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def get(self, key: str, manager_id: str) -> float | None:
        """Return what holds for a manager; None when nothing was said."""
        given = self.of_each.get(key, {})
        return given.get(manager_id, given.get(""))

    def terms(self, managers: Iterable[ManagerView]) -> Terms:
        """Return what to ask of a plan for these managers."""
        ids = [manager.manager_id for manager in managers]

        def mapping(key: str) -> dict[str, float]:
            found = ((manager_id, self.get(key, manager_id)) for manager_id in ids)
            return {manager_id: value for manager_id, value in found if value is not None}

        return Terms(
            self.first_slots,
            self.finish_seconds,
            mapping("idle_seconds"),
            {manager_id: int(units) for manager_id, units in mapping("minimum_units").items()},
            mapping("price_per_hour"),
            self.ceiling_per_hour,
        )


class TargetPolicy:
    """See the module. Raises UsageError on content that it does not understand."""

    def __init__(self, policy_content: str) -> None:
        self.allocation = Allocation(prefer_least_capable=True)
        self._settings = parse(policy_content)
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        choices = [
            Choice(manager, self._limit_units(manager)) for manager in sorted(view.managers, key=self._preference)
        ]
        fitting = {needs: [choice for choice in choices if _fits(needs, choice)] for needs in demanded(view)}
        return self._sizing.plan(view, fitting, self._settings.terms(view.managers))

    def _preference(self, manager: ManagerView) -> tuple[float, int]:
        """The cheapest slots come first, then those that offer the least, then those that came first."""
        price = self._settings.get("price_per_hour", manager.manager_id) or 0.0
        return price / manager.unit_slots, len(manager.offers.items)

    def _limit_units(self, manager: ManagerView) -> int | None:
        maximum = self._settings.get("maximum_units", manager.manager_id)
        limits = [units for units in (maximum, manager.max_units) if units is not None]
        return int(min(limits)) if limits else None


def parse(policy_content: str) -> Settings:
    """Return what the content says. Raises UsageError that quotes the entry at fault."""
    given: dict[tuple[str, str], float] = {}
    for line in policy_content.splitlines():
        for entry in (part.strip() for part in line.partition("#")[0].split(";")):
            if not entry:
                continue
            manager_id, key, value = _entry(entry)
            if (key, manager_id) in given:
                raise UsageError(f"policy_content {entry!r}: {key!r} is given twice")
            given[key, manager_id] = value
    of_each: dict[str, dict[str, float]] = {}
    for (key, manager_id), value in given.items():
        if key in OF_EACH:
            of_each.setdefault(key, {})[manager_id] = value
    settings = Settings(
        given.get(("finish_seconds", "")),
        given.get(("ceiling_per_hour", ""), math.inf),
        int(given.get(("first_slots", ""), FIRST_SLOTS)),
        of_each,
    )
    _check(settings)
    return settings


def _entry(entry: str) -> tuple[str, str, float]:
    """Return manager id (empty for all), key and value."""
    left, separator, text = (part.strip() for part in entry.partition("="))
    if not separator:
        raise UsageError(
            f"policy_content {entry!r}: write key=value, such as finish_seconds=600, or manager.key=value, such as "
            f"cloud.price_per_hour=0.35"
        )
    manager_id, dot, key = left.rpartition(".")
    if key not in OF_ALL + OF_EACH:
        raise UsageError(unknown("policy_content: key", key, OF_ALL + OF_EACH))
    if dot and key in OF_EACH and not manager_id:
        raise UsageError(
            f"policy_content {entry!r}: write {key}={text} for all, or a worker manager's id before the dot"
        )
    if dot and key in OF_ALL:
        raise UsageError(f"policy_content {entry!r}: {key} holds for all worker managers together: write {key}={text}")
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"policy_content {entry!r}: {text!r} is not a number") from None
    if not math.isfinite(value) or value < 0 or (value == 0 and key in ABOVE_ZERO):
        raise UsageError(f"policy_content {entry!r}: {key} must be {'above' if key in ABOVE_ZERO else 'at least'} 0")
    if key in WHOLE and value != int(value):
        raise UsageError(f"policy_content {entry!r}: {key} must be a whole number")
    return manager_id, key, value


def _check(settings: Settings) -> None:
    """See that the settings can hold together."""
    ceiling = settings.ceiling_per_hour
    if math.isfinite(ceiling) and not any(settings.of_each.get("price_per_hour", {}).values()):
        raise UsageError(
            "policy_content: ceiling_per_hour needs prices: say what a unit costs, such as price_per_hour=0.35"
        )
    names = sorted({manager_id for given in settings.of_each.values() for manager_id in given})
    for manager_id in names:
        minimum = settings.get("minimum_units", manager_id) or 0
        maximum = settings.get("maximum_units", manager_id)
        of = f" of {manager_id}" if manager_id else ""
        if maximum is not None and minimum > maximum:
            raise UsageError(f"policy_content: minimum_units{of} is {minimum:g}, above maximum_units, {maximum:g}")
        cost = minimum * (settings.get("price_per_hour", manager_id) or 0.0)
        if cost > ceiling:
            raise UsageError(
                f"policy_content: minimum_units{of} cost {cost:g} per hour, above ceiling_per_hour, {ceiling:g}"
            )


def _fits(needs: Needs, choice: Choice) -> bool:
    return needs.fits(choice.manager.offers)
