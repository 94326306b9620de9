"""Measured task durations in histograms with doubling buckets, and each worker's pace relative to all workers. Pure.

An update costs O(1). Old durations lose weight, so that a function which changes is soon measured anew.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

UNKNOWN_DURATION_SECONDS = 0.05
"""Assumed task duration (seconds) of a function that was never measured."""
BUCKETS = 65
"""Buckets by bit length of a duration in microseconds (64 bits)."""
MOST_TASKS = 100_000
MOST_WEIGHT = 512
"""Tasks in a histogram after which all counts are halved."""
MOST_PACED = 128
"""Tasks in a pace after which all counts are halved."""
MAX_PACES = 32
"""Functions per worker whose pace is kept: the most recently started ones."""
WITHIN_BUCKET = 28 / 27
"""Mean square divided by squared mean, of durations uniformly distributed in a bucket."""


@dataclass(slots=True, eq=False)
class Timing:
    """Durations of one function's tasks. seconds: the mean, or an assumption at first. Call `refresh` after a batch."""

    seconds: float = UNKNOWN_DURATION_SECONDS
    counts: list[float] = field(default_factory=lambda: [0] * BUCKETS)
    sums_us: list[float] = field(default_factory=lambda: [0] * BUCKETS)
    total_us: float = 0
    measured: float = 0
    longest_us: int = 0
    halved: int = 0
    has_chunks: bool = False
    """Tasks are chunks of several calls, so durations are not per call."""
    taken: float = 0
    taken_us: float = 0
    """Values of `measured` and `total_us` after the last batch."""

    def add(self, microseconds: int) -> Timing:
        digits = microseconds.bit_length()
        self.counts[digits] += 1
        self.sums_us[digits] += microseconds
        self.total_us += microseconds
        self.measured += 1
        if microseconds > self.longest_us:  # noqa: PLR1730 (max() costs a third of this call, which each task makes)
            self.longest_us = microseconds
        return self

    def refresh(self, paces: Paces) -> None:
        """Evaluate a batch. paces: of the worker that ran it."""
        tasks, batch_us = self.measured - self.taken, self.total_us - self.taken_us
        pace = paces.get(self) or paces.begin(self)
        pace.tasks += tasks
        pace.ran_us += batch_us
        # Use the mean before the batch, which excludes the batch's own tasks; the first batch has no other reference.
        pace.usual_us += tasks * self.seconds * 1e6 if self.taken else batch_us
        if pace.tasks >= MOST_PACED:
            pace.halve()
        self.seconds = self.total_us * 1e-6 / self.measured
        if self.measured >= MOST_WEIGHT:
            self.counts = [count / 2 for count in self.counts]
            self.sums_us = [microseconds / 2 for microseconds in self.sums_us]
            self.total_us /= 2
            self.measured /= 2
            self.halved += 1
        self.taken, self.taken_us = self.measured, self.total_us

    @property
    def variation(self) -> float:
        """Coefficient of variation of durations; 0 before the first task has ended."""
        if self.total_us <= 0:
            return 0.0
        squares = sum(
            microseconds * microseconds / count
            for count, microseconds in zip(self.counts, self.sums_us, strict=True)
            if count
        )
        return math.sqrt(max(0.0, WITHIN_BUCKET * squares * self.measured / self.total_us**2 - 1))

    def remaining_seconds(self, elapsed: Iterable[float]) -> list[float]:
        """Return the estimated remaining seconds of tasks that have run for these times.

        Based on the mean of tasks that took longer, or on the longest task. If none took longer, a task counts as half
        done. O(buckets and tasks).
        """
        longer = list(accumulate(reversed(self.counts)))[::-1]
        longer_us = list(accumulate(reversed(self.sums_us)))[::-1]
        found = []
        for seconds in elapsed:
            above = min(BUCKETS - 1, int(seconds * 1e6).bit_length() + 1)
            if longer[above] > 0:
                end = longer_us[above] * 1e-6 / longer[above]
            else:
                longest = self.longest_us * 1e-6
                end = longest if seconds < longest else 2 * seconds
            found.append(max(end - seconds, 0.0))
        return found


@dataclass(slots=True)
class Pace:
    """Recent tasks of one function on one worker, compared per batch with the mean of all workers at the time."""

    tasks: float = 0
    failed: float = 0
    ran_us: float = 0
    usual_us: float = 0
    """Time that the completed attempts would have taken by the mean of all workers."""

    @property
    def ratio(self) -> float:
        return self.ran_us / self.usual_us if self.usual_us > 0 else 0.0

    def halve(self) -> None:
        self.tasks /= 2
        self.failed /= 2
        self.ran_us /= 2
        self.usual_us /= 2


class Paces(OrderedDict[Timing, Pace]):
    def begin(self, timing: Timing) -> Pace:
        pace = self[timing] = Pace()
        if len(self) > MAX_PACES:
            self.popitem(last=False)
        return pace

    def fail(self, timing: Timing, *, has_run: bool) -> None:
        """Count a failed task. has_run: it raised an exception, so its duration is measured."""
        pace = self.get(timing) or self.begin(timing)
        pace.failed += 1
        pace.tasks += not has_run


@dataclass(slots=True, eq=False)
class TaskTimes:
    """Durations of all tasks of the cluster: the assumption for functions that have not run yet."""

    counts: list[float] = field(default_factory=lambda: [0] * BUCKETS)

    def restore(self, counts: Sequence[float]) -> None:
        self.counts = [*counts[:BUCKETS], *([0.0] * (BUCKETS - len(counts)))]

    def add(self, mean_us: int, tasks: int) -> None:
        self.counts[min(BUCKETS - 1, mean_us.bit_length())] += tasks
        if sum(self.counts) >= MOST_TASKS:
            self.counts = [count / 2 for count in self.counts]

    @property
    def median_seconds(self) -> float | None:
        """Median, as the middle of its bucket; None before the first task has ended."""
        half = sum(self.counts) / 2
        for digits, total in enumerate(accumulate(self.counts)):
            if total >= half > 0:
                return middle_seconds(digits)
        return None


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


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast for one function's tasks; see `Demand` for the fields."""

    task_seconds: float | None
    longest_seconds: float
    running_seconds: float | None


def forecast(timings: Iterable[Timing], elapsed: Collection[tuple[float, int]], recent: float | None) -> Forecast:
    """Return the forecast for a function. elapsed: pairs of seconds since the start and number of such running tasks.

    recent: mean of recently ended tasks, used if no timing was measured. Tasks running for more than twice the mean
    count as if ended, because short tasks of a mixture end first.
    """
    longest = max((seconds for seconds, _ in elapsed), default=0.0)
    timing = max((each for each in timings if each.measured), default=None, key=attrgetter("seconds"))
    if timing is None:
        return Forecast(recent, longest, None)
    remaining = timing.remaining_seconds([seconds for seconds, _ in elapsed])
    tasks, total = timing.measured, timing.measured * timing.seconds
    for (seconds, count), left in zip(elapsed, remaining, strict=True):
        if seconds > 2 * timing.seconds:
            tasks += count
            total += count * (seconds + left)
    left = sum(count * left for (_, count), left in zip(elapsed, remaining, strict=True))
    return Forecast(total / tasks, longest, left)


def middle_seconds(digits: int) -> float:
    """Return the middle of a bucket in seconds; bucket `digits` starts at 2 ** (digits - 1) microseconds."""
    return 0.75e-6 * (1 << digits)
