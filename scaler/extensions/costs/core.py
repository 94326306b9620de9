"""Charges units, enforces the spend limit, and reports spending. Pure.

Units are charged by age: each report adds the difference to the previous one, so late reports lose nothing. Units in a
queue cost nothing.

Invariant: while a limit is reached, the scheduler requests no paid unit from any worker manager that it scales. A unit
starts only if the budget covers its minimum charge and one minute of every existing paid unit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from scaler.extensions.costs import PERIODS, CostSettings, parse_spend_limit
from scaler.extensions.interface import SchedulerPart
from scaler.extensions.scaling.units import ManagerUnits, Spending
from scaler.grammar import timed
from scaler.monitor.cluster_rows import SpendingRow
from scaler.policy.view import ClusterView, Demand, ManagerView, Wanted
from scaler.protocol.messages import UnitState
from scaler.scheduler.additions import Additions, Reader
from scaler.scheduler.core.changes import Noted, Told
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Perform
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import Worker

WINDOWS = {"hour": 3600.0, "day": 86400.0}
"""Length in seconds of the sliding windows. The period "run" covers the whole run."""
WARNING_SHARE = 0.8
"""Share of a limit at which users are warned. After a limit was reached, paid units start again once spending is below
this share."""
CALM_SHARE = 0.7
"""Re-arm the warning once spending falls below this share."""
LEAST_SECONDS = 60.0
"""Minimum time (seconds) that the budget must cover before a unit starts."""
_BUCKET_SECONDS = 60.0
_ROUNDING = 1e-9


@dataclass(slots=True)
class UnitCharge:
    """Amount charged for a unit. free_seconds: queue time included in the unit's age."""

    charged: float
    free_seconds: float = 0.0


