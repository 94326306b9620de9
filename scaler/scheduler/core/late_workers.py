"""Late workers: workers whose tasks run elsewhere and begin after a delay.

Each answer of the policy is followed by a plan, which sets the limit of each late worker, so that placement needs no
special case. Without a plan a late worker gets no tasks. A plan is used up by dispatched tasks, not by ended ones;
otherwise a free slot would take a task that other workers would finish sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scaler.needs import Needs
from scaler.policy.capacity import SlotBatch, startup_seconds, tasks_worth_giving
from scaler.policy.view import ClusterView, Demand, ManagerView, Wanted
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.durations import Timing
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.state import Worker

_ROUNDING = 1e-9


class LateWorkers:
    def __init__(self, state: ClusterState, placement: Placement) -> None:
        self._state = state
        self._placement = placement
        self.until: dict[Worker, int] = {}
        """By late worker: the value of `sent` up to which it may get tasks."""

    def __contains__(self, worker: Worker) -> bool:
        return worker in self.until

    def note(self, worker: Worker, *, is_late: bool) -> None:
        if is_late and worker not in self.until:
            self.until[worker] = worker.sent
            self.limit()
        elif not is_late and self.until.pop(worker, None) is not None:
            worker.allow(worker.usual_limit)
            self._placement.update(worker)

    def leave(self, worker: Worker) -> None:
        self.until.pop(worker, None)

    def tasks_of(self, timings: Mapping[Timing, None]) -> int:
        return sum(worker.by_function.get(timing, 0) for worker in self.until for timing in timings)

    def limit(self) -> None:
        for worker, until in self.until.items():
            most = min(worker.usual_limit, max(0, worker.busy + until - worker.sent))
            if worker.allow(most):
                self._placement.update(worker)

    def plan(self, view: ClusterView | None, wanted: Mapping[str, Wanted]) -> None:
        """Plan which queued tasks of a view late workers get. wanted: the policy's answer to the view."""
        managers = {} if view is None else {each.manager_id: each for each in view.managers}
        for worker in list(self.until):
            # A worker without its manager is treated as a usual one, so that it does not starve.
            manager = managers.get(worker.details.manager_id)
            self.note(worker, is_late=manager is not None and self._is_planned(manager))
        if view is None or not self.until:
            return
        allowed = dict.fromkeys(self.until, 0)
        spending = self._state.spending
        left_to_spend = spending.budget(view.managers, view.now)
        by_needs: dict[Needs, list[Demand]] = {}
        for row in view.demand:
            by_needs.setdefault(row.needs, []).append(row)
        for needs, rows in by_needs.items():
            queued = sum(row.queued for row in rows)
            late = [each for each in self.until if each.is_willing and needs.fits(each.offers)]
            if not queued or not late:
                continue
            others = self._other_slots(needs, managers, wanted)
            seconds = tasks = 0.0
            for row in rows:
                each = row.longest_seconds if row.task_seconds is None else row.task_seconds
                running = row.running - row.late
                seconds += row.queued * each + (
                    running / 2 * each if row.running_seconds is None else row.running_seconds
                )
                tasks += row.queued + running
            left = math.ceil(tasks)
            for worker in late:
                slots = max(0, worker.slots - worker.busy - allowed[worker])
                manager = managers[worker.details.manager_id]
                batch = SlotBatch(slots, 0.0, 0.0, manager.dispatch_seconds)
                if any(other.slots for other in others):
                    given = tasks_worth_giving(left, queued, max(1e-6, seconds / tasks), others, [batch])
                else:
                    given = min(queued, worker.usual_limit - worker.busy)
                charge = spending.task_charge(manager, seconds / tasks)
                if charge and not math.isinf(left_to_spend):
                    given = min(given, math.floor(left_to_spend / charge + _ROUNDING))
                    left_to_spend -= given * charge
                allowed[worker] += given
                left, queued = left - given, queued - given
        self.until = {worker: worker.sent + count for worker, count in allowed.items()}
        self.limit()

    def _is_planned(self, manager: ManagerView) -> bool:
        """Return whether tasks of its workers are planned: they begin late, or each costs limited money."""
        return manager.is_late or (manager.charges_tasks and self._state.spending.is_limited)

    def _other_slots(
        self, needs: Needs, managers: Mapping[str, ManagerView], wanted: Mapping[str, Wanted]
    ) -> Sequence[SlotBatch]:
        slots = [
            SlotBatch(int(worker.slots // needs.slots_taken(worker.offers, worker.slots)), 0.0)
            for worker in self._state.workers.values()
            if worker.is_willing and worker not in self.until and needs.fits(worker.offers)
        ]
        for name, manager in managers.items():
            if self._is_planned(manager) or not needs.fits(manager.offers):
                continue
            each = int(manager.unit_slots // needs.slots_taken(manager.offers, manager.unit_slots))
            startup = startup_seconds(manager)
            slots += [SlotBatch(each, max(0.0, startup - age)) for age in manager.pending_ages]
            if name in wanted and not manager.trouble:
                slots.append(SlotBatch(each * max(0, wanted[name].units - manager.units), startup))
        return slots
