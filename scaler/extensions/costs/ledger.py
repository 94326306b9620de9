"""What units have cost, and what a spend limit leaves. Pure.

Units are charged by their age, from their start to their end: a unit whose age is reported again is charged for the
difference, so reports may be late, and a restarted scheduler that knows what it has charged misses nothing. Units that
wait in a queue cost nothing yet.

Law: while a limit is reached, no paid unit is wanted of any worker manager that the scheduler scales. A unit is started
only if its minimum charge, and a minute of every paid unit that exists, fit in what is left.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scaler.extensions.costs.shares import CostShares
from scaler.policy.view import ClusterView, Demand, ManagerView, Wanted

WINDOWS = {"hour": 3600.0, "day": 86400.0}
"""The last seconds that a limit is about; those of the run are all."""
WARNING_SHARE = 0.8
"""At this share of a limit, users are warned; below it, paid units start again after the limit was reached."""
CALM_SHARE = 0.7
"""Below this share, later warnings are no repetitions."""
LEAST_SECONDS = 60.0
"""A unit that cannot be paid for as long is not started."""
_BUCKET_SECONDS = 60.0
_ROUNDING = 1e-9


@dataclass(slots=True)
class UnitCharge:
    """What was charged for a unit. free_seconds: of its age, those in a queue."""

    charged: float
    free_seconds: float = 0.0


@dataclass(slots=True)
class SpendingLedger:
    """What all units have cost since began_at, the start of the run. limits: by period."""

    limits: Mapping[str, float]
    began_at: float
    run: float = 0.0
    by_manager: dict[str, float] = field(default_factory=dict)
    forecast: float | None = 0.0
    """What the present work will cost; None: not known."""
    per_hour: float = 0.0
    reached: set[str] = field(default_factory=set)
    """Periods whose limit was reached, and of which more than WARNING_SHARE is still spent."""
    shares: CostShares = field(default_factory=CostShares)
    """Who has caused it. What was charged in the last second is not among them yet."""
    _units: dict[str, dict[str, UnitCharge]] = field(default_factory=dict)
    _buckets: deque[tuple[float, float]] = field(default_factory=deque)
    """Charges of each minute of the last day: when it began, and the sum."""
    _levels: dict[str, int] = field(default_factory=dict)

    def charge(
        self, manager: str, unit: str, age_seconds: float, now: float, *, price: float, minimum_seconds: float = 0.0
    ) -> float:
        """Charge a unit up to this age, and return by how much. price: of an hour."""
        units = self._units.setdefault(manager, {})
        if unit not in units:
            # What it cost before the run belongs to another one.
            units[unit] = UnitCharge(price / 3600 * max(0.0, age_seconds - (now - self.began_at)))
        known = units[unit]
        due = price / 3600 * max(minimum_seconds, age_seconds - known.free_seconds)
        return self._add(manager, known, due, now)

    def begin(self, manager: str, unit: str) -> None:
        """Note a unit whose tasks are charged, before the first of them."""
        self._units.setdefault(manager, {}).setdefault(unit, UnitCharge(0.0))

    def charge_tasks(self, manager: str, unit: str, paid_seconds: float, now: float, *, price: float) -> float:
        """Charge the tasks of a unit, and return what was added. paid_seconds: of all. price: per task and hour."""
        due = price / 3600 * paid_seconds
        # One that is not known had its tasks before the run.
        known = self._units.setdefault(manager, {}).setdefault(unit, UnitCharge(due))
        return self._add(manager, known, due, now)

    def _add(self, manager: str, known: UnitCharge, due: float, now: float) -> float:
        amount = due - known.charged
        if amount <= 0:
            return 0.0
        known.charged = due
        self.run += amount
        self.by_manager[manager] = self.by_manager.get(manager, 0.0) + amount
        begun = now - now % _BUCKET_SECONDS
        if self._buckets and self._buckets[-1][0] >= begun:
            begun, before = self._buckets.pop()
        else:
            before = 0.0
        self._buckets.append((begun, before + amount))
        while self._buckets[0][0] <= now - WINDOWS["day"] - _BUCKET_SECONDS:
            self._buckets.popleft()
        return amount

    def queued(self, manager: str, unit: str, age_seconds: float) -> None:
        """Note that a unit has waited in a queue all its life."""
        self._units.setdefault(manager, {}).setdefault(unit, UnitCharge(0.0)).free_seconds = age_seconds

    def forget_others(self, manager: str, units: Collection[str]) -> None:
        known = self._units.get(manager, {})
        for unit in known.keys() - units:
            del known[unit]

    def spent(self, period: str, now: float) -> float:
        """Return what was spent in the last hour or day, to the minute, or in the run."""
        if period == "run":
            return self.run
        return self.spent_within(WINDOWS[period], now)

    def spent_within(self, seconds: float, now: float) -> float:
        """Return what was spent in the last seconds, at most a day, to the minute."""
        since = now - seconds - _BUCKET_SECONDS
        return math.fsum(amount for begun, amount in self._buckets if begun > since)

    def check(self, now: float) -> list[str]:
        """Return texts about limits that are nearly spent or reached, each once until CALM_SHARE."""
        texts = []
        for period, limit in self.limits.items():
            share = self.spent(period, now) / limit + _ROUNDING
            if share >= 1:
                self.reached.add(period)
            elif share <= WARNING_SHARE:
                self.reached.discard(period)
            level = 2 if share >= 1 else 1 if share >= WARNING_SHARE else 0
            before = self._levels.get(period, 0)
            if level > before:
                texts.append(self._warning(period, level, now))
            if level > before or share < CALM_SHARE:
                self._levels[period] = level
        return texts

    def _warning(self, period: str, level: int, now: float) -> str:
        text = f"{self._of(period, now)} are spent"
        if level == 2:
            return f"{text}: paid units end when their tasks have, and only units that cost nothing start"
        return f"{text}; at the limit, only units that cost nothing continue"

    def _of(self, period: str, now: float) -> str:
        limit = self.limits[period]
        digits = max(2, 2 - math.floor(math.log10(limit)))  # small limits need more of them
        return f"{self.spent(period, now):.{digits}f} of {limit:.{digits}f} per {period}"

    def left(self, now: float) -> float:
        """Return what may still be spent; infinite without limits."""
        return min((limit - self.spent(period, now) for period, limit in self.limits.items()), default=math.inf)

    def why(self, now: float) -> str:
        """Return why no more paid units start, as text about the limit that keeps them longest."""
        if self.reached:
            period = max(self.reached, key=lambda period: self.free_in(period, now))
            seconds = self.free_in(period, now)
            after = f"they start again in about {_time(seconds)}" if math.isfinite(seconds) else "raise it to go on"
            return f"spend_limit: {self._of(period, now)} are spent; {after}"
        period = min(self.limits, key=lambda period: self.limits[period] - self.spent(period, now))
        return f"spend_limit: {self._of(period, now)} are spent, and one more unit would cost more than is left"

    def free_in(self, period: str, now: float) -> float:
        """Return in how many seconds paid units may start again, if nothing is spent until then."""
        if period == "run":
            return math.inf
        over = self.spent(period, now) - WARNING_SHARE * self.limits[period]
        last = since = now - WINDOWS[period] - _BUCKET_SECONDS
        for begun, amount in self._buckets:
            if over <= 0:
                break
            if begun > since:
                over -= amount
                last = begun
        return last - since

    def reached_in(self, period: str, now: float) -> float:
        """Return in how many seconds a limit is reached if units cost what they do now; infinite if it never is."""
        limit, spent, rate = self.limits[period], self.spent(period, now), self.per_hour / 3600
        if spent >= limit:
            return 0.0
        if rate <= 0:
            return math.inf
        if period == "run":
            return (limit - spent) / rate
        since = now - WINDOWS[period] - _BUCKET_SECONDS
        for begun, amount in self._buckets:
            if begun > since:
                seconds = begun - since  # until it counts no more
                if spent + rate * seconds >= limit:
                    return (limit - spent) / rate
                spent -= amount
        seconds = (limit - spent) / rate
        # What is spent from now on counts no more after that time either.
        return seconds if seconds <= now - since else math.inf

    def next_limit(self, now: float) -> tuple[str, float]:
        """Return the limit that is reached first, and in how many seconds; "" when none is."""
        found = min(((self.reached_in(period, now), period) for period in self.limits), default=(math.inf, ""))
        return (found[1], found[0]) if math.isfinite(found[0]) else ("", math.inf)

    def to_json(self, now: float) -> dict[str, Any]:
        """Return all that a later scheduler needs to go on; times are ages."""
        units = {
            manager: {unit: [each.charged, each.free_seconds] for unit, each in units.items()}
            for manager, units in self._units.items()
        }
        buckets = [[now - begun, amount] for begun, amount in self._buckets]
        sums = {"age": now - self.began_at, "run": self.run, "by_manager": self.by_manager}
        return {**sums, "units": units, "buckets": buckets, "shares": self.shares.to_json()}

    def restore(self, document: Mapping[str, Any], now: float) -> None:
        """Go on with what `to_json` returned. Raises ValueError when it is something else."""
        try:
            self.began_at = now - float(document["age"])
            self.run = float(document["run"])
            self.by_manager = {str(name): float(sum_) for name, sum_ in document["by_manager"].items()}
            self._buckets = deque((now - float(age), float(amount)) for age, amount in document["buckets"])
            self._units = {
                manager: {unit: UnitCharge(float(charged), float(free)) for unit, (charged, free) in units.items()}
                for manager, units in document["units"].items()
            }
            self.shares.restore(document.get("shares"), self.run)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a record of what was spent: {error!r}") from None


def least_charge(manager: ManagerView) -> float:
    """Return what one more unit costs at least; where tasks are charged, one more task."""
    return manager.unit_price / 3600 * max(manager.unit_minimum_seconds, LEAST_SECONDS)


def task_charge(manager: ManagerView, task_seconds: float) -> float:
    """Return what a task of this duration costs at a manager; 0 where tasks are not charged."""
    if not manager.charges_tasks:
        return 0.0
    return manager.unit_price / 3600 * max(manager.unit_minimum_seconds, task_seconds)


def budget(ledger: SpendingLedger, managers: Iterable[ManagerView], now: float) -> float:
    """Return what new units and tasks may cost after a minute of all existing ones; infinite without limits."""
    if ledger.reached:
        return 0.0
    reserved = 0.0
    for manager in managers:
        paid = manager.tasks_begun if manager.charges_tasks else manager.units
        reserved += manager.unit_price / 3600 * LEAST_SECONDS * paid
        reserved += least_charge(manager) * max(0, manager.tasks - manager.tasks_begun)
    return max(0.0, ledger.left(now) - reserved)


def affordable(ledger: SpendingLedger, view: ClusterView) -> ClusterView:
    """Return the view with no more slots of paid managers than may be paid for, so that policies use others."""
    if not ledger.limits:
        return view
    left = budget(ledger, view.managers, view.now)
    managers = []
    for manager in view.managers:
        if manager.unit_price > 0 and not manager.fixed:
            units = 0 if ledger.reached else manager.units + math.floor(left / least_charge(manager) + _ROUNDING)
            if manager.max_units is None or units < manager.max_units:
                manager = replace(manager, max_slots=units * manager.unit_slots)  # noqa: PLW2901
        managers.append(manager)
    return replace(view, managers=tuple(managers))


def limited(
    ledger: SpendingLedger, managers: Sequence[ManagerView], wanted: Mapping[str, Wanted], now: float
) -> tuple[dict[str, Wanted], dict[str, str]]:
    """Return a policy's answer within the limits, the cheapest units first, and why managers start no more units."""
    answer, reasons = dict(wanted), dict[str, str]()
    if not ledger.limits:
        return answer, reasons
    left = budget(ledger, managers, now)
    for manager in sorted(managers, key=lambda manager: manager.slot_price):
        if manager.unit_price <= 0 or manager.fixed:
            continue
        here = 0 if ledger.reached else manager.units
        most = here + math.floor(left / least_charge(manager) + _ROUNDING)
        each = answer.get(manager.manager_id)
        if each is not None:
            units = min(each.units, most)
            reason = ledger.why(now) if ledger.reached or units < each.units else each.reason
            most_units = most if each.most_units is None else min(each.most_units, most)
            answer[manager.manager_id] = Wanted(units, reason, most_units)
            left -= max(0, units - here) * least_charge(manager)
        elif ledger.reached:
            answer[manager.manager_id] = Wanted(0, ledger.why(now), 0)
        if most <= here:
            reasons[manager.manager_id] = ledger.why(now)
    return answer, reasons


