"""Late workers: workers whose tasks run elsewhere and start after a delay. After each policy answer, a plan limits each
late worker, so placement needs no special case. Without a plan, a late worker gets no tasks. Dispatched tasks use up a
plan, and completed tasks do not restore it; otherwise, a free slot would take a task that other workers would finish
sooner.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from scaler.extensions.scaling.units import Spending
from scaler.needs import Needs
from scaler.policy.capacity import SlotBatch, Work, startup_seconds, tasks_worth_giving
from scaler.policy.view import ClusterView, ManagerView, Wanted
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.state import Timing, Worker

_ROUNDING = 1e-9


class LateWorkers:
    def __init__(self, state: ClusterState, placement: Placement, spending: Spending) -> None:
        self._state = state
        self._placement = placement
        self._spending = spending
        self.until: dict[Worker, int] = {}
        """Value of `sent` at which each late worker stops getting tasks."""

    def is_planned(self, is_late: bool, charges_tasks: bool) -> bool:
        """Return whether a manager's tasks are planned: they start late, or each is charged to a limited budget."""
        return is_late or (charges_tasks and self._spending.is_limited)

    def note(self, worker: Worker, *, is_late: bool) -> None:
        if is_late and worker not in self.until:
            self.until[worker] = worker.sent
            self.limit()
        elif not is_late and self.until.pop(worker, None) is not None:
            self._limit(worker, worker.usual_limit)

    def tasks_of(self, timings: Collection[Timing]) -> int:
        return sum(worker.by_function.get(timing, 0) for worker in self.until for timing in timings)

    def limit(self) -> None:
        for worker, until in self.until.items():
            self._limit(worker, min(worker.usual_limit, max(0, worker.busy + until - worker.sent)))

    def _limit(self, worker: Worker, most: int) -> None:
        if worker.allow(most):
            self._placement.update(worker)

    def plan(self, view: ClusterView | None, wanted: Mapping[str, Wanted]) -> None:
        """Plan how many of a view's queued tasks each late worker gets. wanted: the policy's answer to the view."""
        managers = {} if view is None else {each.manager_id: each for each in view.managers}
        for worker in list(self.until):
            # A worker without its manager is treated as a normal worker; otherwise, it would starve.
            manager = managers.get(worker.details.manager_id)
            self.note(worker, is_late=manager is not None and self.is_planned(manager.is_late, manager.charges_tasks))
        if view is None or not self.until:
            return
        allowed = dict.fromkeys(self.until, 0)
        budget = self._spending.budget(view.managers, view.now)
        works: dict[Needs, Work] = {}
        for row in view.demand:
            works.setdefault(row.needs, Work(row.needs)).add(row)
        for needs, work in works.items():
            late = [each for each in self.until if each.is_willing and needs.fits(each.offers)]
            if not work.queued or not late:
                continue
            others, task_seconds = self._other_slots(needs, managers, wanted), work.known_task_seconds
            for worker in late:
                manager = managers[worker.details.manager_id]
                if any(other.slots for other in others):
                    free = max(0, worker.slots - worker.busy - allowed[worker])
                    slots = [SlotBatch(free, 0.0, 0.0, manager.dispatch_seconds)]
                    given = tasks_worth_giving(work.tasks, work.queued, task_seconds, others, slots)
                else:
                    given = min(work.queued, worker.usual_limit - worker.busy)
                charge = self._spending.task_charge(manager, task_seconds)
                if charge and not math.isinf(budget):
                    given = min(given, math.floor(budget / charge + _ROUNDING))
                    budget -= given * charge
                allowed[worker] += given
                work.queued -= given
                work.tasks -= given
        self.until.update({worker: worker.sent + count for worker, count in allowed.items()})
        self.limit()

    def _other_slots(
        self, needs: Needs, managers: Mapping[str, ManagerView], wanted: Mapping[str, Wanted]
    ) -> Sequence[SlotBatch]:
        slots = [
            SlotBatch(int(worker.slots // needs.slots_taken(worker.offers, worker.slots)), 0.0)
            for worker in self._state.workers.values()
            if worker.is_willing and worker not in self.until and needs.fits(worker.offers)
        ]
        for name, manager in managers.items():
            if self.is_planned(manager.is_late, manager.charges_tasks) or not needs.fits(manager.offers):
                continue
            each = int(manager.unit_slots // needs.slots_taken(manager.offers, manager.unit_slots))
            startup = startup_seconds(manager)
            slots += [SlotBatch(each, max(0.0, startup - age)) for age in manager.pending_ages]
            if name in wanted and not manager.trouble:
                slots.append(SlotBatch(each * max(0, wanted[name].units - manager.units), startup))
        return slots
