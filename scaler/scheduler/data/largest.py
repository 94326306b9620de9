"""Index of large objects by size. Pure.

Objects of one owner are in size classes, four per power of two. A query reads classes from the largest down, and at
most MAX_LOOKS objects per class, so among more objects that differ by less than a quarter, the selection is arbitrary.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from itertools import chain, islice

from scaler.ids import owner_of
from scaler.scheduler.core.data import Copies

MAX_LOOKS = 10_000
MAX_OWNERS = 4_000


class LargestObjects:
    def __init__(self) -> None:
        self._classes: dict[bytes, dict[int, dict[bytes, Copies]]] = {}

    def add(self, identifier: bytes, copies: Copies) -> None:
        """Add an object, whose size is final. O(1)."""
        classes = self._classes.setdefault(owner_of(identifier), {})
        classes.setdefault(_class_of(copies.size_bytes), {})[identifier] = copies

    def discard(self, identifier: bytes, copies: Copies) -> None:
        """Remove an object, if present. O(1)."""
        owner, size_class = owner_of(identifier), _class_of(copies.size_bytes)
        classes = self._classes.get(owner, {})
        objects = classes.get(size_class, {})
        if objects.pop(identifier, None) is not None and not objects:
            del classes[size_class]
            if not classes:
                del self._classes[owner]

    def drop_owner(self, owner: bytes) -> None:
        self._classes.pop(owner, None)

    @property
    def owners(self) -> Iterable[bytes]:
        return self._classes.keys()

    def largest(self, owners: Iterable[bytes], most: int) -> list[tuple[bytes, Copies]]:
        """Return the largest objects of these clients, largest first."""
        tables = list(islice((self._classes[owner] for owner in owners if owner in self._classes), MAX_OWNERS))
        found: list[tuple[bytes, Copies]] = []
        for size_class in sorted({each for classes in tables for each in classes}, reverse=True):
            candidates = chain.from_iterable(classes[size_class].items() for classes in tables if size_class in classes)
            left = most - len(found)
            found += nlargest(left, islice(candidates, MAX_LOOKS), key=lambda item: item[1].size_bytes)
            if len(found) == most:
                break
        return found


def _class_of(size_bytes: int) -> int:
    bits = size_bytes.bit_length()
    return bits * 4 + (size_bytes >> max(0, bits - 3) & 3)
