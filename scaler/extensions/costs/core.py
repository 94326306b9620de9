"""Charges units, enforces the spend limit, and reports spending. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scaler.extensions.costs import ledger as rules
from scaler.extensions.costs.ledger import SpendingLedger
from scaler.extensions.costs.settings import PERIODS, CostSettings, parse_spend_limit
from scaler.extensions.interface import SchedulerPart
from scaler.policy.view import ClusterView, ManagerView, Wanted
from scaler.protocol.messages import UnitState
from scaler.protocol.monitor_rows import SpendingRow
from scaler.scheduler.core.changes import Noted, Told
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Perform
from scaler.scheduler.core.rooms import Additions, Now, Reader
from scaler.scheduler.core.state import Worker
from scaler.scheduler.scaling.spending import Spending
from scaler.scheduler.scaling.units import ManagerUnits

SAVE_SECONDS = 5.0
"""Interval between saves. After a restart, live units are charged for the time since the last save."""


class Saved(NamedTuple):
    """The ledger to save. unix_seconds and now: time of saving, by the wall clock and by the core's clock."""

    ledger: SpendingLedger
    unix_seconds: float
    now: float


class Costs(SchedulerPart, Spending):
    """Owns the ledger that the scheduler consults before it starts units."""

    changes = (Told, Noted)

    def __init__(self, config: CostSettings) -> None:
        self.ledger = SpendingLedger(parse_spend_limit(config.spend_limit), 0.0)
        self.is_limited = bool(self.ledger.limits)

    def bound(self, cluster: ClusterState) -> None:
        super().bound(cluster)
        self.ledger.began_at = cluster.now

    def spending(self) -> Spending:
        return self

    @property
    def run(self) -> float:
        return self.ledger.run

    # -- called by the scheduler

    def began(self, manager: ManagerUnits, worker: Worker) -> None:
        self.ledger.begin(manager.name, worker.details.unit_id)

    def left(self, manager: ManagerUnits, worker: Worker, now: float) -> None:
        self._charge_tasks(manager, worker, now)

    def charge(self, managers: Iterable[ManagerUnits], now: float) -> Iterable[str]:
        ledger, alive = self.ledger, 0.0
        for manager in managers:
            if manager.details.unit_price and manager.status is not None:
                alive += self._charge_manager(manager, now)
        ledger.per_hour = alive
        return ledger.check(now)

    def affordable(self, view: ClusterView) -> ClusterView:
        affordable = rules.affordable(self.ledger, view)
        self.ledger.forecast = rules.cost_of_work(view.demand, affordable.managers)
        return affordable

    def limited(
        self, managers: Sequence[ManagerView], wanted: Mapping[str, Wanted], now: float
    ) -> tuple[dict[str, Wanted], dict[str, str]]:
        return rules.limited(self.ledger, managers, wanted, now)

    def budget(self, managers: Iterable[ManagerView], now: float) -> float:
        return rules.budget(self.ledger, managers, now)

    def task_charge(self, manager: ManagerView, task_seconds: float) -> float:
        return rules.task_charge(manager, task_seconds)

    def _charge_manager(self, manager: ManagerUnits, now: float) -> float:
        ledger, alive = self.ledger, 0.0
        price, minimum = manager.details.unit_price, manager.details.unit_minimum_seconds
        if manager.details.charges_tasks:
            for worker in manager.running.values():
                alive += price * self._charge_tasks(manager, worker, now)
            ledger.forget_others(manager.name, {unit.unit_id for unit in manager.reported} | manager.running.keys())
            return alive
        for unit in manager.reported:
            has_ended = unit.state in (UnitState.FAILED, UnitState.STOPPED)
            age = unit.age_seconds + (0.0 if has_ended else now - manager.status_at)
            if unit.state is UnitState.WAITING:
                ledger.queued(manager.name, unit.unit_id, age)
                continue
            ledger.charge(manager.name, unit.unit_id, age, now, price=price, minimum_seconds=minimum)
            alive += 0.0 if has_ended else price
        ledger.forget_others(manager.name, {unit.unit_id for unit in manager.reported})
        return alive

    def _charge_tasks(self, manager: ManagerUnits, worker: Worker, now: float) -> int:
        heartbeat, unit = worker.reports.heartbeat, worker.details.unit_id
        if heartbeat is None:
            return 0
        price = manager.details.unit_price
        self.ledger.charge_tasks(manager.name, unit, heartbeat.paid_seconds, now, price=price)
        return heartbeat.paid_tasks

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
            forecast=None if ledger.forecast is None else round(ledger.forecast, 6),
            reached=ledger.why(now) if ledger.reached else "",
            today=round(ledger.spent_within(seconds_today, now), 6),
            next_limit=period,
            limit_seconds=round(seconds) if period else None,
        )
