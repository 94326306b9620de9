"""Elasticity: shows the cluster to the scaling policy, and turns its answer into Desired and Drain messages.

Only the scheduler knows which units have work, so only the scheduler names units to stop: units whose worker has not
joined, which get no work if it joins later, or units whose worker is drained and empty. `Desired.drained` lists them,
so that scaling down neither loses nor repeats work. A manager stops other units only after ten minutes of surplus.

The policy is asked by command and answers by input. A slow policy therefore stalls nothing, and its last answer stays
in force.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from scaler.policy.view import LATE_SECONDS, ClusterView, Demand, ManagerView, Wanted
from scaler.protocol.messages import Desired, Drain, ManagerDetails, ManagerStatus
from scaler.scheduler.core.changes import Action, Incident, peer_incident
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import AskPolicy
from scaler.scheduler.core.durations import TaskTimes, forecast
from scaler.scheduler.core.late_workers import LateWorkers
from scaler.scheduler.core.lifetimes import ending, ends_of
from scaler.scheduler.core.orphans import Orphans
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.state import ALIVE, Function, Group, ManagerRecord, ScalingDecided, ScalingInputs, Worker

PLAN_SECONDS = 0.5
QUICK_PLAN_SECONDS = 0.1
"""Minimum seconds between two plans if tasks arrive for which no worker has room."""
SLOW_POLICY_SECONDS = 1.0
"""Seconds without an answer after which the policy is reported as slow."""
REPORT_AGAIN_SECONDS = 60.0
RETURN_SECONDS = 3.0
"""Seconds after a restart without scaling down, since units reconnect one by one and may have earlier work."""
ORPHANS_SECONDS = 5.0
"""Seconds between checks for orphaned workers while no manager is connected."""
MAX_UNITS_NAMED = 1000
"""Units listed per field of one Desired; later messages list the remaining ones."""


class Elastic:
    def __init__(self, state: ClusterState, placement: Placement, outbox: Outbox) -> None:
        self._state = state
        self._placement = placement
        self._outbox = outbox
        self.next_plan = math.inf
        self._planned_at = state.now
        self._began_at = state.now
        self._view: ClusterView | None = None
        """Last view shown to the policy; None while it has seen no managers."""
        self._asked_at: float | None = None
        self._reported_at = -math.inf
        self._wanted: Mapping[str, Wanted] = {}
        self._orphans = Orphans()
        self.task_times = TaskTimes()
        self.late = LateWorkers(state, placement)

    # -- managers and their workers

    def join(self, peer: bytes, details: ManagerDetails, now: float) -> ManagerRecord:
        record = self._state.managers[peer] = ManagerRecord(peer, details.manager_id, now, details)
        for worker in self._state.workers.values():
            if worker.details.manager_id == details.manager_id:
                record.running_units[worker.details.unit_id] = worker
                record.learn(worker)
                self._note_late(worker, record)
        record.joined_units = set(record.running_units)
        self.next_plan = now
        return record

    def leave(self, now: float) -> None:
        if not self._state.managers:
            self.next_plan = now

    def status(self, record: ManagerRecord, status: ManagerStatus, now: float) -> None:
        if record.status is None:
            self.next_plan = now
        if status.degraded_reason and not record.trouble:
            self._state.changes.pass_on(peer_incident("degraded", record, status.degraded_reason))
        record.status = status
        record.status_at = now
        record.note_queued()
        record.ends = ends_of(status.units, record.ends, record.queued, now)
        record.left_units &= {unit.unit_id for unit in status.units}
        record.unwanted_units &= {unit.unit_id for unit in status.units if unit.state in ALIVE}

    def worker_joined(self, worker: Worker, now: float) -> None:
        record = self._state.manager_named(worker.details.manager_id)
        if record is None:
            self.next_plan = min(self.next_plan, now + ORPHANS_SECONDS)
            return
        unit_id = worker.details.unit_id
        record.running_units[unit_id] = worker
        record.learn(worker)
        record.joined_units.add(unit_id)
        for unit in record.units:
            if unit.unit_id == unit_id and not worker.reports.is_awaited:
                record.measure(unit, unit.age_seconds + (now - record.status_at))
        self._note_late(worker, record)
        if unit_id in record.unwanted_units:
            self.drain(worker, "it is not needed any more")

    def worker_given_up(self, worker: Worker) -> None:
        record = self._state.manager_named(worker.details.manager_id)
        if record is not None:
            record.unwanted_units.add(worker.details.unit_id)

    def dispatched(self, worker: Worker, seconds: float) -> None:
        record = self._state.manager_named(worker.details.manager_id)
        if seconds and record is not None:
            record.dispatch_seconds = seconds
            self._note_late(worker, record)

    def _note_late(self, worker: Worker, record: ManagerRecord) -> None:
        """Plan a worker's tasks ahead if they begin late, or if each of them costs limited money."""
        is_limited = record.details.charges_tasks and self._state.spending.is_limited
        if record.details.charges_tasks and not worker.reports.is_awaited:
            self._state.spending.began(record, worker)
        self.late.note(worker, is_late=is_limited or _dispatch_seconds(record) >= LATE_SECONDS)

    def worker_left(self, worker: Worker) -> None:
        self.late.leave(worker)
        record = self._state.manager_named(worker.details.manager_id)
        if record is not None and record.details.charges_tasks:
            self._state.spending.left(record, worker, self._state.now)
        if record is not None and record.running_units.get(worker.details.unit_id) is worker:
            del record.running_units[worker.details.unit_id]
            record.left_units.add(worker.details.unit_id)

    def drain(self, worker: Worker, reason: str, *, quarantined: bool = False, leaving: bool = False) -> None:
        """Stop dispatching to a worker, and send it a Drain. leaving: its agent asked, and terminates itself."""
        worker.drain(quarantined=quarantined, leaving=leaving)
        self._placement.update(worker)
        self._outbox.send(worker.id, Drain(reason))
        self._state.changes.add(Action, "drained", worker.id, f"{worker.name}: {reason}")

    # -- the decision

    def hurry(self) -> None:
        self.next_plan = min(self.next_plan, self._planned_at + QUICK_PLAN_SECONDS)

    def step(self, now: float) -> None:
        """Charge spending, drain orphans, and ask the policy unless an answer is pending."""
        self._planned_at = now
        self.next_plan = now + PLAN_SECONDS
        for text in self._state.spending.charge(now):
            self._state.changes.add(Incident, "spend_limit", "spend_limit", text, {})
        if self._asked_at is not None:
            seconds = now - self._asked_at
            if seconds >= SLOW_POLICY_SECONDS and now - self._reported_at >= REPORT_AGAIN_SECONDS:
                self._reported_at = now
                text = f"the scaling policy has not answered for {seconds:.1f} s; its last good answer stays"
                self._state.changes.add(Incident, "policy", "scaling policy", text, {})
            self._apply()
            return
        present = {record.name for record in self._state.managers.values()}
        for worker in self._orphans.due(self._state.workers.values(), present, now):
            text = f"its worker manager {worker.details.manager_id} is away"
            self.drain(worker, f"{text}, and it has had no work for {worker.details.death_timeout_seconds:g} s")
        managers = tuple(_view_of(record, now) for record in self._state.managers.values())
        # After the last manager has left, ask once more, so that the policy drops its state. Otherwise a manager that
        # returns soon would get its former units back, with or without work.
        if managers or self._view is not None:
            view = self._state.spending.affordable(ClusterView(now, self._demand(now), managers))
            self._asked_at = now
            self._outbox.add(AskPolicy(view))
            self._view = self._state.view = view if managers else None
        elif self.late.until:
            self.late.plan(None, {})
        if not managers:
            self.next_plan = now + ORPHANS_SECONDS if self._state.workers else math.inf

    def answered(self, wanted: Mapping[str, Wanted], complaint: str) -> None:
        self._asked_at = None
        self._wanted = wanted
        if self.late.until:
            self.late.plan(self._view, wanted)
        if complaint:
            self._state.changes.add(Incident, "policy", "scaling policy", complaint, {})
        self._apply()

    def _apply(self) -> None:
        now = self._planned_at
        spending, records = self._state.spending, self._state.managers.values()
        views = [_view_of(record, now) for record in records] if spending.is_limited else ()
        answer, reasons = spending.limited(views, self._wanted, now)
        for record in self._state.managers.values():
            if record.status is None:
                continue
            record.limited = reasons.get(record.name, "")
            wanted = record.wanted = answer.get(record.name)
            demand = self._view.demand if self._view is not None else ()
            record.wanted_for_tasks = any(row.queued and row.needs.fits(record.offers) for row in demand)
            for each in ending(record, demand, self._state.now):
                self.drain(each.worker, f"its unit ends in {each.seconds:.0f} s")
            if record.details.fixed:
                # Managers with a fixed size only replace drained workers.
                wanted = Wanted(len(record.running_units), "workers that get no more tasks are replaced")
                self._send_desired(record, wanted)
            elif wanted is not None:
                self._shrink(record, wanted)
                self._send_desired(record, wanted)
                self._decide(record, wanted)

    def _demand(self, now: float) -> tuple[Demand, ...]:
        assigned = running = 0
        elapsed: dict[Function, list[tuple[float, int]]] = {}
        for worker in self._state.workers.values():
            if worker in self.late:
                continue  # counted by function instead
            begun = min(worker.busy, worker.slots)
            assigned += len(worker.tasks)
            if not worker.progress.has_begun:
                continue  # may be starting, without running tasks
            running += begun + len(worker.blocked)
            if begun > 0:
                # The oldest task stands for all running tasks of the worker.
                first = next(task for task in worker.tasks.values() if task.id not in worker.blocked)
                elapsed.setdefault(first.group.function, []).append((max(0.0, now - worker.progress.at), begun))
        started = running / assigned if assigned else 1.0
        # The first view has no earlier one to measure from.
        seconds = now - self._view.now if self._view is not None else 0.0
        alike: dict[Function, list[Group]] = {function: [] for function in self._state.functions.values()}
        for client in self._state.all_clients():
            for group in client.groups.values():
                alike.setdefault(group.function, []).append(group)
        demand: list[Demand] = []
        for function, groups in alike.items():
            if not groups and function.submitted == function.viewed[0]:
                continue
            ended, wall_us = function.submitted - sum([group.live for group in groups]), function.wall_us
            new, new_us = ended - function.viewed[0], wall_us - function.viewed[1]
            function.viewed = ended, wall_us
            if new_us:
                self.task_times.add(new_us // new, new)
            # No other worker can run pinned tasks.
            here = [group for group in groups if not (group.client.terminated or group.needs.pin)]
            ready = sum(group.ready for group in here)
            sent = sum(group.assigned for group in here)
            # Of an ended task, only the time since the last view counts.
            rate, busy = (new / seconds, min(new, new_us * 1e-6 / seconds)) if seconds else (0.0, 0.0)
            if ready or sent or rate:
                late = self.late.tasks_of({group.timing: None for group in here}) if self.late.until else 0
                begun = late + round((sent - late) * started)
                known = forecast(
                    {group.timing for group in here}, elapsed.get(function, ()), new_us * 1e-6 / new if new_us else None
                )
                hints = [group.spec.expected_seconds for group in here if group.spec.expected_seconds]
                row = Demand(
                    function.needs,
                    function.name,
                    ready + sent - begun,
                    begun,
                    known.task_seconds,
                    busy,
                    rate,
                    expected_seconds=max(hints) if hints else self.task_times.median_seconds,
                    is_hint=bool(hints),
                    longest_seconds=known.longest_seconds,
                    running_seconds=known.running_seconds,
                    late=late,
                )
                demand.append(row)
        return tuple(demand)

    def _shrink(self, record: ManagerRecord, wanted: Wanted) -> None:
        """Give up surplus units: youngest pending ones, then workers with the fewest tasks, longest idle first."""
        if self._state.has_returned and self._planned_at < self._began_at + RETURN_SECONDS:
            return
        backlog, staying = set() if record.limited and not wanted.units else record.backlog, record.staying
        pending = [unit for unit in record.pending_units if unit.unit_id not in backlog]
        surplus = len(staying) + len(pending) - wanted.units
        if surplus <= 0:
            return
        pending.sort(key=lambda unit: unit.age_seconds)
        record.unwanted_units.update(unit.unit_id for unit in pending[:surplus])
        staying.sort(key=lambda worker: (len(worker.tasks), worker.idle_since))
        for worker in staying[: max(0, surplus - len(pending))]:
            self.drain(worker, f"fewer units are wanted: {wanted.reason}")

    def _send_desired(self, record: ManagerRecord, wanted: Wanted) -> None:
        # A leaving agent ends its unit itself. Listing the unit would make a failure look like a requested stop.
        draining = {
            unit: not (worker.tasks or worker.is_leaving)
            for unit, worker in record.running_units.items()
            if worker.draining
        }
        draining.update((unit, True) for unit in record.unwanted_units if unit not in record.running_units)
        for unit in record.units:
            if unit.state not in ALIVE:
                draining.pop(unit.unit_id, None)  # the manager sees the unit end and does not count it
        drained = tuple(sorted(unit for unit, is_empty in draining.items() if is_empty)[:MAX_UNITS_NAMED])
        desired = (wanted.units, drained, len(draining) - len(drained))
        connected = {unit for unit, worker in record.running_units.items() if worker.broken_at is None}
        joined = sorted(record.joined_units | (connected - record.connected_units))[:MAX_UNITS_NAMED]
        left = sorted(record.connected_units.union(joined) - connected)[:MAX_UNITS_NAMED]
        if not (joined or left) and (desired == record.desired or (record.details.fixed and not drained)):
            return
        record.joined_units.difference_update(joined)
        record.connected_units.update(joined)
        record.connected_units.difference_update(left)
        record.desired = desired
        self._outbox.send(record.id, Desired(wanted.units, list(drained), wanted.reason, joined, desired[2], left))

    def _decide(self, record: ManagerRecord, wanted: Wanted) -> None:
        """Publish a decision if the number of units or the trouble changed, ignoring numbers in the reason."""
        before = record.decision
        if before is not None and before.units == wanted.units and bool(before.inputs.trouble) == bool(record.trouble):
            return
        view = self._view
        if view is None:
            return
        for manager in view.managers:
            if manager.manager_id == record.name:  # else the manager joined after the question
                draining = sum(worker.draining for worker in record.running_units.values()) + len(record.unwanted_units)
                reason, inputs = wanted.reason, _inputs(manager, view.demand)
                if record.trouble:
                    reason += f"; it cannot start units now: {record.trouble}"
                elif before is not None and before.inputs.trouble:
                    reason += "; it can start units again"
                record.decision = ScalingDecided(record.name, wanted.units, draining, reason, inputs)
                self._state.changes.pass_on(record.decision)


def _view_of(record: ManagerRecord, now: float) -> ManagerView:
    details, staying = record.details, record.staying
    charged = list(record.running_units.values()) if details.charges_tasks else []
    return ManagerView(
        manager_id=details.manager_id,
        kind=details.kind,
        offers=record.offers,
        max_slots=details.max_concurrency,
        unit_slots=details.unit_slots,
        units_running=len(staying),
        pending_ages=tuple(unit.age_seconds + now - record.status_at for unit in record.pending_units),
        idle_seconds=tuple(now - worker.idle_since for worker in staying if not worker.tasks),
        startup_seconds=record.startup_seconds,
        queue_seconds=record.queue_seconds,
        usual_startup_seconds=details.usual_startup_seconds,
        dispatch_seconds=_dispatch_seconds(record),
        trouble=record.trouble,
        fixed=details.fixed,
        unit_price=details.unit_price,
        unit_minimum_seconds=details.unit_minimum_seconds,
        charges_tasks=details.charges_tasks,
        tasks=sum(worker.busy + worker.ended_since_heartbeat for worker in charged),
        tasks_begun=sum(
            worker.reports.heartbeat.paid_tasks for worker in charged if worker.reports.heartbeat is not None
        ),
    )


def _dispatch_seconds(record: ManagerRecord) -> float:
    return record.dispatch_seconds or record.details.usual_dispatch_seconds


def _inputs(manager: ManagerView, demand: Iterable[Demand]) -> ScalingInputs:
    rows = [row for row in demand if row.needs.fits(manager.offers)]
    return ScalingInputs(
        queued=sum(row.queued for row in rows),
        running=sum(row.running for row in rows),
        unmeasured=sum(row.queued + row.running for row in rows if row.task_seconds is None),
        backlog_seconds=sum((row.queued + row.running / 2) * (row.task_seconds or 0.0) for row in rows),
        busy_slots=sum(row.busy_slots for row in rows),
        ended_per_second=sum(row.ended_per_second for row in rows),
        units_running=manager.units_running,
        units_pending=len(manager.pending_ages),
        units_idle=len(manager.idle_seconds),
        startup_seconds=manager.startup_seconds,
        max_units=manager.max_units,
        trouble=manager.trouble,
    )
