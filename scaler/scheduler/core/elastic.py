"""Elasticity: shows the whole cluster to the scaling policy, and turns its answer into Desired and Drain.

Only the scheduler knows which units have work, so only it says which may be stopped: their worker has not come yet and
gets nothing when it does, or it is drained and has nothing left. These are named in `Desired.drained`, and so scaling
down loses and reruns nothing. A manager stops others only when it sees too many of them for ten minutes on end.
"""

from __future__ import annotations

from collections.abc import Iterable

from scaler.needs import Needs, Offers
from scaler.policy.guard import GuardedPolicy
from scaler.policy.view import ClusterView, Demand, ManagerView, ScalingPolicy, Wanted
from scaler.protocol.messages import Desired, Drain, ManagerDetails, ManagerStatus, UnitState, UnitStatus
from scaler.scheduler.core.facts import Facts, PolicyFailed, ScalingDecided, ScalingInputs
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.state import Client, ManagerRecord, Worker

PLAN_SECONDS = 0.5
"""How often the policy is asked."""
QUICK_PLAN_SECONDS = 0.1
"""How long after a plan the next one may be when tasks come that no worker has room for."""
STARTUP_WEIGHT = 0.3
MAX_UNITS_NAMED = 1000
"""Units that one Desired names of each kind; the others are named in the next ones."""
_ALIVE = (UnitState.PENDING, UnitState.RUNNING)


