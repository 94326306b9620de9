"""Measured durations of tasks: a histogram with buckets that double, so that it is bounded and says what tails there
are. And the pace of each function on one worker, beside that of all workers. Pure.

Laws: an update costs O(1); old durations lose weight, so that a function which changes is known by its present.
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
"""Assumed duration of a task whose function was never measured, where it is to be placed."""
BUCKETS = 65
"""Microseconds of 64 bits, by their number of binary digits."""
MOST_TASKS = 100_000
MOST_WEIGHT = 512
"""Tasks that a histogram holds at most; then all that it holds count half."""
MOST_PACED = 128
"""Tasks that a pace holds at most; then all that it holds count half."""
MAX_PACES = 32
"""Functions of which a worker's pace is known: those that it ran last."""
WITHIN_BUCKET = 28 / 27
"""Mean of the squares of durations that are equally distributed in a bucket, by the square of their mean."""


@dataclass(slots=True, eq=False)
class Timing:
    """Durations of one function's tasks. seconds: the mean, or what is assumed before the first has ended.

    Durations of a batch are added one by one, and then taken in with `refresh`.
    """

    seconds: float = UNKNOWN_DURATION_SECONDS
    counts: list[float] = field(default_factory=lambda: [0] * BUCKETS)
    """Tasks by the number of binary digits of their microseconds."""
    sums_us: list[float] = field(default_factory=lambda: [0] * BUCKETS)
    """Of the same buckets, the sum of their microseconds."""
    total_us: float = 0
    measured: float = 0
    """The sum of all counts."""
    longest_us: int = 0
    """The longest of all, however long ago."""
    halved: int = 0
    """How often all counts were halved."""
    has_chunks: bool = False
    """Tasks are chunks of several calls, so the durations are not those of calls."""
    taken: float = 0
    taken_us: float = 0
    """The sums of tasks and microseconds when the last batch had been taken in."""

    def add(self, microseconds: int) -> Timing:
        """Add a duration, and return this."""
        digits = microseconds.bit_length()
        self.counts[digits] += 1
        self.sums_us[digits] += microseconds
        self.total_us += microseconds
        self.measured += 1
        if microseconds > self.longest_us:  # noqa: PLR1730 (max() costs a third of this call, which each task makes)
            self.longest_us = microseconds
        return self

    def refresh(self, paces: Paces) -> None:
        """Take in a batch. paces: of the worker that ran it."""
        tasks, batch_us = self.measured - self.taken, self.total_us - self.taken_us
        pace = paces.get(self) or paces.begin(self)
        pace.tasks += tasks
        pace.ran_us += batch_us
        # By the mean before the batch, which is not the worker's own; the first batch of all has no other one.
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
        """The standard deviation of durations, by their mean; 0 before the first has ended."""
        if self.total_us <= 0:
            return 0.0
        squares = sum(
            microseconds * microseconds / count
            for count, microseconds in zip(self.counts, self.sums_us, strict=True)
            if count
        )
        return math.sqrt(max(0.0, WITHIN_BUCKET * squares * self.measured / self.total_us**2 - 1))

    def remaining_seconds(self, elapsed: Iterable[float]) -> list[float]:
        """Return how long tasks will run on that have run this long, in seconds.

        The mean of the tasks that took longer tells, or the longest task. Where none has taken longer, a task is half
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
    """The last tasks of one function on one worker: what they took, and what they take elsewhere.

    Inputs change from hour to hour. So what each batch took is compared with the mean of all workers at its time.
    """

    tasks: float = 0
    """Attempts that ended there."""
    failed: float = 0
    ran_us: float = 0
    usual_us: float = 0
    """What those that came to their end would have taken by the means of all workers."""

    @property
    def ratio(self) -> float:
        """What they took, by what they usually take; 0 when none has come to its end."""
        return self.ran_us / self.usual_us if self.usual_us > 0 else 0.0

    def halve(self) -> None:
        self.tasks /= 2
        self.failed /= 2
        self.ran_us /= 2
        self.usual_us /= 2


class Paces(OrderedDict[Timing, Pace]):
    """The paces of one worker, the function that began last at the end."""

    def begin(self, timing: Timing) -> Pace:
        """Return the pace of a function that has none."""
        pace = self[timing] = Pace()
        if len(self) > MAX_PACES:
            self.popitem(last=False)
        return pace

    def fail(self, timing: Timing, *, has_run: bool) -> None:
        """Count a task that failed. has_run: it raised an exception, so its duration counts, too."""
        pace = self.get(timing) or self.begin(timing)
        pace.failed += 1
        pace.tasks += not has_run


@dataclass(slots=True, eq=False)
class TaskTimes:
    """Durations of all tasks of the cluster, of whatever function: what a function is assumed to be before it ran."""

    counts: list[float] = field(default_factory=lambda: [0] * BUCKETS)

    def restore(self, counts: Sequence[float]) -> None:
        """Begin with what an earlier scheduler has measured."""
        self.counts = [*counts[:BUCKETS], *([0.0] * (BUCKETS - len(counts)))]

    def add(self, mean_us: int, tasks: int) -> None:
        """Add tasks that took this long on average, in microseconds."""
        self.counts[min(BUCKETS - 1, mean_us.bit_length())] += tasks
        if sum(self.counts) >= MOST_TASKS:
            self.counts = [count / 2 for count in self.counts]

    @property
    def median_seconds(self) -> float | None:
        """The median, as the middle of its bucket; None before the first task has ended."""
        half = sum(self.counts) / 2
        for digits, total in enumerate(accumulate(self.counts)):
            if total >= half > 0:
                return middle_seconds(digits)
        return None


class Spread(NamedTuple):
    """How much the durations of tasks differ; zeros before the first has ended."""

    p50_seconds: float = 0.0
    p95_seconds: float = 0.0
    max_seconds: float = 0.0


def spread(timings: Collection[Timing]) -> Spread:
    """Return the median, the 95th percentile and the maximum of tasks. The first two are those of the present.

    Within a bucket, durations are taken as equally distributed around their mean, so these are nearly exact where the
    tasks are alike, and never wrong by a factor of 2.
    """
    longest = max((timing.longest_us for timing in timings), default=0) / 1e6
    p50, p95 = quantiles([(timing.counts, timing.sums_us) for timing in timings], (0.5, 0.95))
    return Spread(min(longest, p50), min(longest, p95), longest)


def quantiles(histograms: Sequence[tuple[Sequence[float], Sequence[float]]], shares: Sequence[float]) -> list[float]:
    """Return quantiles of what the histograms have together, in seconds; zeros where they have nothing.

    histograms: counts and sums of microseconds as those of `Timing`.
    """
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
        around_us = min(mean_us - least_us, most_us - mean_us) * max(0.0, 1 - 1 / count)  # a single one is its mean
        return (mean_us + around_us * (2 * (wanted - below) / count - 1)) / 1e6

    return [quantile(share) for share in shares]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the policy knows of one function's tasks; `Demand` says what each means."""

    task_seconds: float | None
    longest_seconds: float
    running_seconds: float | None


def forecast(timings: Iterable[Timing], elapsed: Collection[tuple[float, int]], recent: float | None) -> Forecast:
    """Return what is known of a function. elapsed: for how many running tasks each time has passed since they began.

    recent: the mean of the tasks that have ended lately, where no timing has been measured. Tasks that run more than
    twice the mean count in it as if they had ended: of a mixture, the short tasks alone end at first.
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
    """Return the middle of a bucket, whose microseconds are from 2 ** (digits - 1) up."""
    return 0.75e-6 * (1 << digits)
