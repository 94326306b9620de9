"""When work will be done, and how long it had better take. Arithmetic only.

Work is so many tasks of the same length; slots come in batches that are there from some time on. A slot runs one task
after another, so what it does within a time is a whole number of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WORTH = 2.0
"""How much more a shorter time counts than a lower cost: being done a tenth sooner may cost two tenths more."""
PLAY_SECONDS = 1.0
"""Times that differ by less are alike: so much passes between two decisions."""
TIMES_COMPARED = 24
LONGEST = 8.0
"""The longest time that is looked at, as a multiple of the shortest."""
_PRECISION = 0.01
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Batch:
    """So many slots, from so many seconds from now on."""

    slots: int
    from_seconds: float

    def tasks_each(self, task_seconds: float, within_seconds: float) -> int:
        """Return how many tasks one of these slots runs within this time from now."""
        return max(0, math.floor((within_seconds - self.from_seconds) / task_seconds + _ROUNDING))

    def slots_for(self, tasks: int, task_seconds: float, within_seconds: float) -> int:
        """Return how many of these slots it takes to run tasks in time; all of them when they are too few."""
        each = self.tasks_each(task_seconds, within_seconds)
        return min(self.slots, math.ceil(tasks / each)) if each and tasks > 0 else 0


def tasks_done(batches: Sequence[Batch], task_seconds: float, within_seconds: float) -> int:
    """Return how many tasks all slots together run within this time from now."""
    return sum(batch.slots * batch.tasks_each(task_seconds, within_seconds) for batch in batches)


def soonest_seconds(batches: Sequence[Batch], tasks: int, task_seconds: float) -> float:
    """Return the shortest time in which the slots run all tasks, a hundredth too much at most; inf without slots."""
    there = [batch for batch in batches if batch.slots > 0]
    if not there or not tasks:
        return math.inf if tasks else 0.0
    high = min(batch.from_seconds + task_seconds * math.ceil(tasks / batch.slots) for batch in there)
    low = min(batch.from_seconds for batch in there)
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if tasks_done(there, task_seconds, middle) >= tasks:
            high = middle
        else:
            low = middle
    return high


def best_seconds(
    here: Sequence[Batch], more: Sequence[Batch], tasks: int, task_seconds: float, idle_seconds: float
) -> float:
    """Return the time in which the work is best done with the slots that are here and some of those that may be added.

    It weighs that time against what all slots cost until then, and until idle ones have gone. Infinite without slots.
    """
    everything = [*here, *more]
    soonest = soonest_seconds(everything, tasks, task_seconds) + PLAY_SECONDS
    if math.isinf(soonest):
        return soonest
    without = soonest_seconds(here, tasks, task_seconds) + PLAY_SECONDS
    longest = min(without, LONGEST * soonest)
    best, least = soonest, math.inf
    for step in range(TIMES_COMPARED + 1):
        within = soonest * (longest / soonest) ** (step / TIMES_COMPARED)
        left = tasks - tasks_done(here, task_seconds, within)
        slots = sum(batch.slots for batch in here)
        for batch in more:
            taken = batch.slots_for(left, task_seconds, within)
            left -= taken * batch.tasks_each(task_seconds, within)
            slots += taken
        badness = within**WORTH * slots * (within + idle_seconds)
        if left <= 0 and badness < least:
            best, least = within, badness
    return best
