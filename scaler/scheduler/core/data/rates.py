"""How fast stores get and give bytes, by what came of late. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

USUAL_BYTES_PER_SECOND = 100e6
"""Taken for a store of which nothing was measured: a link of 1 Gbit/s, nearly."""
MIN_MEASURED_BYTES = 256 * 1024
"""What is smaller takes as long as the messages about it, and says nothing."""
REMEMBERED_BYTES = 256 * 1024 * 1024
"""Older bytes count half as much for each time that this many have come since."""


@dataclass(slots=True, eq=False)
class _Flow:
    """Bytes that came or went, and the seconds in which some were under way."""

    size_bytes: float = 0.0
    seconds: float = 0.0
    last_at: float = -math.inf

    def note(self, size_bytes: int, began_at: float, now: float) -> None:
        keep = 0.5 ** (size_bytes / REMEMBERED_BYTES)
        self.size_bytes = keep * self.size_bytes + size_bytes
        self.seconds = keep * self.seconds + now - max(began_at, self.last_at)
        self.last_at = now

    @property
    def bytes_per_second(self) -> float:
        return self.size_bytes / max(self.seconds, 1e-6)


class Rates:
    """Bytes per second that each store gets, and that each gives, while it gets or gives any."""

    def __init__(self) -> None:
        self._into: dict[int, _Flow] = {}
        self._out_of: dict[int, _Flow] = {}

    def note(self, store: int, source: int, size_bytes: int, began_at: float, now: float) -> None:
        """Note what a store has fetched, and when that began."""
        if size_bytes >= MIN_MEASURED_BYTES:
            self._into.setdefault(store, _Flow()).note(size_bytes, began_at, now)
            self._out_of.setdefault(source, _Flow()).note(size_bytes, began_at, now)

    def into(self, store: int) -> float:
        """Return the bytes per second with which a store fetches objects, estimated."""
        flow = self._into.get(store)
        return USUAL_BYTES_PER_SECOND if flow is None else flow.bytes_per_second

    def between(self, store: int, source: int) -> float:
        """Return the bytes per second with which a store fetches objects from another one, estimated."""
        flow = self._out_of.get(source)
        return self.into(store) if flow is None else min(self.into(store), flow.bytes_per_second)

    def drop(self, store: int) -> None:
        """Forget a store that has gone."""
        self._into.pop(store, None)
        self._out_of.pop(store, None)
