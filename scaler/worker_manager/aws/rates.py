"""How fast a service lets us go. Pure: time is an argument."""

from __future__ import annotations


class Bucket:
    """A token bucket: burst at once, then so many per second. A debt is paid by waiting before the next is taken."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = burst
        self._rate = per_second
        self._tokens = burst
        self._at = now

    def take(self, count: float, now: float) -> float:
        """Take tokens, and return for how many seconds to wait before they are used."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - count
        self._at = now
        return max(0.0, -self._tokens / self._rate)