@dataclass
class SpendingLedger(Spending):
    """Costs of all units since began_at, the start of the run. limits: by period. The scheduler consults the ledger
    before it starts units."""

    limits: Mapping[str, float]
    began_at: float
    run: float = 0.0
    by_manager: dict[str, float] = field(default_factory=dict)
    forecast: float | None = 0.0
    """Expected cost of the current work. None if unknown."""
    per_hour: float = 0.0
    reached: set[str] = field(default_factory=set)
    """Periods whose limit was reached and whose spending is still at least WARNING_SHARE."""
    _units: dict[str, dict[str, UnitCharge]] = field(default_factory=dict)
    _buckets: deque[tuple[float, float]] = field(default_factory=deque)
    """Start and total charge of each minute of the last day."""
    _levels: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_limited = bool(self.limits)

    def charge_unit(
        self, manager: str, unit: str, age_seconds: float, now: float, *, price: float, minimum_seconds: float = 0.0
    ) -> None:
        """Charge a unit up to this age. price: per hour."""
        units = self._units.setdefault(manager, {})
        if unit not in units:
            # Exclude the time before the run.
            units[unit] = UnitCharge(price / 3600 * max(0.0, age_seconds - (now - self.began_at)))
        known = units[unit]
        due = price / 3600 * max(minimum_seconds, age_seconds - known.free_seconds)
        self._add(manager, known, due, now)

    def charge_tasks(self, manager: str, unit: str, paid_seconds: float, now: float, *, price: float) -> None:
        """Charge a unit's tasks. paid_seconds: total of all its tasks. price: per task and hour."""
        due = price / 3600 * paid_seconds
        # A unit seen for the first time ran its earlier tasks before this run.
        known = self._units.setdefault(manager, {}).setdefault(unit, UnitCharge(due))
        self._add(manager, known, due, now)

    def _add(self, manager: str, known: UnitCharge, due: float, now: float) -> None:
        amount = due - known.charged
        if amount <= 0:
            return
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

    def queued(self, manager: str, unit: str, age_seconds: float) -> None:
        self._units.setdefault(manager, {}).setdefault(unit, UnitCharge(0.0)).free_seconds = age_seconds

    def forget_others(self, manager: str, units: Collection[str]) -> None:
        known = self._units.get(manager, {})
        for unit in known.keys() - units:
            del known[unit]

    def spent(self, period: str, now: float) -> float:
        """Return the amount spent in the last hour or day (to the minute), or in the run."""
        if period == "run":
            return self.run
        return self.spent_within(WINDOWS[period], now)

    def spent_within(self, seconds: float, now: float) -> float:
        since = now - seconds - _BUCKET_SECONDS
        return math.fsum(amount for begun, amount in self._buckets if begun > since)

    def check(self, now: float) -> list[str]:
        """Return warnings about limits nearly spent or reached, each once until spending falls below CALM_SHARE."""
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
        text = f"{self._of(period, now)} has been spent"
        if level == 2:
            return f"{text}: paid units drain, and only free units start"
        return f"{text}; at the limit, only free units continue"

    def _of(self, period: str, now: float) -> str:
        limit = self.limits[period]
        digits = max(2, 2 - math.floor(math.log10(limit)))  # more digits for small limits
        return f"{self.spent(period, now):.{digits}f} of {limit:.{digits}f} per {period}"

    def why(self, now: float) -> str:
        """Explain why no paid unit starts, quoting the limit that blocks longest."""
        if self.reached:
            period = max(self.reached, key=lambda period: self.free_in(period, now))
            seconds = self.free_in(period, now)
            after = (
                f"paid units start again in about {timed(seconds)}"
                if math.isfinite(seconds)
                else "raise the limit to continue"
            )
            return f"spend_limit: {self._of(period, now)} has been spent; {after}"
        period = min(self.limits, key=lambda period: self.limits[period] - self.spent(period, now))
        return f"spend_limit: {self._of(period, now)} has been spent, and another unit would exceed it"

    def free_in(self, period: str, now: float) -> float:
        """Return the seconds until paid units may start again, assuming no further spending."""
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
        """Return the seconds until a limit is reached at the current cost rate. Infinite if never."""
        limit, spent, rate = self.limits[period], self.spent(period, now), self.per_hour / 3600
        if spent >= limit:
            return 0.0
        # At this rate, charges expire from the window before their sum reaches its limit.
        is_never = rate <= 0 or (period in WINDOWS and rate * WINDOWS[period] <= limit)
        return math.inf if is_never else (limit - spent) / rate

    def next_limit(self, now: float) -> tuple[str, float]:
        """Return the limit that is reached first, and in how many seconds. ("", inf) if none is reached."""
        found = min(((self.reached_in(period, now), period) for period in self.limits), default=(math.inf, ""))
        return (found[1], found[0]) if math.isfinite(found[0]) else ("", math.inf)

    # -- called by the scheduler

    def began(self, manager: ManagerUnits, worker: Worker) -> None:
        self._units.setdefault(manager.name, {}).setdefault(worker.details.unit_id, UnitCharge(0.0))

    def left(self, manager: ManagerUnits, worker: Worker, now: float) -> None:
        self._charge_worker(manager, worker, now)

    def charge(self, managers: Iterable[ManagerUnits], now: float) -> Iterable[str]:
        paid = [each for each in managers if each.details.unit_price and each.status is not None]
        self.per_hour = sum(self._charge_manager(manager, now) for manager in paid)
        return self.check(now)

    def _charge_manager(self, manager: ManagerUnits, now: float) -> float:
        """Charge a manager's units. Returns their cost per hour."""
        alive, price = 0.0, manager.details.unit_price
        known = {unit.unit_id for unit in manager.reported}
        if manager.details.charges_tasks:
            known |= manager.running.keys()
            alive = price * sum(self._charge_worker(manager, worker, now) for worker in manager.running.values())
        for unit in () if manager.details.charges_tasks else manager.reported:
            has_ended = unit.state in (UnitState.FAILED, UnitState.STOPPED)
            age = unit.age_seconds + (0.0 if has_ended else now - manager.status_at)
            if unit.state is UnitState.WAITING:
                self.queued(manager.name, unit.unit_id, age)
                continue
            minimum = manager.details.unit_minimum_seconds
            self.charge_unit(manager.name, unit.unit_id, age, now, price=price, minimum_seconds=minimum)
            alive += 0.0 if has_ended else price
        self.forget_others(manager.name, known)
        return alive

    def _charge_worker(self, manager: ManagerUnits, worker: Worker, now: float) -> int:
        """Charge the tasks of a worker. Returns the number of charged tasks that it is running."""
        heartbeat, unit = worker.reports.heartbeat, worker.details.unit_id
        if heartbeat is None:
            return 0
        self.charge_tasks(manager.name, unit, heartbeat.paid_seconds, now, price=manager.details.unit_price)
        return heartbeat.paid_tasks

    def budget(self, managers: Iterable[ManagerView], now: float) -> float:
        """Return the budget for new units and tasks, less a reserved minute of all existing units. Infinite without
        limits."""
        if self.reached:
            return 0.0
        reserved = 0.0
        for manager in managers:
            paid = manager.tasks_begun if manager.charges_tasks else manager.units
            reserved += manager.unit_price / 3600 * LEAST_SECONDS * paid
            reserved += least_charge(manager) * max(0, manager.tasks - manager.tasks_begun)
        left = min((limit - self.spent(period, now) for period, limit in self.limits.items()), default=math.inf)
        return max(0.0, left - reserved)

    def affordable(self, view: ClusterView) -> ClusterView:
        """Limit the slots of paid managers to the budget, which makes policies use other managers."""
        if self.limits:
            left = self.budget(view.managers, view.now)
            view = replace(view, managers=tuple(self._affordable(manager, left) for manager in view.managers))
        self.forecast = cost_of_work(view.demand, view.managers)
        return view

    def _affordable(self, manager: ManagerView, left: float) -> ManagerView:
        if manager.unit_price <= 0 or manager.fixed:
            return manager
        units = self._most_units(manager, left)
        is_less = manager.max_units is None or units < manager.max_units
        return replace(manager, max_slots=units * manager.unit_slots) if is_less else manager

    def _most_units(self, manager: ManagerView, left: float) -> int:
        return 0 if self.reached else manager.units + math.floor(left / least_charge(manager) + _ROUNDING)

    def limited(
        self, managers: Sequence[ManagerView], wanted: Mapping[str, Wanted], now: float
    ) -> tuple[dict[str, Wanted], dict[str, str]]:
        """Apply the limits to a policy's answer, cheapest units first. Also return the reasons why managers start no
        more units."""
        answer, reasons = dict(wanted), dict[str, str]()
        if not self.limits:
            return answer, reasons
        left = self.budget(managers, now)
        for manager in sorted(managers, key=lambda manager: manager.slot_price):
            if manager.unit_price <= 0 or manager.fixed:
                continue
            here, most = 0 if self.reached else manager.units, self._most_units(manager, left)
            each = answer.get(manager.manager_id)
            if each is not None:
                units = min(each.units, most)
                reason = self.why(now) if self.reached or units < each.units else each.reason
                most_units = most if each.most_units is None else min(each.most_units, most)
                kept = max(0, each.kept - (each.units - units))
                limited = replace(each, units=units, reason=reason, most_units=most_units, kept=kept)
                answer[manager.manager_id] = limited
                left -= max(0, units - here) * least_charge(manager)
            elif self.reached:
                answer[manager.manager_id] = Wanted(0, self.why(now), 0)
            if most <= here:
                reasons[manager.manager_id] = self.why(now)
        return answer, reasons

    def task_charge(self, manager: ManagerView, task_seconds: float) -> float:
        return task_charge(manager, task_seconds)

    def to_json(self, now: float) -> dict[str, Any]:
        """Return the state for `restore`. Times are stored as ages."""
        units = {
            manager: {unit: [each.charged, each.free_seconds] for unit, each in units.items()}
            for manager, units in self._units.items()
        }
        buckets = [[now - begun, amount] for begun, amount in self._buckets]
        sums = {"age": now - self.began_at, "run": self.run, "by_manager": self.by_manager}
        return {**sums, "units": units, "buckets": buckets}

    def restore(self, document: Mapping[str, Any], now: float) -> None:
        """Restore the state that `to_json` returned. Raises ValueError for an invalid document."""
        try:
            self.began_at = now - float(document["age"])
            self.run = float(document["run"])
            self.by_manager = {str(name): float(sum_) for name, sum_ in document["by_manager"].items()}
            self._buckets = deque((now - float(age), float(amount)) for age, amount in document["buckets"])
            self._units = {
                manager: {unit: UnitCharge(float(charged), float(free)) for unit, (charged, free) in units.items()}
                for manager, units in document["units"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a spending record: {error!r}") from None


def least_charge(manager: ManagerView) -> float:
    """Return the minimum charge of one more unit, or of one more task if the manager charges tasks."""
    return manager.unit_price / 3600 * max(manager.unit_minimum_seconds, LEAST_SECONDS)


def task_charge(manager: ManagerView, task_seconds: float) -> float:
    if not manager.charges_tasks:
        return 0.0
    return manager.unit_price / 3600 * max(manager.unit_minimum_seconds, task_seconds)


def cost_of_work(demand: Iterable[Demand], managers: Sequence[ManagerView]) -> float | None:
    """Return the cost of all queued and running tasks on the current slots. None until a duration has been measured.
    Without units, slots of the cheapest manager are assumed. Managers that charge tasks are charged for the tasks that
    they received, and for other tasks only if no other manager exists."""
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


def kept_per_hour(manager: ManagerUnits) -> float:
    if manager.wanted is None or manager.details.charges_tasks:
        return 0.0
    return manager.wanted.kept * manager.details.unit_price


SAVE_SECONDS = 5.0
"""Interval between saves. After a restart, live units are charged for the time since the last save."""


class Saved(NamedTuple):
    """The ledger to save. unix_seconds and now: time of saving, by the wall clock and by the core's clock."""

    ledger: SpendingLedger
    unix_seconds: float
    now: float


class Costs(SchedulerPart):
    changes = (Told, Noted)

    def __init__(self, config: CostSettings) -> None:
        self.ledger = SpendingLedger(parse_spend_limit(config.spend_limit), 0.0)

    def bound(self, cluster: ClusterState) -> None:
        super().bound(cluster)
        self.ledger.began_at = cluster.now

    def spending(self) -> SpendingLedger:
        return self.ledger

    # -- state_directory

    def on_changes(self, changes: Sequence[Told | Noted], now: Now) -> Iterable[Command]:
        commands: list[Command] = []
        for change in changes:
            match change:
                case Told("costs", document):
                    self.ledger.restore(document["ledger"], now.clock - document["away_seconds"])
                case Noted("started"):
                    self.next_at = now.clock + SAVE_SECONDS
                case Noted("ended"):
                    commands += self._save(now)
        return commands

    def on_time(self, now: Now) -> Iterable[Command]:
        self.next_at = now.clock + SAVE_SECONDS
        return self._save(now)

    def _save(self, now: Now) -> list[Command]:
        return [Perform("costs", Saved(self.ledger, now.unix, self.cluster.own_time(now.clock)))]

    # -- status

    def add_to_status(self, reader: Reader) -> Additions:
        ledger = self.ledger
        spent = {manager: {"spent": round(amount, 6)} for manager, amount in ledger.by_manager.items()}
        head = {"spending": self._row(reader.seconds_today)._asdict()}
        return Additions(head, columns={"managers": spent})

    def _row(self, seconds_today: float) -> SpendingRow:
        ledger, now = self.ledger, self.cluster.own_time(self.cluster.now)
        limits = {f"{period}_limit": limit for period, limit in ledger.limits.items()}
        spent = {period: round(ledger.spent(period, now), 6) for period in PERIODS}
        period, seconds = ledger.next_limit(now)
        return SpendingRow(
            **spent,
            **limits,
            per_hour=round(ledger.per_hour, 6),
            kept_per_hour=round(sum(kept_per_hour(each) for each in self.cluster.rooms.scaling.managers.values()), 6),
            forecast=None if ledger.forecast is None else round(ledger.forecast, 6),
            reached=ledger.why(now) if ledger.reached else "",
            today=round(ledger.spent_within(seconds_today, now), 6),
            next_limit=period,
            limit_seconds=round(seconds) if period else None,
        )
