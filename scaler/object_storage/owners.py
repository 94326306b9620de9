"""Which ids an owner has: read off the ids, kept so that all of an owner's can be found at once."""

from __future__ import annotations

from collections.abc import Iterator

from scaler.ids import owner_of


class OwnerIndex:
    """Ids by owner. Adding one twice, and discarding one that is not there, are fine."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[bytes, set[bytes]] = {}

    def __iter__(self) -> Iterator[bytes]:
        for owned in self._ids.values():
            yield from owned

    def of(self, owner: bytes) -> list[bytes]:
        """Return a new list of this owner's ids."""
        return list(self._ids.get(owner, ()))

    def add(self, identifier: bytes) -> None:
        self._ids.setdefault(owner_of(identifier), set()).add(identifier)

    def discard(self, identifier: bytes) -> None:
        owner = owner_of(identifier)
        owned = self._ids.get(owner)
        if owned is not None:
            owned.discard(identifier)
            if not owned:
                del self._ids[owner]
