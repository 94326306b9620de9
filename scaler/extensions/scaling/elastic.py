"""Elasticity: shows the cluster to the scaling policy and converts the answer to Desired and Drain messages.

Only the scheduler knows which units have work, so it chooses the units to stop: units with a drained and empty worker,
or units without a worker (if their worker joins later, it gets no work). `Desired.drained` lists these units. Scaling
down therefore neither loses nor repeats work. A manager stops other units only after ten minutes of surplus.

A command queries the policy, and the answer arrives as an input. A slow policy therefore stalls nothing, and its last
answer remains in effect.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from scaler.extensions.interface import SchedulerPart
from scaler.extensions.scaling.demand import DemandMeter
from scaler.extensions.scaling.late_workers import LateWorkers
from scaler.extensions.scaling.units import ManagerUnits, Spending
from scaler.policy.view import Allocation, ClusterView, Demand, ManagerView, Wanted
from scaler.protocol.messages import ManagerDetails, ManagerStatus, WorkerHeartbeat
from scaler.scheduler.additions import Additions, Reader
from scaler.scheduler.core.changes import Incident, ScalingDecided, peer_incident
from scaler.scheduler.core.cluster import ClusterState, Scaling
from scaler.scheduler.core.commands import AskPolicy
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.state import ManagerRecord, Worker

PLAN_SECONDS = 0.5
QUICK_PLAN_SECONDS = 0.1
"""Minimum seconds between two plans while tasks arrive that no worker has capacity for."""
SLOW_POLICY_SECONDS = 1.0
"""Seconds without an answer after which the policy is reported as slow."""
REPORT_AGAIN_SECONDS = 60.0
RETURN_SECONDS = 3.0
"""Seconds after a restart before any unit stops, because units reconnect one by one and may have earlier work."""
ORPHANS_SECONDS = 5.0
"""Seconds between checks for orphaned workers while no manager is connected."""


class Elastic(Scaling):
    """Scaling by a policy. `Scaling` documents the methods."""

    def __init__(self, allocation: Allocation | None = None) -> None:
        self.prefers_least_capable = allocation is not None and allocation.prefer_least_capable
        self.managers: dict[str, ManagerUnits] = {}
        self.demand = DemandMeter()
        self._planned_at = self._began_at = 0.0
        self._view: ClusterView | None = None
        """Last view shown to the policy; None before the first view with managers."""
        self._asked_at: float | None = None
        self._reported_at = -math.inf
        self._wanted: Mapping[str, Wanted] = {}
        self._away_since: dict[str, float] = {}
        """Disconnected managers with connected workers."""

    def bound(self, state: ClusterState, placement: Placement, outbox: Outbox) -> None:
        self._state, self._placement, self._outbox = state, placement, outbox
        self._planned_at = self._began_at = state.now
        self.spending: Spending = outbox.rooms.spending or Spending()
        self._late = LateWorkers(state, placement, self.spending)
        self.limited = self._late.until.keys()

    @property
    def spent(self) -> float:  # type: ignore[override]
        return self.spending.run

    # -- managers and their workers

    def _manager_of(self, worker: Worker) -> ManagerUnits | None:
        return self.managers.get(worker.details.manager_id)

    def manager_joined(self, peer: bytes, details: ManagerDetails, now: float) -> ManagerUnits:
        manager = self.managers[details.manager_id] = ManagerUnits(peer, details.manager_id, now, details)
        for worker in self._state.workers.values():
            if self._manager_of(worker) is manager:
                manager.join(worker)
                self._note_late(worker, manager)
        self.next_at = now
        return manager

    def manager_left(self, record: ManagerRecord, now: float) -> None:
        del self.managers[record.name]
        if not self.managers:
            self.next_at = now

    def manager_reported(self, record: ManagerRecord, status: ManagerStatus, now: float) -> None:
        manager = self.managers[record.name]
        if manager.status is None:
            self.next_at = now
        if status.degraded_reason and not manager.trouble:
            self._state.changes.pass_on(peer_incident("degraded", record, status.degraded_reason))
        manager.report(status, now)

    def worker_joined(self, worker: Worker, now: float) -> None:
        manager = self._manager_of(worker)
        if manager is None:
            self.next_at = min(self.next_at, now + ORPHANS_SECONDS)
            return
        manager.join(worker)
        manager.measure(worker, now)
        self._note_late(worker, manager)
        if worker.details.unit_id in manager.unwanted:
            self._placement.drain(worker, "the worker is no longer needed")

    def worker_given_up(self, worker: Worker) -> None:
        manager = self._manager_of(worker)
        if manager is not None:
            manager.unwanted.add(worker.details.unit_id)

    def worker_left(self, worker: Worker, now: float) -> float:
        self._late.until.pop(worker, None)
        manager = self._manager_of(worker)
        if manager is None:
            return 0.0
        if manager.details.charges_tasks:
            self.spending.left(manager, worker, now)
        manager.leave(worker)
        return manager.ends.passed_limit(worker.details.unit_id, now)

    def heartbeat(self, worker: Worker, heartbeat: WorkerHeartbeat) -> None:
        manager = self._manager_of(worker)
        if manager is None:
            return
        if heartbeat.dispatch_seconds:
            manager.measured_dispatch_seconds = heartbeat.dispatch_seconds
            self._note_late(worker, manager)

    def _note_late(self, worker: Worker, manager: ManagerUnits) -> None:
        if manager.details.charges_tasks and not worker.reports.is_awaited:
            self.spending.began(manager, worker)
        self._late.note(worker, is_late=self._late.is_planned(manager.is_late, manager.details.charges_tasks))

    def limit_workers(self) -> None:
        self._late.limit()

    # -- the decision

    def hurry(self) -> None:
        self.next_at = min(self.next_at, self._planned_at + QUICK_PLAN_SECONDS)

    def plan(self, now: float) -> None:
        """Charge spending, drain orphans, and ask the policy unless an answer is pending."""
        self._planned_at = now
        self.next_at = now + PLAN_SECONDS
        for text in self.spending.charge(self.managers.values(), now):
            self._state.changes.add(Incident, "spend_limit", "spend_limit", text, {})
        if self._asked_at is not None:
            seconds = now - self._asked_at
            if seconds >= SLOW_POLICY_SECONDS and now - self._reported_at >= REPORT_AGAIN_SECONDS:
                self._reported_at = now
                last = "its last valid answer remains in effect"
                text = f"the scaling policy has not answered for {seconds:.1f} s; {last}"
                self._state.changes.add(Incident, "policy", "scaling policy", text, {})
            self._apply()
            return
        self._drain_orphans(now)
        # After the last manager has left, ask once more to make the policy drop its state. Otherwise, a manager that
        # returns soon would get its former units back, with or without work.
        if self.managers or self._view is not None:
            seconds = now - self._view.now if self._view is not None else 0.0
            demand = self.demand.measure(self._state, self._late, seconds, now)
            managers = tuple(manager.view(now) for manager in self.managers.values())
            view = self.spending.affordable(ClusterView(now, demand, managers))
            self._asked_at = now
            self._outbox.extend([AskPolicy(view)])
            self._view = view if managers else None
        else:
            self._late.plan(None, {})
        if not self.managers:
            self.next_at = now + ORPHANS_SECONDS if self._state.workers else math.inf

    def _drain_orphans(self, now: float) -> None:
        """Drain workers that had neither a manager nor work for their `death_timeout_seconds`. O(workers)."""
        before, self._away_since = self._away_since, {}
        for worker in self._state.workers.values():
            manager_id, seconds = worker.details.manager_id, worker.details.death_timeout_seconds
            if not manager_id or manager_id in self.managers:
                continue
            away_since = self._away_since[manager_id] = before.get(manager_id, now)
            is_idle = not worker.tasks and not worker.draining
            if is_idle and seconds and now - max(away_since, worker.progress.at) >= seconds:
                text = f"its worker manager {manager_id} is out of contact, and it has had no work for {seconds:g} s"
                self._placement.drain(worker, text)

    def answered(self, wanted: Mapping[str, Wanted], complaint: str) -> None:
        self._asked_at = None
        self._wanted = wanted
        self._late.plan(self._view, wanted)
        if complaint:
            self._state.changes.add(Incident, "policy", "scaling policy", complaint, {})
        self._apply()

    def _apply(self) -> None:
        spending = self.spending
        views = [each.view(self._planned_at) for each in self.managers.values()] if spending.is_limited else ()
        answer, reasons = spending.limited(views, self._wanted, self._planned_at)
        for manager in self.managers.values():
            if manager.status is None:
                continue
            manager.limited = reasons.get(manager.name, "")
            wanted = manager.wanted = answer.get(manager.name)
            demand = _rows_for(manager, self._view)
            manager.wanted_for_tasks = any(row.queued for row in demand)
            self._drain_ending(manager, demand)
            if manager.details.fixed:
                # Managers with a fixed size only replace drained workers.
                self._send_desired(manager, Wanted(len(manager.running), "workers that accept no tasks are replaced"))
            elif wanted is not None:
                self._shrink(manager, wanted)
                self._send_desired(manager, wanted)
                self._decide(manager, wanted)

    def _drain_ending(self, manager: ManagerUnits, demand: Iterable[Demand]) -> None:
        longest = max((row.task_seconds or 0.0 for row in demand), default=0.0)
        for unit, seconds in manager.ends.due(longest, self._state.own_time(self._state.now)):
            worker = manager.running.get(unit)
            if worker is not None and not worker.draining:
                self._placement.drain(worker, f"its unit ends in {seconds:.0f} s")

    def _shrink(self, manager: ManagerUnits, wanted: Wanted) -> None:
        if self._state.has_returned and self._planned_at < self._began_at + RETURN_SECONDS:
            return
        pending, workers = manager.surplus(wanted.units)
        manager.unwanted.update(pending)
        for worker in workers:
            self._placement.drain(worker, f"fewer units are wanted: {wanted.reason}")

    def _send_desired(self, manager: ManagerUnits, wanted: Wanted) -> None:
        desired = manager.desire(wanted)
        if desired is not None:
            self._outbox.send(manager.id, desired)

    def _decide(self, manager: ManagerUnits, wanted: Wanted) -> None:
        """Publish a decision if the number of units or the manager's ability to start units changed."""
        before = manager.decision
        was_in_trouble = before is not None and bool(before.inputs["trouble"])
        if before is not None and before.units == wanted.units and was_in_trouble == bool(manager.trouble):
            return
        shown = self._view.managers if self._view is not None else ()
        seen = next((each for each in shown if each.manager_id == manager.name), None)
        if seen is None:  # the manager joined after the query
            return
        draining = sum(worker.draining for worker in manager.running.values()) + len(manager.unwanted)
        reason, inputs = wanted.reason, _inputs(seen, _rows_for(seen, self._view))
        if manager.trouble:
            reason += f"; it cannot start units now: {manager.trouble}"
        elif was_in_trouble:
            reason += "; it can start units again"
        manager.decision = ScalingDecided(manager.name, wanted.units, draining, reason, inputs)
        self._state.changes.pass_on(manager.decision)


