"""How many bytes went from which store to which other one. Pure."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest

MAX_PAIRS = 20_000
"""Beyond it, the half that moved the least is forgotten; the sums of the stores stay."""


class Moved:
    """Bytes that stores have fetched from others, in all, by fetcher, by source, and by pair (fetcher, source)."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.into: Counter[int] = Counter()
        self.out_of: Counter[int] = Counter()
        self.pairs: Counter[tuple[int, int]] = Counter()

    def note(self, store: int, source: int, size_bytes: int) -> None:
        """Count what a store has fetched. O(1), spread over the calls."""
        self.total_bytes += size_bytes
        self.into[store] += size_bytes
        self.out_of[source] += size_bytes
        self.pairs[store, source] += size_bytes
        if len(self.pairs) > MAX_PAIRS:
            self.pairs = Counter(dict(nlargest(MAX_PAIRS // 2, self.pairs.items(), key=lambda item: item[1])))

    def drop(self, store: int) -> None:
        """Forget a store that has gone; what it moved stays in the sums of the others."""
        del self.into[store], self.out_of[store]
        self.pairs = Counter({pair: size for pair, size in self.pairs.items() if store not in pair})
