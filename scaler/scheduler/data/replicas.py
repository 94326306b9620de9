"""Replication: which objects need more copies, and which stores fetch them. Pure.

A *replication target* is the number of copies of an object, and whether one must be in the object storage. A store that
is *asked* fetches the object as for a reader, and keeps it until it is forgotten. Stores of other hosts are preferred
to the object storage. After a refusal, for example because of full memory, a store is asked again later.

Invariants: a target exists until its object is forgotten, even while no store has the object. Only connected stores are
asked, for at most MAX_ASKED objects each. An unmet target is settled again when copies or stores change. Objects
without a target cost nothing. A step settles at most MAX_SETTLED targets.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from scaler.backoff import Backoff
from scaler.ids import SHARED_OWNER, is_result, owner_of
from scaler.protocol.messages import MAX_REPLICAS, CopyObjects
from scaler.scheduler.core.data import OBJECT_STORAGE, Copies
from scaler.scheduler.data.directory import Directory
from scaler.scheduler.data.mail import StoreMail
from scaler.scheduler.data.transfer import Traffic

MAX_ASKED = 1_000
MAX_SETTLED = 2_000
MAX_LOOKS = 16
"""Stores compared to find the least loaded one."""
REFUSED = Backoff(1.0, 300.0)
"""Delay before an object is requested again after a refusal."""


@dataclass(slots=True, eq=False)
class ReplicationTarget:
    """copies: copies in different stores. is_stored: one copy must be in the object storage or its backend."""

    copies: int = 1
    is_stored: bool = False
    asked: set[int] = field(default_factory=set)
    """Stores that were asked for a copy and have not reported it yet."""
    refusals: int = 0


class Replicas:
    """Targets of all clients. links: the connected stores."""

    def __init__(self, directory: Directory, links: Mapping[int, Traffic], mail: StoreMail) -> None:
        self.keeps_results = False
        """Whether the object storage must have a copy of each result."""
        self.durable: set[bytes] = set()
        """Owners of durable sessions, whose results the object storage must have as well."""
        self.next_at = math.inf
        self._directory = directory
        self._links = links
        self._mail = mail
        self._targets: dict[bytes, dict[bytes, ReplicationTarget]] = {}
        self._asked: dict[int, set[bytes]] = {}
        self._hosts: list[int] = []
        self._storage = {OBJECT_STORAGE}
        self._unsettled: dict[bytes, None] = {}
        self._unmet: dict[bytes, None] = {}
        """Objects that lack copies because there are too few stores."""
        self._refused: list[tuple[float, bytes]] = []
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._targets)

    def find(self, identifier: bytes) -> ReplicationTarget | None:
        of_owner = self._targets.get(owner_of(identifier))
        return None if of_owner is None else of_owner.get(identifier)

    def want(self, identifier: bytes, copies: int = 1, *, is_stored: bool = False) -> None:
        """Raise an object's target to this number of copies."""
        target = self._targets.setdefault(owner_of(identifier), {}).setdefault(identifier, ReplicationTarget())
        target.copies = max(target.copies, min(copies, MAX_REPLICAS))
        target.is_stored |= is_stored
        self._unsettle(identifier)

    def held(self, identifier: bytes, store: int) -> None:
        target = self.find(identifier)
        if target is not None:
            self._answered(identifier, target, store)
            self._unsettle(identifier)
        elif store not in self._storage and self._outlives_hosts(identifier):
            self.want(identifier, is_stored=True)

    def _outlives_hosts(self, identifier: bytes) -> bool:
        owner = owner_of(identifier)
        return (owner in self.durable or (self.keeps_results and owner != SHARED_OWNER)) and is_result(identifier)

    def lost(self, identifier: bytes) -> None:
        if self.find(identifier) is not None:
            self._unsettle(identifier)

    def refused(self, store: int, identifier: bytes, now: float) -> None:
        """Note that a store declines a copy, or gives it up."""
        target = self.find(identifier)
        if target is not None and self._answered(identifier, target, store):
            target.refusals += 1
            heapq.heappush(self._refused, (now + REFUSED.seconds(target.refusals), identifier))
            self.next_at = min(self.next_at, self._refused[0][0])

    def came(self, store: int) -> None:
        if self._links[store].is_backend:
            self._storage.add(store)
        else:
            self._hosts.append(store)
        self._unsettled |= self._unmet
        self._unmet.clear()
        self._wake()

    def gone(self, store: int) -> None:
        """Note that a store disconnected or dropped its requests. The caller calls `lost` for each of its objects."""
        if store in self._hosts:
            self._hosts.remove(store)
        elif store != OBJECT_STORAGE:
            self._storage.discard(store)
        for identifier in self._asked.pop(store, set()):
            target = self.find(identifier)
            assert target is not None, "a store is asked for what is wanted"
            target.asked.discard(store)
            self._unsettle(identifier)

    def forget(self, identifier: bytes) -> set[int]:
        """Drop an object's target. Returns the stores that were asked for a copy."""
        target = self.find(identifier)
        if target is None:
            return set()
        of_owner = self._targets[owner_of(identifier)]
        del of_owner[identifier]
        if not of_owner:
            del self._targets[owner_of(identifier)]
        self._drop(identifier, target)
        return target.asked

    def forget_owner(self, owner: bytes) -> None:
        self.durable.discard(owner)
        for identifier, target in self._targets.pop(owner, {}).items():
            self._drop(identifier, target)

    def _drop(self, identifier: bytes, target: ReplicationTarget) -> None:
        for store in target.asked:
            self._asked[store].discard(identifier)
        self._unsettled.pop(identifier, None)
        self._unmet.pop(identifier, None)

    def _answered(self, identifier: bytes, target: ReplicationTarget, store: int) -> bool:
        """Remove a store's pending request. Returns False if there was none."""
        if store not in target.asked:
            return False
        target.asked.discard(store)
        self._asked[store].discard(identifier)
        if self._unsettled:
            self._wake()
        return True

    def _unsettle(self, identifier: bytes) -> None:
        self._unsettled[identifier] = None
        self._wake()

    def _wake(self) -> None:
        self.next_at = -math.inf

    # -- who gets a copy

    def settle(self, now: float) -> None:
        while self._refused and self._refused[0][0] <= now:
            _, identifier = heapq.heappop(self._refused)
            if self.find(identifier) is not None:
                self._unsettled[identifier] = None
        self.next_at = self._refused[0][0] if self._refused else math.inf
        for identifier in list(islice(self._unsettled, MAX_SETTLED)):
            if not self._settle(identifier):
                return  # until a store has answered
            del self._unsettled[identifier]
        if self._unsettled:
            self._wake()

    def _settle(self, identifier: bytes) -> bool:
        """Ask stores for copies of one object. Returns False if the chosen stores have no room for requests."""
        target, copies = self.find(identifier), self._directory.find(identifier)
        assert target is not None, "it is dropped with its object"
        self._unmet.pop(identifier, None)
        if copies is None:
            return True  # no copy exists until the object is made or put again
        have = (copies.holders & self._links.keys()) | target.asked
        if len(have) == len(target.asked):
            self._unmet[identifier] = None  # until a store that has a copy connects
            return True
        if target.is_stored and not self._storage & have:
            if not self._ask(identifier, target, copies, OBJECT_STORAGE):
                return False
            have.add(OBJECT_STORAGE)
        while len(have) < target.copies:
            store = self._choose(have)
            if store is None:
                self._unmet[identifier] = None
                return True
            if not self._ask(identifier, target, copies, store):
                return False
            have.add(store)
        return True

    def _choose(self, have: set[int]) -> int | None:
        """Return the store for the next copy: the least loaded among some that have none."""
        self._turn += 1
        count = len(self._hosts)
        looked = (self._hosts[(self._turn + look) % count] for look in range(min(count, MAX_LOOKS + len(have))))
        found = [store for store in looked if store not in have]
        if not found:
            return None if OBJECT_STORAGE in have else OBJECT_STORAGE
        return min(found, key=lambda store: len(self._asked.get(store, ())) + self._links[store].gets)

    def _ask(self, identifier: bytes, target: ReplicationTarget, copies: Copies, store: int) -> bool:
        asked = self._asked.setdefault(store, set())
        if len(asked) >= MAX_ASKED:
            return False
        asked.add(identifier)
        target.asked.add(store)
        self._mail.add(CopyObjects, store, identifier, copies.size_bytes)
        return True

    def check(self) -> None:
        """Assert the invariants. O(everything): for tests."""
        targets = {each: target for of_owner in self._targets.values() for each, target in of_owner.items()}
        asked = {(store, each) for each, target in targets.items() for store in target.asked}
        assert asked == {(store, each) for store, of_store in self._asked.items() for each in of_store}, "who is asked"
        assert {store for store, _ in asked} <= self._links.keys(), "a store that has gone is asked"
        assert {*self._storage, *self._hosts} == {*self._links}, "the stores that are here"
        assert all(self._targets.values()), "a client without targets is listed"
        assert self._unsettled.keys() | self._unmet.keys() <= targets.keys(), "a target is settled that was dropped"
        assert all(len(of_store) <= MAX_ASKED for of_store in self._asked.values()), "a store is asked for too much"
        assert all(self._is_settled(each, target) for each, target in targets.items()), "an object lacks a copy"

    def _is_settled(self, identifier: bytes, target: ReplicationTarget) -> bool:
        """Return whether an object has its copies, or will be checked again."""
        copies = self._directory.find(identifier)
        have = set() if copies is None else (copies.holders & self._links.keys()) | target.asked
        if copies is None or (len(have) >= target.copies and (not target.is_stored or self._storage & have)):
            return True
        refused = {each for _, each in self._refused}
        return identifier in self._unsettled or identifier in self._unmet or identifier in refused
