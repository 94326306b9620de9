"""For how long units stay that the work does not need now.

What was needed lately counts as needed still for half of the patience, and then sinks by a third with each quarter of
it, to nothing when it is over. Units above that level are too many. So a lull that is shorter than half of the patience
sends nobody home, and after a burst units leave in three parts: those that wait for the next one cost less the longer
it does not come. When units are missed soon after others have left, the patience doubles: tides that come again and
again soon find the units there.

Law: the level rises only with what is needed, is never below it, and has a bounded memory: one number per plan within
the patience.
"""

from __future__ import annotations

import math
from collections import deque

MIN_SECONDS = 20.0
MAX_SECONDS = 120.0
"""Of the patience with units of which nothing else is said."""
MAX_DOUBLED_SECONDS = 600.0
QUARTERS = 4
KEPT_THIRDS = (3, 3, 2, 1, 0)
"""What is left of a need, by the quarters of the patience that have passed since."""
REMEMBERED_SECONDS = 900.0
"""For how long it is remembered that units were missed."""
IDLE_SHARE = 0.75
"""The time that a unit stays without work, on average, as a share of the patience."""
_ROUNDING = 1e-9


class Patience:
    """Of one manager, which has so many units as it is seen first."""

    __slots__ = ("_doublings", "_left_at", "_missed_at", "_needs")

    def __init__(self, units: int, now: float) -> None:
        self._needs: deque[tuple[float, int]] = deque([(now, units)])
        """When how many were needed; later ones are fewer, because they hide the earlier ones that were not more."""
        self._doublings = 0
        self._left_at = -math.inf
        self._missed_at = -math.inf

    def seconds(self, usual: float) -> float:
        """Return the patience now. usual: what it is as long as no unit was missed."""
        return max(usual, min(MAX_DOUBLED_SECONDS, usual * 2.0**self._doublings))

    def level(self, needed: int, usual: float, now: float) -> int:
        """Return how many units should stay, of which this many are needed now. Ask at every plan."""
        if now - self._missed_at > REMEMBERED_SECONDS:
            self._doublings = 0
        patience = self.seconds(usual)
        needs = self._needs
        while needs and needs[-1][1] <= needed:
            needs.pop()
        needs.append((now, needed))
        while needs[0][0] <= now - patience and len(needs) > 1:
            needs.popleft()
        return max(_sunk(units, now - at, patience) for at, units in needs)

    def left(self, now: float) -> None:
        """Take note that units were too many, and go."""
        self._left_at = now

    def grew(self, usual: float, now: float) -> None:
        """Take note that units were too few, and are started."""
        if now - self._left_at <= 2 * self.seconds(usual):
            self._doublings = min(self._doublings + 1, 16)
            self._missed_at = now
            self._left_at = -math.inf


def usual_seconds(startup_seconds: float) -> float:
    """Return the patience with units that take so long to start, if nothing else is said."""
    return min(MAX_SECONDS, max(MIN_SECONDS, startup_seconds))


def _sunk(units: int, seconds: float, patience: float) -> int:
    if seconds <= 0:
        return units
    passed = QUARTERS if seconds >= patience else math.floor(seconds / patience * QUARTERS + _ROUNDING)
    return math.ceil(units * KEPT_THIRDS[passed] / KEPT_THIRDS[0])