class Elastic:
    __slots__ = (
        "_facts",
        "_has_backlog",
        "_is_known",
        "_joined",
        "_next_plan",
        "_outbox",
        "_placement",
        "_planned_at",
        "_policy",
        "managers",
    )

    def __init__(self, policy: ScalingPolicy, placement: Placement, outbox: Outbox, facts: Facts, now: float) -> None:
        self._policy = GuardedPolicy(policy)
        self._placement = placement
        self._outbox = outbox
        self._facts = facts
        self._next_plan = now
        self._planned_at = now
        self._has_backlog = False
        self._is_known = False
        """The policy may know of managers."""
        self._joined = 0
        self.managers: dict[bytes, ManagerRecord] = {}

    @property
    def next_plan(self) -> float | None:
        return self._next_plan if self.managers else None

    # -- managers and their workers

    def join(self, peer: bytes, details: ManagerDetails, workers: Iterable[Worker], now: float) -> None:
        """A manager came, or came back; its workers may have been here before it."""
        self._joined += 1
        record = ManagerRecord(peer, details, Offers.of(details.capabilities), self._joined, now)
        for worker in workers:
            if worker.details.manager_id == details.manager_id:
                record.running_units[worker.details.unit_id] = worker
        record.joined_units = set(record.running_units)
        self.managers[peer] = record
        self._next_plan = now

    def leave(self, peer: bytes) -> None:
        self.managers.pop(peer, None)

    def by_name(self, manager_id: str) -> ManagerRecord | None:
        """Return the manager with this id that is here."""
        return next((record for record in self.managers.values() if record.details.manager_id == manager_id), None)

    def status(self, record: ManagerRecord, status: ManagerStatus, now: float) -> None:
        if record.status is None:
            self._next_plan = now
        record.status = status
        record.status_at = now
        listed = {unit.unit_id for unit in status.units}
        record.left_units &= listed
        record.unwanted_units &= {unit.unit_id for unit in status.units if unit.state in _ALIVE}
        record.last_message_at = now

    def worker_joined(self, worker: Worker, now: float) -> None:
        record = self.by_name(worker.details.manager_id)
        if record is None:
            return
        unit_id = worker.details.unit_id
        record.running_units[unit_id] = worker
        record.joined_units.add(unit_id)
        for unit in record.status.units if record.status is not None else ():
            if unit.unit_id == unit_id:
                took = unit.age_seconds + (now - record.status_at)
                old = record.startup_seconds
                record.startup_seconds = took if old is None else old + STARTUP_WEIGHT * (took - old)
        if unit_id in record.unwanted_units:
            self.drain(worker, "it is not needed any more")

    def worker_given_up(self, worker: Worker) -> None:
        """A worker was out of contact for too long: its unit, if it lives, is to be stopped and replaced."""
        record = self.by_name(worker.details.manager_id)
        if record is not None:
            record.unwanted_units.add(worker.details.unit_id)

    def worker_left(self, worker: Worker) -> None:
        record = self.by_name(worker.details.manager_id)
        if record is not None and record.running_units.get(worker.details.unit_id) is worker:
            del record.running_units[worker.details.unit_id]
            record.left_units.add(worker.details.unit_id)

    # -- the decision

    def step(self, clients: Iterable[Client], workers: dict[bytes, Worker], has_backlog: bool, now: float) -> None:
        """Ask the policy when it is time. has_backlog: there are ready tasks that no worker here has room for."""
        if not self.managers:
            if self._is_known:  # otherwise one that comes back soon would get back what it had, with work or without
                self._is_known = False
                self._policy.plan(ClusterView(now, self._demand(clients, workers), ()))
            return
        self._is_known = True
        if has_backlog and not self._has_backlog:
            self._next_plan = min(self._next_plan, self._planned_at + QUICK_PLAN_SECONDS)
        self._has_backlog = has_backlog
        if now < self._next_plan:
            return
        self._planned_at = now
        self._next_plan = now + PLAN_SECONDS
        view = ClusterView(now, self._demand(clients, workers), self._managers(now))
        wanted, complaint = self._policy.plan(view)
        if complaint:
            self._facts.add(PolicyFailed(complaint))
        for record in self.managers.values():
            answer = wanted.get(record.details.manager_id)
            if record.status is None:
                continue
            if answer is not None:
                self._shrink(record, answer)
                self._tell(record, answer)
                self._note(record, answer, view)
            elif record.details.fixed:
                # It is told only of workers that get no more tasks, which it replaces.
                self._tell(record, Wanted(len(record.running_units), "those that get no more tasks are to be replaced"))

    @staticmethod
    def _demand(clients: Iterable[Client], workers: dict[bytes, Worker]) -> tuple[Demand, ...]:
        assigned = running = 0
        for worker in workers.values():
            assigned += len(worker.tasks)
            running += min(worker.busy, worker.slots) + len(worker.blocked)
        started = running / assigned if assigned else 1.0
        rows: dict[tuple[Needs, str], list[float]] = {}
        for client in clients:
            for group in client.groups.values():
                row = rows.setdefault((group.needs, group.spec.name), [0.0, 0.0, 0.0, 0.0])
                row[0] += group.ready
                row[1] += group.assigned
                if group.timing.measured:
                    row[2] = max(row[2], group.timing.seconds)
                    row[3] = 1.0
        demand: list[Demand] = []
        for (needs, name), (ready, sent, seconds, measured) in rows.items():
            begun = round(sent * started)
            if ready or sent:
                demand.append(Demand(needs, name, int(ready + sent - begun), begun, seconds if measured else None))
        return tuple(demand)

    def _managers(self, now: float) -> tuple[ManagerView, ...]:
        return tuple(
            self._view(record, now) for record in sorted(self.managers.values(), key=lambda record: record.joined)
        )

    @staticmethod
    def _view(record: ManagerRecord, now: float) -> ManagerView:
        details = record.details
        # Those out of contact may be lost. Then their manager replaces them, and they must not count twice.
        here = (worker for worker in record.running_units.values() if worker.broken_at is None)
        staying = [worker for worker in here if not worker.draining]
        return ManagerView(
            manager_id=details.manager_id,
            kind=details.kind,
            offers=record.offers,
            max_slots=details.max_concurrency,
            unit_slots=details.unit_slots,
            units_running=len(staying),
            pending_ages=tuple(unit.age_seconds + now - record.status_at for unit in pending_units(record)),
            idle_seconds=tuple(now - worker.idle_since for worker in staying if not worker.tasks),
            startup_seconds=record.startup_seconds,
            trouble=record.status.degraded_reason if record.status is not None else "",
            fixed=details.fixed,
        )

    def _shrink(self, record: ManagerRecord, wanted: Wanted) -> None:
        """Give up what is too much: the youngest pending units, the longest idle, those with the fewest tasks."""
        if record.details.fixed:
            return
        pending = sorted(pending_units(record), key=lambda unit: unit.age_seconds)
        # Those out of contact may be lost, and a pending unit their replacement.
        here = (worker for worker in record.running_units.values() if worker.broken_at is None)
        staying = [worker for worker in here if not worker.draining]
        surplus = len(staying) + len(pending) - wanted.units
        if surplus <= 0:
            return
        record.unwanted_units.update(unit.unit_id for unit in pending[:surplus])
        staying.sort(key=lambda worker: (len(worker.tasks), worker.idle_since))
        for worker in staying[: max(0, surplus - len(pending))]:
            self.drain(worker, wanted.reason)

    def _tell(self, record: ManagerRecord, wanted: Wanted) -> None:
        leaving = {unit: not worker.tasks for unit, worker in record.running_units.items() if worker.draining}
        leaving.update((unit, True) for unit in record.unwanted_units if unit not in record.running_units)
        for unit in record.status.units if record.status is not None else ():
            if unit.state not in _ALIVE:
                leaving.pop(unit.unit_id, None)  # its manager sees it leave, and does not count it
        drained = tuple(sorted(unit for unit, is_empty in leaving.items() if is_empty)[:MAX_UNITS_NAMED])
        # The manager counts those that leave among the others until they are named.
        told = (wanted.units + len(leaving) - len(drained), drained)
        if record.details.fixed and not drained:
            return
        joined = sorted(record.joined_units)[:MAX_UNITS_NAMED]
        if told == record.told and not joined:
            return
        record.joined_units.difference_update(joined)
        record.told = told
        self._outbox.send(record.id, Desired(told[0], list(drained), wanted.reason, joined))

    def _note(self, record: ManagerRecord, wanted: Wanted, view: ClusterView) -> None:
        """Make a fact of a decision that says something else than the last one: other numbers in its reason do not."""
        before = record.decision
        trouble = record.status.degraded_reason if record.status is not None else ""
        if before is not None and before.units == wanted.units and bool(before.inputs.trouble) == bool(trouble):
            return
        draining = sum(worker.draining for worker in record.running_units.values()) + len(record.unwanted_units)
        units = "1 unit" if wanted.units == 1 else f"{wanted.units} units"
        manager_id = record.details.manager_id
        inputs = _inputs(next(manager for manager in view.managers if manager.manager_id == manager_id), view)
        record.decision = ScalingDecided(manager_id, wanted.units, draining, f"{units}: {wanted.reason}", inputs)
        self._facts.add(record.decision)

    def drain(self, worker: Worker, reason: str) -> None:
        """Give a worker nothing more, and tell it so."""
        worker.draining = True
        self._placement.update(worker)
        self._outbox.send(worker.id, Drain(reason))


def pending_units(record: ManagerRecord) -> list[UnitStatus]:
    """Return the units that were started and whose worker is not connected yet."""
    if record.status is None:
        return []
    return [
        unit
        for unit in record.status.units
        if unit.state in _ALIVE
        and unit.unit_id not in record.running_units
        and unit.unit_id not in record.left_units
        and unit.unit_id not in record.unwanted_units
    ]


def _inputs(manager: ManagerView, view: ClusterView) -> ScalingInputs:
    rows = [row for row in view.demand if row.needs.fits(manager.offers)]
    return ScalingInputs(
        queued=sum(row.queued for row in rows),
        running=sum(row.running for row in rows),
        unmeasured=sum(row.queued + row.running for row in rows if row.task_seconds is None),
        backlog_seconds=sum((row.queued + row.running / 2) * (row.task_seconds or 0.0) for row in rows),
        units_running=manager.units_running,
        units_pending=len(manager.pending_ages),
        units_idle=len(manager.idle_seconds),
        startup_seconds=manager.startup_seconds,
        max_units=manager.max_units,
        trouble=manager.trouble,
    )
