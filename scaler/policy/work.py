"""Tasks with the same needs, as work for slots. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scaler.grammar import called, counted, listed
from scaler.needs import Needs

MAX_FUNCTIONS_NAMED = 2
MANY_ENDED = 20  # ended tasks between two views before their rate is shown: its error is below half then
SLOT_SECONDS = 5.5  # a slot needs this much work


@dataclass(slots=True)
class Work:
    """The unfinished tasks of all functions with the same needs, and the rate of ended ones."""

    needs: Needs
    slots_each: float = 1.0  # slots of a unit that one task takes: it counts as that many tasks
    tasks: int = 0
    unmeasured_tasks: int = 0
    seconds: float = 0.0  # known remaining time of the tasks on one slot
    known_seconds: float = 0.0  # the same, with tasks of unknown length as long as the longest has run
    assumed_seconds: float = 0.0  # the assumed part of `seconds`, for unmeasured tasks
    queued: int = 0
    late: int = 0  # tasks of late slots, which `tasks` excludes
    first_slots: int = 0  # slots for unmeasured tasks, however short they are assumed to be
    busy_slots: float = 0.0
    usually_busy: float = 0.0  # average of busy_slots over a start-up time
    ended_per_second: float = 0.0
    ended: float = 0.0  # tasks ended since the last view: a rate of few says little
    functions: list[str] = field(default_factory=list)

    @property
    def task_seconds(self) -> float:
        return max(1e-6, self.seconds / max(1, self.tasks))

    @property
    def passes(self) -> bool:
        """Most tasks come and end between two plans: more end per second than exist."""
        return self.ended_per_second >= max(1, self.tasks) and self.seconds * self.ended_per_second <= self.ended

    def most_slots(self, tasks: int) -> int:
        """Return how many slots have work for a while."""
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
    """Return a duration for display: 0.25 s, 7.5 s, 12,000 s."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.3g} s"
