"""Evicts cached results by last use. Results belong to a key, not to a client, and their ids (`ids.cached_id`) may
be put again after an eviction. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class ResultCache:
    """LRU of all cached results. limit_bytes: 0 keeps none, -1 is unlimited."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._used_bytes = 0

    def used(self, object_id: bytes) -> None:
        if object_id in self._sizes:
            self._sizes.move_to_end(object_id)

    def stored(self, object_id: bytes, size_bytes: int) -> list[bytes]:
        """Record a complete result. Returns the ids to evict, which include the result itself if it is too large."""
        self.dropped([object_id])
        self._sizes[object_id] = size_bytes
        self._used_bytes += size_bytes
        if self._limit_bytes < 0 or self._used_bytes <= self._limit_bytes:
            return []
        if size_bytes > self._limit_bytes:
            return [object_id]
        excess, evicted = self._used_bytes - self._limit_bytes, []
        for other, size in self._sizes.items():
            if excess <= 0:
                break
            evicted.append(other)
            excess -= size
        return evicted

    def dropped(self, object_ids: Iterable[bytes]) -> None:
        for object_id in object_ids:
            self._used_bytes -= self._sizes.pop(object_id, 0)
