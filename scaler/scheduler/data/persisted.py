"""Results that must outlive their hosts: when the object storage is asked for a copy. Pure.

A *persisted* result has a copy in the object storage or its backend until it is forgotten. The object storage, when it
is *asked*, fetches and keeps the result. After a refusal, for example because of full memory, it is asked again later.

Invariants: a result stays persisted until it is forgotten, even while no store has it. At most MAX_ASKED results are
asked for. A result without its copy is settled again when copies or stores change. Other objects cost nothing. A step
settles at most MAX_SETTLED results.
"""

from __future__ import annotations

import heapq
import math
from itertools import islice

from scaler.backoff import Backoff
from scaler.ids import is_result, owner_of
from scaler.protocol.messages import CopyObjects
from scaler.scheduler.core.data import OBJECT_STORAGE
from scaler.scheduler.data.directory import Directory
from scaler.scheduler.data.mail import StoreMail

MAX_ASKED = 1_000
MAX_SETTLED = 2_000
REFUSED = Backoff(1.0, 300.0)
"""Delay before a result is requested again after a refusal."""


class PersistedResults:
    def __init__(self, directory: Directory, mail: StoreMail) -> None:
        self.keeps_all = False
        """Whether all results are persisted."""
        self.durable: set[bytes] = set()
        """Owners of durable sessions, whose results are also persisted."""
        self.next_at = math.inf
        self.places = {OBJECT_STORAGE}
        """The object storage and its backend."""
        self._directory = directory
        self._mail = mail
        self._refusals: dict[bytes, dict[bytes, int]] = {}
        """Persisted results by owner, with the number of refusals."""
        self._asked: set[bytes] = set()
        self._unsettled: dict[bytes, None] = {}
        self._refused: list[tuple[float, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._refusals)

    def __contains__(self, identifier: bytes) -> bool:
        return identifier in self._refusals.get(owner_of(identifier), ())

    def add(self, identifier: bytes) -> None:
        self._refusals.setdefault(owner_of(identifier), {}).setdefault(identifier, 0)
        self._unsettle(identifier)

    def held(self, identifier: bytes, store: int) -> None:
        if identifier in self:
            if store == OBJECT_STORAGE:
                self._asked.discard(identifier)
            self._unsettle(identifier)
        elif store not in self.places and self._outlives_hosts(identifier):
            self.add(identifier)

    def _outlives_hosts(self, identifier: bytes) -> bool:
        return (self.keeps_all or owner_of(identifier) in self.durable) and is_result(identifier)

    def lost(self, identifier: bytes) -> None:
        if identifier in self:
            self._unsettle(identifier)

    def refused(self, identifier: bytes, now: float) -> None:
        """Record that the object storage declines or abandons a copy."""
        if identifier in self._asked:
            self._asked.remove(identifier)
            refusals = self._refusals[owner_of(identifier)]
            refusals[identifier] += 1
            heapq.heappush(self._refused, (now + REFUSED.seconds(refusals[identifier]), identifier))
            self.next_at = -math.inf if self._unsettled else min(self.next_at, self._refused[0][0])

    def gone(self, store: int) -> None:
        """Note that a store disconnected or dropped its requests. The caller calls `lost` for each of its objects."""
        if store != OBJECT_STORAGE:
            self.places.discard(store)
            return
        for identifier in self._asked:
            self._unsettle(identifier)
        self._asked.clear()

    def forget(self, identifier: bytes) -> None:
        of_owner = self._refusals.get(owner_of(identifier), {})
        if identifier in of_owner:
            del of_owner[identifier]
            if not of_owner:
                del self._refusals[owner_of(identifier)]
            self._drop(identifier)

    def forget_owner(self, owner: bytes) -> None:
        self.durable.discard(owner)
        for identifier in self._refusals.pop(owner, {}):
            self._drop(identifier)

    def _drop(self, identifier: bytes) -> None:
        self._asked.discard(identifier)
        self._unsettled.pop(identifier, None)

    def _unsettle(self, identifier: bytes) -> None:
        self._unsettled[identifier] = None
        self.next_at = -math.inf

    def settle(self, now: float) -> None:
        """Ask the object storage for copies that it lacks."""
        while self._refused and self._refused[0][0] <= now:
            _, identifier = heapq.heappop(self._refused)
            if identifier in self:
                self._unsettled[identifier] = None
        self.next_at = self._refused[0][0] if self._refused else math.inf
        for identifier in list(islice(self._unsettled, MAX_SETTLED)):
            copies = self._directory.find(identifier)
            # Without an entry, no copy exists until the result is made or put again.
            if copies is not None and not copies.holders & self.places and identifier not in self._asked:
                if len(self._asked) >= MAX_ASKED:
                    return  # until the object storage has answered
                self._asked.add(identifier)
                self._mail.add(CopyObjects, OBJECT_STORAGE, identifier, copies.size_bytes)
            del self._unsettled[identifier]
        if self._unsettled:
            self.next_at = -math.inf

    def check(self) -> None:
        """Assert the invariants. O(everything): for tests."""
        assert all(self._refusals.values()), "a client without persisted results is listed"
        persisted = {identifier for of_owner in self._refusals.values() for identifier in of_owner}
        assert self._asked | self._unsettled.keys() <= persisted, "a result is settled that was forgotten"
        assert len(self._asked) <= MAX_ASKED, "the object storage is asked for too much"
        pending = self._asked | self._unsettled.keys() | {identifier for _, identifier in self._refused}
        for identifier in persisted - pending:
            copies = self._directory.find(identifier)
            assert copies is None or copies.holders & self.places, "a persisted result lacks a copy"
