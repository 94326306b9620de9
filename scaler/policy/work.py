"""The work that there is, by what it needs: as slots and seconds for the arithmetic, and as words for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scaler.needs import Needs
from scaler.policy.view import ClusterView, Demand

TRIAL_SECONDS = 2.0
TRIAL_SHARE = 0.05
"""Work of unknown length gets twice the slots for each of these that it has run: so long, or this share of a start."""
MAX_DOUBLINGS = 24
MAX_STEP_SECONDS = 5.0
"""The most that one plan may add to a trial: a stalled scheduler learns nothing while it stalls."""
MAX_FUNCTIONS_NAMED = 2


@dataclass(slots=True)
class Work:
    """The unfinished tasks of all functions with the same needs."""

    needs: Needs
    tasks: int = 0
    measured_tasks: int = 0
    seconds: float = 0.0
    """What the measured ones still take on one slot."""
    trial_slots: int = 0
    """Slots for the others."""
    functions: list[str] = field(default_factory=list)

    @property
    def task_seconds(self) -> float:
        """Mean of the measured ones."""
        return max(1e-6, self.seconds / self.measured_tasks)

    def __str__(self) -> str:
        tasks = "1 task" if self.tasks == 1 else f"{self.tasks:,} tasks"
        names = [f"{name}()" for name in dict.fromkeys(self.functions)]
        of = " and ".join(names) if len(names) <= MAX_FUNCTIONS_NAMED else f"{len(names)} functions"
        needs = f" that need {self.needs}" if self.needs.items else ""
        if not self.measured_tasks:
            return f"{tasks} of {of}{needs}, not measured yet"
        unmeasured = self.tasks - self.measured_tasks
        rest = f", {unmeasured:,} of them not measured yet" if unmeasured else ""
        return f"{seconds_text(self.seconds)} of work in {tasks} of {of}{needs}{rest}"


def seconds_text(seconds: float) -> str:
    """Write a time as people do: 0.25 s, 7.5 s, 12,000 s."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.3g} s"


class Trials:
    """How long the tasks of functions that were never measured have run."""

    __slots__ = ("_planned_at", "_ran")

    def __init__(self) -> None:
        self._planned_at: float | None = None
        self._ran: dict[tuple[Needs, str], float] = {}

    def works(self, view: ClusterView, first_slots: int, startup_seconds: Callable[[Needs], float]) -> list[Work]:
        """Return all work. first_slots: for work of unknown length at its beginning. Call once per plan."""
        elapsed = 0.0 if self._planned_at is None else min(MAX_STEP_SECONDS, max(0.0, view.now - self._planned_at))
        self._planned_at = view.now
        ran: dict[tuple[Needs, str], float] = {}
        works: dict[Needs, Work] = {}
        for row in view.demand:
            tasks = row.queued + row.running
            if not tasks:
                continue
            work = works.setdefault(row.needs, Work(row.needs))
            work.tasks += tasks
            work.functions.append(row.function)
            if row.task_seconds is not None:
                work.measured_tasks += tasks
                # A running task is half done on average.
                work.seconds += (row.queued + row.running / 2) * row.task_seconds
            else:
                key = (row.needs, row.function)
                ran[key] = self._ran.get(key, 0.0) + (elapsed if row.running else 0.0)
                doublings = int(ran[key] / max(TRIAL_SECONDS, TRIAL_SHARE * startup_seconds(row.needs)))
                work.trial_slots += min(tasks, first_slots << min(MAX_DOUBLINGS, doublings))
        self._ran = ran
        return list(works.values())


def demanded(view: ClusterView) -> list[Needs]:
    """Return the different needs of all unfinished tasks."""
    return list(dict.fromkeys(row.needs for row in view.demand if _tasks(row)))


def _tasks(row: Demand) -> int:
    return row.queued + row.running
