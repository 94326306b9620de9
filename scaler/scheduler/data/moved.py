"""Bytes moved between stores. Pure."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest

MAX_PAIRS = 20_000
"""Pairs kept; beyond this, the smaller half is dropped from the pairs but not from the sums."""


class Moved:
    """Total bytes fetched: overall, by fetcher, by source, and by pair (fetcher, source)."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.into: Counter[int] = Counter()
        self.out_of: Counter[int] = Counter()
        self.pairs: Counter[tuple[int, int]] = Counter()

    def note(self, store: int, source: int, size_bytes: int) -> None:
        """Count a fetch. Amortized O(1)."""
        self.total_bytes += size_bytes
        self.into[store] += size_bytes
        self.out_of[source] += size_bytes
        self.pairs[store, source] += size_bytes
        if len(self.pairs) > MAX_PAIRS:
            self.pairs = Counter(dict(nlargest(MAX_PAIRS // 2, self.pairs.items(), key=lambda item: item[1])))

    def drop(self, store: int) -> None:
        """Forget a departed store. The sums of other stores keep its bytes."""
        del self.into[store], self.out_of[store]
        self.pairs = Counter({pair: size for pair, size in self.pairs.items() if store not in pair})
