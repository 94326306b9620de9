"""Asks the scheduler for copies of stored results: of those that the user persists, and of those with `replicas`.

The scheduler knows the replicas of a task by itself. It is told again after a restart, because it has forgotten them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

from scaler.client.future import ScalerFuture
from scaler.client.futures import FutureTable
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import RemoteReference
from scaler.errors import UsageError
from scaler.protocol.messages import ReplicateResults

MAX_ROWS = 10_000
"""Of one message, which is a control message."""
_IN_STORAGE = 0

_Target = tuple[RemoteReference, int]


class ResultCopies:
    """The results of one client that are to have further copies."""

    def __init__(
        self,
        futures: FutureTable,
        call: Callable[[Callable[[list[RemoteReference]], None], list[RemoteReference]], object],
        send: Callable[[ReplicateResults], object],
    ) -> None:
        """call: in the client's thread, where `send` sends."""
        self._futures = futures
        self._call = call
        self._send = send
        self._wanted: WeakValueDictionary[bytes, RemoteReference] = WeakValueDictionary()
        """What the scheduler is told again."""

    def persist(self, futures: Iterable[object]) -> None:
        """Have the object storage keep a copy of each result, now or when it is stored. Raises UsageError."""
        checked: list[TaskFuture] = []
        for future in futures:
            if not isinstance(future, TaskFuture) or future._owner is not self._futures:
                what = "a future of another client" if isinstance(future, ScalerFuture) else "no future"
                raise UsageError(f"{future!r} is {what}: persist takes futures of this client")
            checked.append(future)
        for future in checked:
            future.is_persisted = True  # before it is looked whether the result is stored: see `came`
        self._call(self._persist, [future.stored for future in checked if future.stored is not None])

    def came(self, future: TaskFuture) -> None:
        """Note that the result of a task is stored. In the client's thread."""
        stored = future.stored
        if stored is not None:
            if future._spec.replicas > 1:
                stored.replicas = future._spec.replicas
                self._wanted[stored.id] = stored
            if getattr(future, "is_persisted", False):
                self._persist([stored])

    def tell_again(self) -> None:
        """Tell a scheduler that has forgotten everything."""
        stored = list(self._wanted.values())
        targets = [(each, each.replicas) for each in stored if each.replicas > 1]
        self._tell(targets + [(each, _IN_STORAGE) for each in stored if each.is_persisted])

    def _persist(self, stored: list[RemoteReference]) -> None:
        for each in stored:
            each.is_persisted = True
            self._wanted[each.id] = each
        self._tell([(each, _IN_STORAGE) for each in stored])

    def _tell(self, targets: list[_Target]) -> None:
        """Send targets, and not before that the release of what they refer to."""
        for start in range(0, len(targets), MAX_ROWS):
            rows = [(each.id, copies) for each, copies in targets[start : start + MAX_ROWS] if not each.is_invalid]
            if rows:
                self._send(ReplicateResults([row[0] for row in rows], [row[1] for row in rows]))