class ScalingPart(SchedulerPart):
    """Additional columns for manager rows."""

    def __init__(self, _config: object = None) -> None: ...

    def add_to_status(self, reader: Reader) -> Additions:
        managers = self.cluster.rooms.scaling.managers.values()
        return Additions(columns={"managers": {each.name: each.columns(reader.sees_all) for each in managers}})


def _rows_for(manager: ManagerUnits | ManagerView, view: ClusterView | None) -> list[Demand]:
    return [row for row in view.demand if row.needs.fits(manager.offers)] if view is not None else []


def _inputs(manager: ManagerView, rows: Collection[Demand]) -> dict[str, Any]:
    """Return the inputs of a decision about one manager. rows: demand that the manager's workers can run.

    unmeasured: tasks of functions without an ended task. backlog_seconds: time of the measured tasks on one slot, with
    running tasks counted half.
    """
    return {
        "queued": sum(row.queued for row in rows),
        "running": sum(row.running for row in rows),
        "unmeasured": sum(row.tasks for row in rows if row.task_seconds is None),
        "backlog_seconds": sum((row.queued + row.running / 2) * (row.task_seconds or 0.0) for row in rows),
        "busy_slots": sum(row.busy_slots for row in rows),
        "ended_per_second": sum(row.ended_per_second for row in rows),
        "units_running": manager.units_running,
        "units_pending": len(manager.pending_ages),
        "units_idle": len(manager.idle_seconds),
        "startup_seconds": manager.startup_seconds,
        "max_units": manager.max_units,
        "trouble": manager.trouble,
    }
