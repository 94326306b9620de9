"""Scaling rules of other systems, as their documentation describes them, with their defaults: policies are measured
against them. They run on this scheduler, which stops no unit that has work.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from scaler.policy.view import Allocation, ClusterView, ManagerView, Wanted

HEARTBEAT_SECONDS = 2.0
GROW_ABOVE = 10
SHRINK_BELOW = 1


@runtime_checkable
class TaskWatcher(Protocol):
    """A policy that wants to see each task, as the scheduler of its own system does."""

    def task_started(self, function: str, task: bytes, now: float) -> None: ...
    def task_ended(self, function: str, task: bytes, now: float) -> None: ...


class AllFromTheStart:
    """All permitted units from the start. A comparison with it stops them with the last task."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {
            manager.manager_id: Wanted(manager.units if manager.max_units is None else manager.max_units, "all")
            for manager in view.managers
        }


class OnePerHeartbeat:
    """One more unit per heartbeat when tasks / workers > 10, one less when it is below 1; the first for any task.

    Workers are connected ones, as usual in such formulas: pending units are not counted. Each manager is treated
    separately, with the tasks that it could run.
    """

    allocation = Allocation()

    def __init__(self) -> None:
        self._next = -math.inf
        self._wanted: dict[str, int] = {}

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        if view.now >= self._next:
            self._next = view.now + HEARTBEAT_SECONDS
            self._wanted = {manager.manager_id: self._beat(manager, view) for manager in view.managers}
        return {
            manager.manager_id: Wanted(self._wanted.get(manager.manager_id, manager.units), "tasks / workers")
            for manager in view.managers
        }

    @staticmethod
    def _beat(manager: ManagerView, view: ClusterView) -> int:
        tasks = sum(row.queued + row.running for row in view.demand if row.needs.fits(manager.offers))
        workers = manager.units_running
        share = tasks / workers if workers else math.inf if tasks else 0.0
        if share > GROW_ABOVE:
            limit = math.inf if manager.max_units is None else manager.max_units
            return int(min(manager.units + 1, limit))
        return max(0, manager.units - 1) if share < SHRINK_BELOW else manager.units


class DaskAdaptive:
    """Dask's adaptive rule: as many workers as finish the present work in five seconds, and no more than tasks.

    A task counts with its function's moving average, half of which is the last task. Before one has ended, or when one
    runs that exceeds the average twice, it is twice what the longest has run; half a second when none runs. It looks
    once a second. Idle and pending units that three looks in a row found superfluous are stopped.

    Dask has one kind of worker. Where there are several managers, the ones that offer least are filled first.
    """

    allocation = Allocation()
    TARGET_SECONDS = 5.0
    INTERVAL_SECONDS = 1.0
    LOOKS = 3
    UNKNOWN_SECONDS = 0.5

    def __init__(self) -> None:
        self._next = -math.inf
        self._averages: dict[str, float] = {}
        self._running: dict[str, dict[bytes, float]] = {}
        """Start times of running tasks by function, the oldest first."""
        self._surplus: dict[str, deque[int]] = {}
        self._wanted: dict[str, Wanted] = {}

    def task_started(self, function: str, task: bytes, now: float) -> None:
        running = self._running.setdefault(function, {})
        running.pop(task, None)
        running[task] = now

    def task_ended(self, function: str, task: bytes, now: float) -> None:
        seconds = now - self._running[function].pop(task, now)
        self._averages[function] = (seconds + self._averages.get(function, seconds)) / 2

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        if view.now >= self._next:
            self._next = view.now + self.INTERVAL_SECONDS
            self._wanted = self._look(view)
        return self._wanted

    def _task_seconds(self, function: str, now: float) -> float:
        longest = now - min(self._running.get(function, {}).values(), default=now)
        average = self._averages.get(function)
        if average is not None and longest <= 2 * average:
            return average
        return 2 * longest if longest > 0 else self.UNKNOWN_SECONDS

    def _look(self, view: ClusterView) -> dict[str, Wanted]:
        targets = {manager.manager_id: 0 for manager in view.managers}
        by_capabilities = sorted(view.managers, key=lambda manager: len(manager.offers.items))
        for needs in dict.fromkeys(row.needs for row in view.demand):
            rows = [row for row in view.demand if row.needs == needs]
            tasks = sum(row.queued + row.running for row in rows)
            seconds = sum((row.queued + row.running) * self._task_seconds(row.function, view.now) for row in rows)
            missing = min(tasks, math.ceil(seconds / self.TARGET_SECONDS))
            for manager in by_capabilities:
                if needs.fits(manager.offers):
                    limit = missing if manager.max_units is None else manager.max_units
                    units = min(math.ceil(missing / manager.unit_slots), limit - targets[manager.manager_id])
                    targets[manager.manager_id] += units
                    missing -= units * manager.unit_slots
        return {manager.manager_id: self._recommend(manager, targets[manager.manager_id]) for manager in view.managers}

    def _recommend(self, manager: ManagerView, target: int) -> Wanted:
        """Return what a manager should have: only what three looks in a row found superfluous is given up."""
        seen = self._surplus.setdefault(manager.manager_id, deque(maxlen=self.LOOKS))
        surplus = manager.units - target
        if surplus <= 0:
            seen.clear()
            return Wanted(target, "work / 5 s")
        seen.append(min(surplus, len(manager.pending_ages) + len(manager.idle_seconds)))
        closed = min(seen) if len(seen) == self.LOOKS else 0
        if closed:
            seen.extend([before - closed for before in seen])
        return Wanted(manager.units - closed, "work / 5 s")


class HyperQueueAllocation:
    """HyperQueue's automatic allocation: one queued allocation of one worker while tasks wait that it would run.

    A worker without a task for five minutes ends. Running workers are not limited but by the manager's limit.
    """

    allocation = Allocation()
    BACKLOG = 1
    IDLE_SECONDS = 300.0

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {manager.manager_id: self._allocate(manager, view) for manager in view.managers}

    def _allocate(self, manager: ManagerView, view: ClusterView) -> Wanted:
        waiting = sum(row.queued for row in view.demand if row.needs.fits(manager.offers))
        pending = len(manager.pending_ages)
        useful = math.ceil(waiting / manager.unit_slots)
        units = manager.units + max(0, min(self.BACKLOG, useful) - pending)
        ended = sum(seconds >= self.IDLE_SECONDS for seconds in manager.idle_seconds)
        limit = units if manager.max_units is None else manager.max_units
        unwanted = pending if not waiting else 0
        return Wanted(max(0, min(units, limit) - ended - unwanted), "backlog")


def flaps_of(changes: Sequence[tuple[float, int]], startup_seconds: float) -> int:
    """Return how often a unit was started within a start-up time after one was stopped: it might have stayed.

    changes: times and how many units are wanted from then on, in order.
    """
    found = 0
    stopped = -math.inf
    for (_, before), (at, after) in itertools.pairwise(changes):
        if after < before:
            stopped = at
        elif at - stopped <= startup_seconds:
            found += 1
            stopped = -math.inf
    return found
