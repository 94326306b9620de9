"""Tasks with the same needs, combined as work for slots. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scaler.grammar import called, counted, listed
from scaler.needs import Needs

MAX_FUNCTIONS_NAMED = 2
MANY_ENDED = 20  # minimum number of finished tasks between two views for a rate with an error below 50 %
SLOT_SECONDS = 5.5  # amount of work that justifies a slot


@dataclass(slots=True)
class Work:
    """Unfinished tasks of all functions with the same needs, and the rate of finished ones."""

    needs: Needs
    slots_each: float = 1.0  # slots that one task occupies; it counts as that many tasks
    tasks: int = 0
    unmeasured_tasks: int = 0
    seconds: float = 0.0  # remaining time of all tasks on one slot
    known_seconds: float = 0.0  # same, assuming that unmeasured tasks take as long as the longest has run
    assumed_seconds: float = 0.0  # the assumed part of `seconds`, for unmeasured tasks
    queued: int = 0
    late: int = 0  # tasks of late slots, not included in `tasks`
    first_slots: int = 0  # slots for unmeasured tasks, regardless of their assumed duration
    busy_slots: float = 0.0
    usually_busy: float = 0.0  # average of busy_slots over a start-up time
    ended_per_second: float = 0.0
    ended: float = 0.0  # tasks finished since the last view; too few make a rate meaningless
    functions: list[str] = field(default_factory=list)

    @property
    def task_seconds(self) -> float:
        return max(1e-6, self.seconds / max(1, self.tasks))

    @property
    def passes(self) -> bool:
        """True if most tasks start and finish between two plans: the rate per second exceeds the number of tasks."""
        return self.ended_per_second >= max(1, self.tasks) and self.seconds * self.ended_per_second <= self.ended

    def most_slots(self, tasks: int) -> int:
        return min(tasks, max(self.first_slots, math.ceil(self.seconds * self.slots_each / SLOT_SECONDS)))

    def __str__(self) -> str:
        names = list(dict.fromkeys(self.functions))
        of = listed([called(name) for name in names], MAX_FUNCTIONS_NAMED)
        work = f"{of} needing {self.needs}" if self.needs.items else of
        if self.passes:
            if self.ended < MANY_ENDED:
                return f"few tasks of {work}, which end as fast as they arrive"
            return f"about {counted(int(float(f'{self.ended_per_second:.2g}')), 'task')} of {work} per second"
        if not self.tasks and self.late:
            return f"{counted(self.late, 'task')} of {work} on their way"
        tasks = f"{counted(self.tasks, 'task')} of {work}"
        each = seconds_text(self.assumed_seconds / self.unmeasured_tasks) if self.unmeasured_tasks else ""
        if self.unmeasured_tasks == self.tasks:
            return f"{tasks}, unmeasured, assuming {each} each" if each else tasks
        rest = f", {self.unmeasured_tasks:,} of them unmeasured, assuming {each} each" if each else ""
        return f"{seconds_text(self.seconds)} of work in {tasks}{rest}"


def seconds_text(seconds: float) -> str:
    """Return a duration for display: 0.25 s, 7.5 s, 12,000 s."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.3g} s"
