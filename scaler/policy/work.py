"""Tasks with the same needs, as work for slots. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scaler.grammar import called, counted, listed
from scaler.needs import Needs

MAX_FUNCTIONS_NAMED = 2
MANY_ENDED = 20
"""Tasks that must have ended between two views before their rate is stated: it is wrong by less than half then."""
SLOT_SECONDS = 5.5
"""No more slots than have work for this long."""


@dataclass(slots=True)
class Work:
    """The tasks of all functions with the same needs: unfinished ones, and the rate of those that have ended."""

    needs: Needs
    slots_each: float = 1.0
    """Slots of a unit that one of the tasks leaves to no other: it counts as that many tasks."""
    tasks: int = 0
    unmeasured_tasks: int = 0
    seconds: float = 0.0
    """Remaining time of the tasks on one slot, as far as it is known."""
    known_seconds: float = 0.0
    """The same, in which tasks of unknown length take no longer than the longest of them has run."""
    assumed_seconds: float = 0.0
    """What is assumed of the unmeasured tasks, as a part of `seconds`."""
    queued: int = 0
    late: int = 0
    """Tasks that late slots have already; tasks does not count them."""
    first_slots: int = 0
    """Slots for unmeasured tasks, whatever little they are assumed to be."""
    busy_slots: float = 0.0
    usually_busy: float = 0.0
    """The average of busy_slots over a start-up time."""
    ended_per_second: float = 0.0
    ended: float = 0.0
    """Tasks that have ended since the last view: a rate of few says little."""
    functions: list[str] = field(default_factory=list)

    @property
    def task_seconds(self) -> float:
        return max(1e-6, self.seconds / max(1, self.tasks))

    @property
    def passes(self) -> bool:
        """Most of its tasks come and end between two plans: more end in a second, and in less time, than there are."""
        return self.ended_per_second >= max(1, self.tasks) and self.seconds * self.ended_per_second <= self.ended

    def most_slots(self, tasks: int) -> int:
        """Return how many slots have something to do: each has work for a while."""
        return min(tasks, max(self.first_slots, math.ceil(self.seconds * self.slots_each / SLOT_SECONDS)))

    def __str__(self) -> str:
        names = list(dict.fromkeys(self.functions))
        of = listed([called(name) for name in names], MAX_FUNCTIONS_NAMED)
        work = f"{of} needing {self.needs}" if self.needs.items else of
        if self.passes:
            if self.ended < MANY_ENDED:
                return f"few tasks of {work}, which end as they come"
            return f"about {counted(int(float(f'{self.ended_per_second:.2g}')), 'task')} of {work} per second"
        if not self.tasks and self.late:
            return f"{counted(self.late, 'task')} of {work} on their way"
        tasks = f"{counted(self.tasks, 'task')} of {work}"
        each = seconds_text(self.assumed_seconds / self.unmeasured_tasks) if self.unmeasured_tasks else ""
        if self.unmeasured_tasks == self.tasks:
            return f"{tasks}, not measured yet, assuming {each} each" if each else tasks
        rest = f", {self.unmeasured_tasks:,} of them not measured yet, assuming {each} each" if each else ""
        return f"{seconds_text(self.seconds)} of work in {tasks}{rest}"


def seconds_text(seconds: float) -> str:
    """Return a duration as display text: 0.25 s, 7.5 s, 12,000 s."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.3g} s"
