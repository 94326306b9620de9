"""Measured task durations in histograms with doubling buckets, and each worker's pace relative to all workers. Pure.

An update costs O(1). Old durations lose weight, so that a function which changes is soon measured anew.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

UNKNOWN_DURATION_SECONDS = 0.05
"""Assumed task duration (seconds) of a function that was never measured."""
BUCKETS = 65
"""Buckets by bit length of a duration in microseconds (64 bits)."""
MOST_WEIGHT = 512
"""Tasks in a histogram after which all counts are halved."""
MOST_PACED = 128
"""Tasks in a pace after which all counts are halved."""
MAX_PACES = 32
"""Functions per worker whose pace is kept: the most recently started ones."""


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
