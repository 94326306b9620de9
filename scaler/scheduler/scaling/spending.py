"""Interface to the costs of units. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from scaler.policy.view import ClusterView, ManagerView, Wanted
from scaler.scheduler.core.state import Worker
from scaler.scheduler.scaling.units import ManagerUnits


class Spending:
    """Default without costs and limits, which an extension may replace."""

    is_limited = False

    @property
    def run(self) -> float:
        return 0.0

    def began(self, manager: ManagerUnits, worker: Worker) -> None:
        """Add a worker with charged tasks, before its first task. Idempotent."""

    def left(self, manager: ManagerUnits, worker: Worker, now: float) -> None:
        """Charge the final cost of a departed worker with charged tasks."""

    def charge(self, _managers: Iterable[ManagerUnits], _now: float) -> Iterable[str]:
        """Charge the cost of all units so far. Returns warnings about limits."""
        return ()

    def affordable(self, view: ClusterView) -> ClusterView:
        """Reduce a view for the policy to the slots that the budget allows."""
        return view

    def limited(
        self, _managers: Sequence[ManagerView], wanted: Mapping[str, Wanted], _now: float
    ) -> tuple[dict[str, Wanted], dict[str, str]]:
        """Return the policy's answer within the limits, and why managers start no more units."""
        return dict(wanted), {}

    def budget(self, _managers: Iterable[ManagerView], _now: float) -> float:
        """Return the budget for new units and tasks."""
        return math.inf

    def task_charge(self, _manager: ManagerView, _task_seconds: float) -> float:
        """Return the cost of a task of this duration; 0 if tasks are not charged."""
        return 0.0
