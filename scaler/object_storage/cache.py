"""Which cached results the object storage keeps, beside the objects that clients own. Pure.

Clients put the results of cached calls under ids that follow from the call (`ids.cached_id`). They belong to a key and
not to a client. Beyond the limit for all keys the longest unused ones are dropped, so their ids may come back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class ResultCache:
    """The ids of all cached results, the longest unused one first. limit_bytes: 0 keeps none, -1 is no limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._used_bytes = 0

    def used(self, object_id: bytes) -> None:
        if object_id in self._sizes:
            self._sizes.move_to_end(object_id)

    def stored(self, object_id: bytes, size_bytes: int) -> list[bytes]:
        """Note a result that is whole. Returns those that must be dropped for it, itself if it is too large."""
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
