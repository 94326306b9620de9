"""Interfaces of the parts that move objects and scale the cluster, which the shell passes to the core. Pure.

`scaler.scheduler.data` and `scaler.scheduler.scaling` have the parts. Attributes of type Any are for views of their
data. Times are core time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from scaler.needs import Needs
from scaler.protocol.messages import ManagerDetails, ManagerStatus, Message, StoreDetails, WorkerHeartbeat
from scaler.scheduler.core.accounts import Rules
from scaler.scheduler.core.state import ManagerRecord, StoreRecord, Worker


class Stores(Protocol):
    """Registry of stores."""

    tracker: Any
    """Objects at stores, and their transfers: a `scaler.scheduler.data.tracker.Tracker`."""

    def bound(self, state: Any, outbox: Any, config: Rules) -> None:
        """Called once, before the first step."""

    def joined(self, peer: bytes, name: str, details: StoreDetails, now: float, *, is_back: bool) -> StoreRecord: ...
    def left(self, record: StoreRecord) -> None: ...
    def use(self, worker: Worker, store: bytes, now: float) -> None: ...
    def worker_left(self, worker: Worker) -> None: ...
    def storage_connected(self) -> None: ...
    def received(self, record: StoreRecord, message: Message) -> bool: ...
    def said(self, store: int, message: Message) -> bool: ...
    def forget_owner(self, owner: bytes) -> None: ...
    def tick(self, now: float) -> None: ...


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
    def unservable(self, needs: Needs) -> str:
        """Return a warning if no worker or manager can run tasks with these needs, or an empty string."""
