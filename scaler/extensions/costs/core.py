"""Charges units, enforces the spend limit, and reports costs. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from scaler.extensions.costs import ledger as rules
from scaler.extensions.costs.ledger import SpendingLedger
from scaler.extensions.costs.settings import PERIODS, CostSettings, parse_spend_limit
from scaler.extensions.costs.shares import IDLE, CostSplit
from scaler.extensions.interface import SchedulerPart
from scaler.policy.view import ClusterView, ManagerView, Wanted
from scaler.protocol.cost_rows import CostRow
from scaler.protocol.messages import CostsFound, FindCosts, UnitState
from scaler.protocol.monitor_rows import SpendingRow
from scaler.scheduler.core.changes import Noted, Told
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Perform
from scaler.scheduler.core.rooms import Additions, Now, Reader
from scaler.scheduler.core.state import ClientRecord, Worker
from scaler.scheduler.scaling.spending import Spending
from scaler.scheduler.scaling.units import ManagerUnits
from scaler.scheduler.tables import table

SAVE_SECONDS = 5.0
"""Interval between saves. After a restart, live units are charged for the time since the last save."""
MAX_ROWS = 1_000
MAX_COSTS = 100
"""Rows of the status, largest shares first."""
COSTS_BYTES = 24 * 1024


class Saved(NamedTuple):
    """The ledger to save. unix_seconds and now: time of saving, by the wall clock and by the core's clock."""

    ledger: SpendingLedger
    unix_seconds: float
    now: float


class Costs(SchedulerPart, Spending):
    """Owns the ledger that the scheduler consults before it starts units."""

    changes = (Told, Noted)
    questions = (FindCosts,)

    def __init__(self, config: CostSettings) -> None:
        self.ledger = SpendingLedger(parse_spend_limit(config.spend_limit), 0.0)
        self.is_limited = bool(self.ledger.limits)
        self._split = CostSplit()

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
        self._split.step(ledger.shares, now)
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
            amount = ledger.charge(manager.name, unit.unit_id, age, now, price=price, minimum_seconds=minimum)
            self._split.collect(manager.running.get(unit.unit_id), amount)
            alive += 0.0 if has_ended else price
        ledger.forget_others(manager.name, {unit.unit_id for unit in manager.reported})
        return alive

    def _charge_tasks(self, manager: ManagerUnits, worker: Worker, now: float) -> int:
        heartbeat, unit = worker.reports.heartbeat, worker.details.unit_id
        if heartbeat is None:
            return 0
        price = manager.details.unit_price
        amount = self.ledger.charge_tasks(manager.name, unit, heartbeat.paid_seconds, now, price=price)
        self._split.collect_tasks(worker, amount)
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

    def on_question(self, question: FindCosts, client: ClientRecord, _state: ClusterState) -> CostsFound:
        may_see = client.identity.may_see
        seen = ((amount, payer) for payer, amount in self.ledger.shares.by_payer.items() if may_see(payer.key))
        found = nlargest(min(question.most, MAX_ROWS), seen)
        rows = [[payer.function, payer.client, payer.key, round(amount, 6)] for amount, payer in found]
        return CostsFound(question.most, json.dumps(rows).encode())

    def add_to_status(self, reader: Reader) -> Additions:
        ledger = self.ledger
        costs, count = self._cost_rows(reader.sees)
        tables, totals = {"costs": table(CostRow._fields, costs, COSTS_BYTES)}, {"costs": count}
        spent = {manager: {"spent": round(amount, 6)} for manager, amount in ledger.by_manager.items()}
        head = {"spending": self._row(reader.seconds_today)._asdict()}
        return Additions(head, tables, {"managers": spent}, totals)

    def _cost_rows(self, sees: Callable[[str], bool]) -> tuple[list[CostRow], int]:
        """Return the largest shares that a reader may see, and the number of all of these shares."""
        shares = self.ledger.shares
        sums = [(amount, payer) for payer, amount in shares.by_payer.items() if sees(payer.key)]
        sums += [(shares.idle, IDLE)] if shares.idle > 0 else []
        rows = []
        for amount, payer in nlargest(MAX_COSTS, sums):
            figures = round(amount, 6), round(100 * amount / shares.total, 3)
            rows.append(CostRow("\n".join(payer), payer.function, payer.client, payer.key, *figures))
        return rows, len(sums)

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
