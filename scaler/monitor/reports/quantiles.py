"""Quantiles of measured task durations. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

from scaler.scheduler.core.state import Timing


class Spread(NamedTuple):
    p50_seconds: float = 0.0
    p95_seconds: float = 0.0
    max_seconds: float = 0.0


def spread(timings: Collection[Timing]) -> Spread:
    """Return the median, 95th percentile, and maximum. The first two are weighted towards recent tasks.

    Durations within a bucket are assumed uniform around their mean: nearly exact for similar tasks, and always within a
    factor of 2.
    """
    longest = max((timing.longest_us for timing in timings), default=0) / 1e6
    p50, p95 = quantiles([(timing.counts, timing.sums_us) for timing in timings], (0.5, 0.95))
    return Spread(min(longest, p50), min(longest, p95), longest)


def quantiles(histograms: Sequence[tuple[Sequence[float], Sequence[float]]], shares: Sequence[float]) -> list[float]:
    """Return quantiles of the combined histograms (see `Timing`) in seconds; zeros if empty."""
    totals = list(accumulate(map(sum, zip(*(counts for counts, _ in histograms), strict=True))))
    sums_us = list(map(sum, zip(*(sums for _, sums in histograms), strict=True)))
    if not totals or totals[-1] <= 0:
        return [0.0] * len(shares)

    def quantile(share: float) -> float:
        wanted = share * totals[-1]
        digits = bisect_left(totals, wanted)
        below = totals[digits - 1] if digits else 0.0
        count = totals[digits] - below
        least_us, most_us = (1 << digits) >> 1, (1 << digits) - 1
        mean_us = min(most_us, max(least_us, sums_us[digits] / count))
        around_us = min(mean_us - least_us, most_us - mean_us) * max(0.0, 1 - 1 / count)  # one task is its own mean
        return (mean_us + around_us * (2 * (wanted - below) / count - 1)) / 1e6

    return [quantile(share) for share in shares]