def cost_of_work(demand: Iterable[Demand], managers: Sequence[ManagerView]) -> float | None:
    """Return what the queued and running tasks will cost on slots as they are now; None while nothing is measured.

    Without units, they are those of the cheapest manager. Where tasks are charged, those that it has cost that, and the
    others only if there is no other manager.
    """
    rows = list(demand)
    count = sum(row.tasks for row in rows if row.task_seconds is not None)
    if rows and not count:
        return None
    mean = sum(row.tasks * row.task_seconds for row in rows if row.task_seconds is not None) / max(1, count)
    charging = min((each for each in managers if each.charges_tasks), key=lambda each: each.slot_price, default=None)
    others = [each for each in managers if not each.charges_tasks]
    seconds = cost = 0.0
    for row in rows:
        each = mean if row.task_seconds is None else row.task_seconds
        there = 0
        if charging is not None:
            there = row.late if others else row.tasks
            cost += there * task_charge(charging, each)
        if others:
            seconds += (row.queued + (row.running - there) / 2) * each
    slots = sum(manager.units * manager.unit_slots for manager in others)
    rate = sum(manager.units * manager.unit_price for manager in others)
    cheapest = min((manager.slot_price for manager in others), default=0.0)
    return cost + seconds / 3600 * (rate / slots if slots else cheapest)


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{max(1, math.ceil(seconds / 60))} min"
