"""Gets that wait for their object, by id and by deadline.

Laws: every waiting get is taken out exactly once; adding and taking out one is O(log n).
"""

from __future__ import annotations

import heapq
import itertools

from scaler.object_storage.owners import OwnerIndex
from scaler.object_storage.state import WaitingGet


class WaitingGets:
    """The gets of all peers that wait."""

    __slots__ = ("_by_id", "_count", "_heap", "_order", "_owners")

    def __init__(self) -> None:
        self._by_id: dict[bytes, dict[WaitingGet, None]] = {}
        self._owners = OwnerIndex()
        self._heap: list[tuple[float, int, WaitingGet]] = []
        self._order = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, object_id: bytes) -> bool:
        return object_id in self._by_id

    def add(self, get: WaitingGet) -> None:
        self._by_id.setdefault(get.id, {})[get] = None
        self._owners.add(get.id)
        heapq.heappush(self._heap, (get.deadline, next(self._order), get))
        self._count += 1

    def owned_by(self, owner: bytes) -> list[bytes]:
        """Return the ids of this owner that are waited for."""
        return self._owners.of(owner)

    def discard(self, get: WaitingGet) -> None:
        """Take one get out."""
        same = self._by_id[get.id]
        del same[get]
        if not same:
            del self._by_id[get.id]
            self._owners.discard(get.id)
        self._answered(get)
        self._compact()

    def pop_all(self, object_id: bytes) -> list[WaitingGet]:
        """Take out and return all gets of one object, in the order of their arrival."""
        gets = list(self._by_id.pop(object_id, ()))
        if gets:
            self._owners.discard(object_id)
            for get in gets:
                self._answered(get)
            self._compact()
        return gets

    def pop_expired(self, now: float) -> list[WaitingGet]:
        """Take out and return all gets whose deadline is over, in the order of their deadlines."""
        expired: list[WaitingGet] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            get = self._heap[0][2]
            self.discard(get)
            expired.append(get)
        return expired

    def next_deadline(self) -> float | None:
        """Return when the next get expires; None when none waits."""
        while self._heap and self._heap[0][2].answered:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _answered(self, get: WaitingGet) -> None:
        get.answered = True
        self._count -= 1

    def _compact(self) -> None:
        # Answered gets stay in the heap until their deadline comes up: cleaned away when they are the majority.
        if len(self._heap) > 64 and len(self._heap) > 2 * self._count:
            self._heap = [entry for entry in self._heap if not entry[2].answered]
            heapq.heapify(self._heap)
