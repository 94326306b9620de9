"""The scaling policy that own_policy.py installs, as a user's module.

The scheduler calls a policy repeatedly with a view of the whole cluster. The policy returns the number of units (worker
processes, or anything else that the worker manager starts) for each manager.
"""

from scaler.errors import UsageError
from scaler.policy.view import Allocation, ClusterView, Wanted


class TasksPerWorker:
    """One unit for every N unfinished tasks, in the manager that connected first; policy_content: N."""

    def __init__(self, policy_content: str) -> None:
        if not policy_content.isdecimal() or int(policy_content) < 1:
            raise UsageError(f"policy_content {policy_content!r}: must be a number of tasks per worker, such as 10")
        self.allocation = Allocation()
        self._tasks = int(policy_content)

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        unfinished = sum(demand.queued + demand.running for demand in view.demand)
        managers = [manager for manager in view.managers if not manager.fixed]
        if not managers:
            return {}
        first = managers[0]
        units = -(-unfinished // self._tasks)  # rounded up
        if first.max_units is not None:
            units = min(units, first.max_units)
        return {first.manager_id: Wanted(units, f"{unfinished} tasks, {self._tasks} per worker")}
