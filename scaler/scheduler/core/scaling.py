"""Interface of the part that scales the cluster, which the shell passes to the core. Pure.

`scaler.scheduler.scaling` has the part. Times are core time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from scaler.needs import Needs
from scaler.protocol.messages import ManagerDetails, ManagerStatus, WorkerHeartbeat
from scaler.scheduler.core.state import ManagerRecord, Worker


class Scaling(Protocol):
    next_at: float
    """Time of the next `plan`."""
    prefers_least_capable: bool
    """Among workers that fit a task, prefer the ones with the fewest capabilities that the task does not need."""
    limited: Collection[Worker]
    """Workers with limits that change whenever tasks end."""
    spending: Any
    """See `scaler.scheduler.scaling.units`."""

    def bound(self, state: Any, placement: Any, outbox: Any) -> None:
        """Called once, before the first step."""

    def manager_joined(self, peer: bytes, details: ManagerDetails, now: float) -> ManagerRecord:
        """Return the record of a manager, with state of the part in a subclass."""

    def manager_left(self, record: ManagerRecord, now: float) -> None: ...
    def manager_reported(self, record: ManagerRecord, status: ManagerStatus, now: float) -> None: ...
    def worker_joined(self, worker: Worker, now: float) -> None: ...
    def worker_given_up(self, worker: Worker) -> None:
        """Called before `worker_left` for a worker whose unit may still run."""

    def worker_left(self, worker: Worker, now: float) -> float:
        """Return the time limit (seconds) that the worker's unit has reached, or 0."""

    def heartbeat(self, worker: Worker, heartbeat: WorkerHeartbeat) -> None: ...
    def answered(self, wanted: Mapping[str, Any], complaint: str) -> None:
        """Called with the answer to the last AskPolicy."""

    def limit_workers(self) -> None:
        """Limit the workers in `limited` before a placement."""

    def hurry(self) -> None:
        """Plan soon, because tasks arrived for which no worker has room."""

    def plan(self, now: float) -> None: ...
    def outlook(self, needs: Needs) -> str:
        """Return which workers and managers could run ready tasks with these needs. O(workers)."""

    def unservable(self, needs: Needs) -> str:
        """Return a warning if no worker or manager can run tasks with these needs, or an empty string."""

    def without_workers(self) -> str:
        """Return why no worker is connected and how one starts, as `TITLE: TEXT`, or an empty string."""

    def columns(self, record: ManagerRecord) -> Mapping[str, Any]:
        """Return columns of the manager's row in the status."""
