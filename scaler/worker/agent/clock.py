"""Estimates the offset of the scheduler's clock, using heartbeat echoes. Pure.

Each exchange bounds the offset on both sides, and the bounds widen with time because clocks drift. The estimate changes
only when it leaves the bounds; otherwise the bars of a timeline would jitter.
"""

from __future__ import annotations

MAX_DRIFT = 1e-4
"""Maximum relative drift between two clocks: seconds per second."""


class ClockOffset:
    """Clock offset in seconds, and its maximum error. Both are 0 before the first echo."""

    def __init__(self) -> None:
        self.seconds = self.error_seconds = 0.0
        self._low, self._high = float("-inf"), float("inf")
        self._at = 0.0

    def observe(self, sent_at: float, answered_at: float, received_at: float) -> None:
        """Record one exchange. answered_at: scheduler's clock; sent_at and received_at: this process's clock."""
        low, high = answered_at - received_at, answered_at - sent_at
        drift = (received_at - self._at) * MAX_DRIFT
        self._at = received_at
        self._low, self._high = max(self._low - drift, low), min(self._high + drift, high)
        if self._low > self._high:  # a different clock, or a clock that stopped for a while
            self._low, self._high = low, high
        if not self._low <= self.seconds <= self._high or not self.error_seconds:
            self.seconds = (self._low + self._high) / 2
        self.error_seconds = max(self._high - self.seconds, self.seconds - self._low, 1e-9)
