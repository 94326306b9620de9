"""What the built-in policies are compared with: the fastest way there is, and a formula that is often met."""

from __future__ import annotations

import math

from scaler.policy.view import Allocation, ClusterView, ManagerView, Wanted

HEARTBEAT_SECONDS = 2.0
GROW_ABOVE = 10
SHRINK_BELOW = 1


class AllFromTheStart:
    """All units that are allowed, from the first moment on. A simulation that compares with it sends them home with
    the last task."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {
            manager.manager_id: Wanted(manager.units if manager.max_units is None else manager.max_units, "all")
            for manager in view.managers
        }


class OnePerHeartbeat:
    """One more unit per heartbeat when tasks / workers > 10, one less when it is below 1; the first for any task.

    Workers are those that are connected, as such formulas have it: units that start are not counted. Each manager is
    looked at by itself, with the tasks that it could run.
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
