"""For how long calls to a service are paid: each from its begin to its end, and at least for a minimum. Pure.

Law: `seconds` is the sum over all calls that have begun, and never sinks, so whoever charges its growth misses nothing.
"""

from __future__ import annotations

from scaler.worker.executor import CallKey


class PaidCalls:
    """The time of all calls so far."""

    def __init__(self, least_seconds: float = 0.0) -> None:
        """least_seconds: a call that takes less is paid for as long."""
        self.least_seconds = least_seconds
        self._ended = 0.0
        self._running: dict[CallKey, float] = {}
        self._ending: list[CallKey] = []

    def __len__(self) -> int:
        """Return how many calls run."""
        return len(self._running)

    def begin(self, key: CallKey, now: float) -> None:
        """Note that a call has begun. Harmless when repeated."""
        self._running.setdefault(key, now)

    def end(self, key: CallKey, now: float, took: float = 0.0) -> None:
        """Note that a call has ended, if it has begun. took: how long it has taken at least."""
        began = self._running.pop(key, None)
        if began is not None:
            self._ended += max(self.least_seconds, took, now - began)

    def finish(self, key: CallKey, now: float, *, is_timed: bool) -> None:
        """Note that the result of a call is here. is_timed: when it has begun is known; else `end` follows."""
        self.begin(key, now)
        if is_timed:
            self.end(key, now)

    def fail(self, key: CallKey, now: float, *, has_begun: bool) -> None:
        """Note that a call has ended without a result."""
        if has_begun:
            self.begin(key, now)
        self.end(key, now)

    def cancel(self, key: CallKey) -> None:
        """Note that a call ends; `settle` says when."""
        self._ending.append(key)

    def settle(self, now: float) -> None:
        for key in self._ending:
            self.end(key, now)
        self._ending.clear()

    def seconds(self, now: float) -> float:
        """Return the time of all calls until now."""
        return self._ended + sum(max(self.least_seconds, now - began) for began in self._running.values())
