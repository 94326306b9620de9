"""Interface of the part that tracks the locations of objects. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaler.protocol.messages import ForgetObjects, ForgetOwner, Message, StoreDetails
from scaler.scheduler.core.accounts import Rules
from scaler.scheduler.core.commands import Command, SendToStorage
from scaler.scheduler.core.state import PeerRecord, Task, Worker


@dataclass(slots=True)
class Timer:
    """The core sets `now` at the beginning of each step, and calls `Stores.tick` once `next_at` is reached."""

    now: float = -math.inf
    next_at: float = math.inf


class Stores:
    """Locations of objects, and the workers near them. In this class, all objects are in the object storage, at the
    same distance from all workers. `Rooms.stores` may return a subclass with more places. Times are core time. Places
    are numbers; 0 is the object storage."""

    is_used = False
    """Whether small objects may also be outside the object storage, so that `stored` must be called for all objects."""
    is_spread = False
    """Whether workers are at several places. Otherwise, no task prefers a place."""
    refusal = "this scheduler has no host stores: its extension data_plane is disabled"
    """Why stores cannot connect; empty if they can."""
    again_at = math.inf
    """Next time to place tasks whose preferred places could not be compared yet."""

    def __init__(self) -> None:
        self.records: Mapping[bytes, PeerRecord] = {}
        """Connected stores by peer id."""
        self.timer = Timer()
        self._to_storage: list[Message] = []
        self.mail: Collection[object] = self._to_storage
        """Pending messages. If empty and not `is_used`, `take_messages` need not be called."""

    def bound(self, state: Any, outbox: Any, config: Rules) -> None:
        """Called once, before the first step."""

    def tick(self, now: float) -> None:
        """Called when the timer is due."""

    # -- peers

    def joined(
        self, peer: bytes, name: str, details: StoreDetails, now: float, gone: Iterable[bytes], *, is_back: bool
    ) -> PeerRecord:
        """Add a store. gone: owners whose objects it must drop. is_back: it was connected to an earlier scheduler."""
        raise NotImplementedError

    def left(self, record: PeerRecord) -> None: ...
    def received(self, record: PeerRecord, message: Message) -> bool:
        """Process a store's message. Returns False if its type is not allowed."""
        raise NotImplementedError

    def storage_connected(self, gone: Iterable[bytes]) -> None:
        """Called when the object storage has opened a new session. gone: as in `joined`."""
        self._to_storage += map(ForgetOwner, gone)

    def storage_said(self, message: Message) -> None: ...
    def worker_joined(self, worker: Worker) -> None: ...
    def worker_left(self, worker: Worker) -> None: ...
    def forget_worker(self, worker: Worker) -> None:
        """Called after a worker left and its tasks have ended or are ready again."""

    def use(self, worker: Worker, store: bytes, now: float) -> None:
        """Record the store on a worker's host. Empty: the object storage."""

    # -- objects

    def stored(self, identifier: bytes, size_bytes: int, worker: Worker, function: str = "") -> None:
        """Record an object stored by a task. size_bytes: 0 if unknown."""

    def restored(self, identifier: bytes) -> None:
        """Record that a client has stored a lost object again, in the object storage."""

    def forget(self, identifiers: list[bytes]) -> None:
        self._to_storage.append(ForgetObjects(identifiers))

    def forget_owner(self, owner: bytes) -> None:
        self._to_storage.append(ForgetOwner(owner))

    def persist(self, identifier: bytes) -> None:
        """Keep a copy of a result in the object storage, where it survives the loss of a host."""

    def persist_results_of(self, client: bytes) -> None: ...
    def size_of(self, _identifier: bytes) -> int:
        """Return the size of an object; 0 if unknown."""
        return 0

    def lost_with(self, _identifier: bytes) -> str:
        """Return the host that was lost with the only copy of an object, or an empty string."""
        return ""

    def take_messages(self) -> list[Command]:
        """Return the messages for stores."""
        messages: list[Command] = [*map(SendToStorage, self._to_storage)]
        self._to_storage.clear()
        return messages

    # -- placement

    def preferred(self, _task: Task, _now: float) -> int | None:
        """Return the place preferred by a task with references, or None."""
        return None

    def place_of(self, _worker: Worker) -> int:
        return 0

    def came_free(self, worker: Worker) -> None:
        """Record that a worker's capacity for tasks has changed."""

    def end_pass(self, now: float) -> None:
        """Called after all queues were offered to workers, if these are at several places."""

    def nearest(self, workers: Sequence[Worker], _idle: Worker) -> Sequence[Worker]:
        """Return the workers whose tasks may move to an idle worker, nearest first."""
        return workers

    def may_move(self, _task: Task, _worker: Worker, _idle: Worker, _behind: int, _now: float) -> bool | None:
        """Return whether a task with references should move to an idle worker at another place, or None if no more
        tasks can be compared now. behind: tasks queued after it."""
        return True

    def why_waits(self, _task: Task, _now: float) -> str:
        """Describe the place that a ready task prefers, and why, or return an empty string."""
        return ""

    def fetching(self, _task: Task, _worker: Worker) -> str:
        """Describe the progress of an input that a worker is fetching, or return an empty string."""
        return ""
