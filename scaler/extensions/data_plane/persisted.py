"""Tracks results that must outlive their hosts, and asks the object storage to copy them. Pure.

A *persisted* result has a copy in the object storage or its backend until it is deleted. The object storage, when
it is *asked*, fetches and keeps the result. After a refusal, for example because memory is full, the object storage is
asked again later.

Invariants: a result remains persisted until it is deleted, even while no store has it. At most MAX_ASKED requests
are open. When copies or stores change, results without a copy are settled again. Other objects cost nothing. A step
settles at most MAX_SETTLED results.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import islice

from scaler.backoff import Backoff
from scaler.extensions.data_plane.directory import OBJECT_STORAGE, Directory
from scaler.extensions.data_plane.transfer import StoreMail
from scaler.ids import is_result, owner_of
from scaler.object_storage.messages import CopyObjects

MAX_ASKED = 1_000
MAX_SETTLED = 2_000
REFUSED = Backoff(1.0, 300.0)
"""Delay before a result is requested again after a refusal."""


class PersistedResults:
    def __init__(self, directory: Directory, mail: StoreMail, wake_by: Callable[[float], None]) -> None:
        """wake_by: called with the time of the next `settle`."""
        self.keeps_all = False
        """Whether all results are persisted."""
        self.durable: set[bytes] = set()
        """Owners of durable sessions, whose results are also persisted."""
        self.places = {OBJECT_STORAGE}
        """The object storage and its backend."""
        self._directory = directory
        self._mail = mail
        self._wake_by = wake_by
        self.refusals: dict[bytes, dict[bytes, int]] = {}
        """Persisted results by owner, with the number of refusals."""
        self.asked: set[bytes] = set()
        self.unsettled: dict[bytes, None] = {}
        self.delayed: list[tuple[float, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self.refusals)

    def __contains__(self, identifier: bytes) -> bool:
        return identifier in self.refusals.get(owner_of(identifier), ())

    def add(self, identifier: bytes) -> None:
        self.refusals.setdefault(owner_of(identifier), {}).setdefault(identifier, 0)
        self._unsettle(identifier)

    def held(self, identifier: bytes, store: int) -> None:
        if identifier in self:
            if store == OBJECT_STORAGE:
                self.asked.discard(identifier)
            self._unsettle(identifier)
        elif store not in self.places and self._outlives_hosts(identifier):
            self.add(identifier)

    def _outlives_hosts(self, identifier: bytes) -> bool:
        return (self.keeps_all or owner_of(identifier) in self.durable) and is_result(identifier)

    def lost(self, identifier: bytes) -> None:
        if identifier in self:
            self._unsettle(identifier)

    def refused(self, store: int, identifier: bytes, now: float) -> None:
        """Record that a store declines or abandons a copy."""
        if store == OBJECT_STORAGE and identifier in self.asked:
            self.asked.remove(identifier)
            refusals = self.refusals[owner_of(identifier)]
            refusals[identifier] += 1
            heapq.heappush(self.delayed, (now + REFUSED.seconds(refusals[identifier]), identifier))
            self._wake_by(-math.inf if self.unsettled else self.delayed[0][0])

    def gone(self, store: int) -> None:
        """Record that a store disconnected or dropped its requests. The caller calls `lost` for each of its objects."""
        if store != OBJECT_STORAGE:
            self.places.discard(store)
            return
        for identifier in self.asked:
            self._unsettle(identifier)
        self.asked.clear()

    def forget(self, identifier: bytes) -> None:
        of_owner = self.refusals.get(owner_of(identifier), {})
        if identifier in of_owner:
            del of_owner[identifier]
            if not of_owner:
                del self.refusals[owner_of(identifier)]
            self._drop(identifier)

    def forget_owner(self, owner: bytes) -> None:
        self.durable.discard(owner)
        for identifier in self.refusals.pop(owner, {}):
            self._drop(identifier)

    def _drop(self, identifier: bytes) -> None:
        self.asked.discard(identifier)
        self.unsettled.pop(identifier, None)

    def _unsettle(self, identifier: bytes) -> None:
        self.unsettled[identifier] = None
        self._wake_by(-math.inf)

    def settle(self, now: float) -> None:
        """Ask the object storage for copies that it lacks."""
        while self.delayed and self.delayed[0][0] <= now:
            _, identifier = heapq.heappop(self.delayed)
            if identifier in self:
                self.unsettled[identifier] = None
        if self.delayed:
            self._wake_by(self.delayed[0][0])
        for identifier in list(islice(self.unsettled, MAX_SETTLED)):
            copies = self._directory.find(identifier)
            # Without an entry, no copy exists until the result is computed or stored again.
            if copies is not None and not copies.holders & self.places and identifier not in self.asked:
                if len(self.asked) >= MAX_ASKED:
                    return  # until the object storage has answered
                self.asked.add(identifier)
                self._mail.add(CopyObjects, OBJECT_STORAGE, identifier, copies.size_bytes)
            del self.unsettled[identifier]
        if self.unsettled:
            self._wake_by(-math.inf)
