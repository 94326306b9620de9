"""Measured transfer rates of stores. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

USUAL_BYTES_PER_SECOND = 100e6
"""Assumed rate of an unmeasured store, close to a link of 1 Gbit/s."""
MIN_MEASURED_BYTES = 256 * 1024
"""Smaller transfers are dominated by message latency and not measured."""
REMEMBERED_BYTES = 256 * 1024 * 1024
"""Halve the weight of older samples after this many bytes."""


@dataclass(slots=True, eq=False)
class _Flow:
    """Bytes transferred, and the seconds during which transfers were in progress."""

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
    """Bytes per second of each store in both directions, during transfers."""

    def __init__(self) -> None:
        self._into: dict[int, _Flow] = {}
        self._out_of: dict[int, _Flow] = {}

    def note(self, store: int, source: int, size_bytes: int, began_at: float, now: float) -> None:
        if size_bytes >= MIN_MEASURED_BYTES:
            self._into.setdefault(store, _Flow()).note(size_bytes, began_at, now)
            self._out_of.setdefault(source, _Flow()).note(size_bytes, began_at, now)

    def into(self, store: int) -> float:
        flow = self._into.get(store)
        return USUAL_BYTES_PER_SECOND if flow is None else flow.bytes_per_second

    def between(self, store: int, source: int) -> float:
        flow = self._out_of.get(source)
        return self.into(store) if flow is None else min(self.into(store), flow.bytes_per_second)

    def drop(self, store: int) -> None:
        self._into.pop(store, None)
        self._out_of.pop(store, None)
