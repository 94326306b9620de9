"""Delays the stop of units that are no longer needed. Pure."""

from __future__ import annotations

import math
from collections import deque

MIN_COOLDOWN_SECONDS = 3.0
MAX_COOLDOWN_SECONDS = 1800.0
RETURN_SHARE = 0.68  # cooldown as a share of the start-up time, within the bounds above
MAX_DOUBLED_SECONDS = 3600.0
SHORTAGE_SECONDS = 900.0  # how long a shortage of units keeps the cooldown doubled
LULL_SECONDS = 3.0
LULLS = 1.5  # minimum cooldown after a shortage, as a multiple of the preceding lull


class Cooldown:
    """Number of units of one manager to keep after a need has passed.

    A past need counts in full for half of the cooldown, then drops by a third per quarter, to nothing at the end. Units
    above this level are surplus. Thus a lull shorter than half of the cooldown stops no unit. After a burst, units stop
    in three steps, because the next burst becomes less likely with time. A shortage soon after a stop doubles the
    cooldown, so that recurring bursts find running units. Invariants: the level rises only with the need and is never
    below it; memory is bounded by one number per plan within the cooldown.
    """

    def __init__(self, units: int, now: float) -> None:
        self._needs: deque[tuple[float, int]] = deque(
            [(now, units)]
        )  # decreasing, because a need hides smaller earlier ones
        self._doublings = 0
        self.most_seconds = MAX_DOUBLED_SECONDS  # limit of cooldowns extended by shortages
        self._shrunk_at = -math.inf
        self._shortage_at = -math.inf
        self._needed_at = now
        self._lull = self._longest_lull = 0.0  # the last lull, and the longest before a shortage

    def seconds(self, usual: float) -> float:
        return max(usual, min(self.most_seconds, max(usual * 2.0**self._doublings, LULLS * self._longest_lull)))

    def level(self, needed: int, usual: float, now: float, *, has_work: bool) -> int:
        """Return the number of units to keep for this need. Call at every plan."""
        if now - self._shortage_at > SHORTAGE_SECONDS:
            self._doublings, self._longest_lull = 0, 0.0
        if has_work:
            if now - self._needed_at > LULL_SECONDS:
                self._lull = now - self._needed_at
            self._needed_at = now
        cooldown = self.seconds(usual)
        needs = self._needs
        while needs and needs[-1][1] <= needed:
            needs.pop()
        needs.append((now, needed))
        while len(needs) > 1 and needs[0][0] <= now - cooldown:
            needs.popleft()
        return needs[0][1]

    def shrunk(self, now: float) -> None:
        self._shrunk_at = now

    def grew(self, usual: float, now: float) -> None:
        if now - self._shrunk_at <= 2 * self.seconds(usual):
            self._doublings = min(self._doublings + 1, 16)
            self._longest_lull = max(self._longest_lull, self._lull)
            self._shortage_at = now
            self._shrunk_at = -math.inf


def cooldown_seconds(startup: float) -> float:
    return min(MAX_COOLDOWN_SECONDS, max(MIN_COOLDOWN_SECONDS, RETURN_SHARE * startup))
