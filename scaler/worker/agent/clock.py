"""Estimates how far the scheduler's clock is ahead of this process's, from the answers to heartbeats. Pure.

An answer was made between the sending of its heartbeat and its own arrival, so each exchange bounds the offset from
both sides; all together bound it as narrowly as the fastest. The bounds widen with time, as clocks drift. The estimate
does not change while it is within the bounds: otherwise the bars of a timeline would jitter.
"""

from __future__ import annotations

MAX_DRIFT = 1e-4
"""By how much one clock may be faster than the other: seconds in a second."""


class ClockOffset:
    """The offset; 0 before the first answer. error_seconds: it is wrong by no more than this; 0 before the first."""

    def __init__(self) -> None:
        self.seconds = self.error_seconds = 0.0
        self._low, self._high = float("-inf"), float("inf")
        self._at = 0.0

    def observe(self, sent_at: float, answered_at: float, received_at: float) -> None:
        """Take in an exchange. answered_at: of the scheduler's clock; the others of this process's."""
        low, high = answered_at - received_at, answered_at - sent_at
        drift = (received_at - self._at) * MAX_DRIFT
        self._at = received_at
        self._low, self._high = max(self._low - drift, low), min(self._high + drift, high)
        if self._low > self._high:  # it is another clock than before, or one that was stopped for a while
            self._low, self._high = low, high
        if not self._low <= self.seconds <= self._high or not self.error_seconds:
            self.seconds = (self._low + self._high) / 2
        self.error_seconds = max(self._high - self.seconds, self.seconds - self._low, 1e-9)
