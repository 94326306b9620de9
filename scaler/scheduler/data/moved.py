"""Bytes moved between stores, and measured transfer rates. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from heapq import nlargest

MAX_PAIRS = 20_000
"""Pairs kept; beyond this, the smaller half is dropped from the pairs but not from the sums."""
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


class Moved:
    """Total bytes fetched: overall, by fetcher, by source, and by pair (fetcher, source).

    Also bytes per second of each store in both directions, during transfers.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self.into: Counter[int] = Counter()
        self.out_of: Counter[int] = Counter()
        self.pairs: Counter[tuple[int, int]] = Counter()
        self._flows_into: dict[int, _Flow] = {}
        self._flows_out_of: dict[int, _Flow] = {}

    def note(self, store: int, source: int, size_bytes: int, began_at: float, now: float) -> None:
        """Count a fetch. Amortized O(1)."""
        self.total_bytes += size_bytes
        self.into[store] += size_bytes
        self.out_of[source] += size_bytes
        self.pairs[store, source] += size_bytes
        if len(self.pairs) > MAX_PAIRS:
            self.pairs = Counter(dict(nlargest(MAX_PAIRS // 2, self.pairs.items(), key=lambda item: item[1])))
        if size_bytes >= MIN_MEASURED_BYTES:
            self._flows_into.setdefault(store, _Flow()).note(size_bytes, began_at, now)
            self._flows_out_of.setdefault(source, _Flow()).note(size_bytes, began_at, now)

    def rate_into(self, store: int) -> float:
        flow = self._flows_into.get(store)
        return USUAL_BYTES_PER_SECOND if flow is None else flow.bytes_per_second

    def rate(self, store: int, source: int) -> float:
        flow = self._flows_out_of.get(source)
        return self.rate_into(store) if flow is None else min(self.rate_into(store), flow.bytes_per_second)

    def drop(self, store: int) -> None:
        """Forget a departed store. The sums of other stores keep its bytes."""
        del self.into[store], self.out_of[store]
        self.pairs = Counter({pair: size for pair, size in self.pairs.items() if store not in pair})
        self._flows_into.pop(store, None)
        self._flows_out_of.pop(store, None)
