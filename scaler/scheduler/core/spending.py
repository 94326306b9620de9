"""What the scheduler asks before it starts units that cost money. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from scaler.policy.view import ClusterView, ManagerView, Wanted
from scaler.scheduler.core.state import ManagerRecord, Worker


class Spending:
    """Units cost nothing and nothing limits them, unless an extension brings an object that knows better."""

    is_limited = False
    """There is a limit on what may be spent."""

    @property
    def run(self) -> float:
        """Cost of all units in this run."""
        return 0.0

    def began(self, record: ManagerRecord, worker: Worker) -> None:
        """Note a worker whose tasks are charged, before its first task. Again: does nothing."""

    def left(self, record: ManagerRecord, worker: Worker, now: float) -> None:
        """Charge what a worker whose tasks are charged has cost until it left."""

    def charge(self, _now: float) -> Iterable[str]:
        """Charge what all units have cost, and return warnings about limits."""
        return ()

    def affordable(self, view: ClusterView) -> ClusterView:
        """Return a view for the policy with no more slots than can be paid for."""
        return view

    def limited(
        self, _managers: Sequence[ManagerView], wanted: Mapping[str, Wanted], _now: float
    ) -> tuple[dict[str, Wanted], dict[str, str]]:
        """Return a policy's answer within the limits, and why managers start no more units."""
        return dict(wanted), {}

    def budget(self, _managers: Iterable[ManagerView], _now: float) -> float:
        """Return what new units and tasks may cost."""
        return math.inf

    def task_charge(self, _manager: ManagerView, _task_seconds: float) -> float:
        """Return what a task of this duration costs; 0 where tasks are not charged."""
        return 0.0
