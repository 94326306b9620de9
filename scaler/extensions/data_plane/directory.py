"""Directory of objects and their stores, as reported by stores and results. Pure.

Invariants: an entry has at least one holder, and is indexed by its owner and by each holder. An object without an entry
is assumed to be in the object storage, with unknown size. Changing one object is O(1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice

from scaler.ids import owner_of
from scaler.protocol.chunks import LARGE_BYTES

OBJECT_STORAGE = 0
"""Number of the object storage; host stores are numbered from 1."""
MAX_LOST = 50_000
"""Maximum number of lost objects whose hosts are recorded."""
MAX_LOOKS = 30_000
"""Maximum number of large objects compared to find the largest. Beyond this, an arbitrary selection is compared."""


@dataclass(slots=True, eq=False)
class Copies:
    """An object's size (0: unknown), the stores with a complete copy, and the function that produced it, if known."""

    size_bytes: int
    holders: set[int] = field(default_factory=set)
    function: str = ""


class Directory:
    def __init__(self) -> None:
        self.large: dict[bytes, dict[bytes, Copies]] = {}
        """Objects of at least LARGE_BYTES, by owner."""
        self.by_owner: dict[bytes, dict[bytes, Copies]] = {}
        self.by_store: dict[int, dict[bytes, Copies]] = {}
        self.lost: dict[bytes, str] = {}
        """Hosts that were lost with the only copies of objects, oldest loss first."""

    def __len__(self) -> int:
        return sum(map(len, self.by_owner.values()))

    def find(self, identifier: bytes) -> Copies | None:
        found = self.by_owner.get(owner_of(identifier))
        return None if found is None else found.get(identifier)

    def add(self, identifier: bytes, size_bytes: int, store: int) -> Copies:
        """Record that a store has an object. size_bytes: 0 if unknown."""
        if self.lost:
            self.lost.pop(identifier, None)
        objects = self.by_owner.setdefault(owner_of(identifier), {})
        copies = objects.get(identifier)
        if copies is None:
            copies = objects[identifier] = Copies(0)
        if size_bytes and not copies.size_bytes:
            copies.size_bytes = size_bytes
            if size_bytes >= LARGE_BYTES:
                self.large.setdefault(owner_of(identifier), {})[identifier] = copies
        copies.holders.add(store)
        self.by_store.setdefault(store, {})[identifier] = copies
        return copies

    def discard(self, identifier: bytes, store: int) -> Copies | None:
        """Record that a store no longer has an object. Returns the remaining entry, or None if nothing changed."""
        found = self.by_store.get(store, {}).pop(identifier, None)
        if found is None:
            return None
        found.holders.discard(store)
        if not found.holders:
            self._forget_entry(identifier)
        return found

    def drop_store(self, store: int, host: str = "") -> dict[bytes, Copies]:
        """Remove a store. Returns its objects with their remaining holders. host: name of the store's host."""
        objects = self.by_store.pop(store, {})
        for identifier, copies in objects.items():
            copies.holders.discard(store)
            if not copies.holders:
                self._forget_entry(identifier)
                if host:
                    self.lost[identifier] = host
        while len(self.lost) > MAX_LOST:
            del self.lost[next(iter(self.lost))]
        return objects

    def forget(self, identifier: bytes) -> set[int]:
        self.lost.pop(identifier, None)
        copies = self.find(identifier)
        if copies is None:
            return set()
        self._forget_entry(identifier)
        for store in copies.holders:
            del self.by_store[store][identifier]
        return copies.holders

    def forget_owner(self, owner: bytes) -> None:
        self.large.pop(owner, None)
        for identifier, copies in self.by_owner.pop(owner, {}).items():
            for store in copies.holders:
                del self.by_store[store][identifier]

    def _forget_entry(self, identifier: bytes) -> None:
        objects = self.by_owner[owner_of(identifier)]
        copies = objects.pop(identifier)
        owner = owner_of(identifier)
        if copies.size_bytes >= LARGE_BYTES:
            del self.large[owner][identifier]
            if not self.large[owner]:
                del self.large[owner]
        if not objects:
            del self.by_owner[owner]

    def largest(self, most: int, may_see: Callable[[bytes], bool] = lambda _owner: True) -> list[tuple[bytes, Copies]]:
        """Return the largest objects of these owners, largest first."""
        large = (item for owner, objects in self.large.items() if may_see(owner) for item in objects.items())
        return nlargest(most, islice(large, MAX_LOOKS), key=lambda item: item[1].size_bytes)
