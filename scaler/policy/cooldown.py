"""How long unneeded units stay. Pure."""

from __future__ import annotations

import math
from collections import deque

MIN_COOLDOWN_SECONDS = 3.0
MAX_COOLDOWN_SECONDS = 1800.0
RETURN_SHARE = 0.68  # cooldown as a share of the start-up time, within the bounds above
MAX_DOUBLED_SECONDS = 3600.0
SHORTAGE_SECONDS = 900.0  # how long a shortage of units keeps the cooldown doubled
LULL_SECONDS = 3.0
LULLS = 1.5  # after a shortage, the cooldown is at least this multiple of the lull before it


class Cooldown:
    """How long one manager's unneeded units stay.

    A recent need counts in full for half of the cooldown, then sinks by a third per quarter, to nothing at its end.
    Units above that level are surplus. So a lull shorter than half of the cooldown stops no unit, and units stop in
    three parts after a burst: waiting for the next one is worth less the longer it takes. A shortage soon after a stop
    doubles the cooldown, so that recurring bursts find their units running.

    Law: the level rises only with the need, is never below it, and has a bounded memory: one number per plan within the
    cooldown.
    """

    def __init__(self, units: int, now: float) -> None:
        self._needs: deque[tuple[float, int]] = deque([(now, units)])  # decreasing: a need hides smaller earlier ones
        self._doublings = 0
        self.most_seconds = MAX_DOUBLED_SECONDS  # longest cooldown that shortages make of a shorter one
        self._shrunk_at = -math.inf
        self._shortage_at = -math.inf
        self._needed_at = now
        self._lull = self._longest_lull = 0.0  # the last lull, and the longest before a shortage

    def seconds(self, usual: float) -> float:
        """Return the cooldown now. usual: without a shortage."""
        return max(usual, min(self.most_seconds, max(usual * 2.0**self._doublings, LULLS * self._longest_lull)))

    def level(self, needed: int, usual: float, now: float, *, has_work: bool) -> int:
        """Return how many units should stay for this need. Call at every plan."""
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
