"""Scaling rules of other systems with their defaults, from their documentation, as references for measurements.

The rules run on Scaler's scheduler, which never stops a unit that has work.
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
    """A policy that observes each task, like the scheduler of its system."""

    def task_started(self, function: str, task: bytes, now: float) -> None: ...
    def task_ended(self, function: str, task: bytes, now: float) -> None: ...


class AllFromTheStart:
    """All permitted units from the start. The comparison stops them with the last task."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {
            manager.manager_id: Wanted(manager.units if manager.max_units is None else manager.max_units, "all")
            for manager in view.managers
        }


class OnePerHeartbeat:
    """One more unit per heartbeat if tasks / workers > 10, one less if the ratio is below 1. The first unit starts for
    any task.

    Counts connected workers only, as usual in such formulas, and treats each manager separately.
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
    """Dask's adaptive rule: as many workers as finish the current work in five seconds, and at most one per task.

    A task counts with its function's moving average, half of which is the last task. Before a task has ended, or
    while one has run for more than twice the average, the estimate is twice the longest running time, or half a
    second without running tasks. The rule runs once a second, and stops units that were idle or pending and
    superfluous three times in a row.

    Dask has one kind of worker. With several managers, those with the fewest capabilities are filled first.
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
        """Start times of running tasks by function, oldest first."""
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
        """Return the units for a manager, dropping only units that were superfluous three times in a row."""
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
    """HyperQueue's automatic allocation: one queued allocation of one worker while it would have waiting tasks to run.

    A worker ends after five minutes without a task. Only the manager's limit bounds the number of running workers.
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
    """Return how often a unit was started within a start-up time after one was stopped, and could have been kept.

    changes: times and the wanted units from then on, in order.
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
