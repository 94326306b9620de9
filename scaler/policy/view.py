"""Input and output of scaling policies.

A policy is called periodically with a view of the whole cluster and answers for all worker managers at once. A policy
is pure: it uses no clock (`ClusterView.now` is the time) and no I/O, but may keep state between calls. Units are what a
worker manager starts and stops, such as processes or containers. A slot runs one task at a time. Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from scaler.needs import Needs, Offers
from scaler.protocol.messages import UnitFacts

NO_LIMIT = -1
LATE_SECONDS = 1.0
"""A slot is late if its tasks take at least this long to start."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Tasks of one function with the same needs that are unfinished or have finished since the last view."""

    needs: Needs
    """Required capabilities, without other terms."""
    function: str
    queued: int
    """Tasks that are ready but not running: waiting in the scheduler or prefetched by a worker."""
    running: int
    task_seconds: float | None
    """Mean task duration, including overdue running tasks. None until a task has finished."""
    busy_slots: float = 0.0
    """Average number of slots that tasks finished since the last view have occupied in this time."""
    ended_per_second: float = 0.0
    """Rate of finished tasks since the last view. Short tasks may be counted only here, not in queued or running."""
    expected_seconds: float | None = None
    """Expected duration while task_seconds is None: the user's hint, or else the median of all tasks in the cluster."""
    is_hint: bool = True
    """True if expected_seconds is the user's hint rather than the median."""
    longest_seconds: float = 0.0
    """Lower bound of the longest-running task's run time so far."""
    running_seconds: float | None = None
    """Total remaining time of the running tasks, estimated from finished tasks that took longer. None: unknown."""
    late: int = 0
    """Number of running tasks on late slots. These tasks may not have started."""
    at_once: int = 0
    """Number of tasks in the largest ready gang, which start together or not at all. 0: no gang is ready."""
    per_host: int = 0
    """Maximum number of gang tasks per host. 0: no maximum."""

    @property
    def tasks(self) -> int:
        return self.queued + self.running

    @property
    def early(self) -> int:
        """Number of tasks that are not on late slots."""
        return self.tasks - self.late

    def seconds(self, task_seconds: float) -> float:
        """Return the remaining time of these tasks on one slot. On average, a running task is half done."""
        half = (self.running - self.late) / 2 * task_seconds
        return self.queued * task_seconds + (half if self.running_seconds is None else self.running_seconds)


def facts_of(declared: UnitFacts) -> dict[str, Any]:
    return {each.name: getattr(declared, each.name) for each in fields(UnitFacts)}


@dataclass(frozen=True, slots=True)
class ManagerView(UnitFacts):
    """One worker manager. Excludes draining and stopping units. max_slots is NO_LIMIT if there is no limit."""

    manager_id: str
    kind: str
    offers: Offers
    units_running: int
    """Units with a connected worker."""
    pending_ages: tuple[float, ...] = ()
    """Age of each pending unit, that is, a unit whose worker has not connected yet."""
    idle_seconds: tuple[float, ...] = ()
    """Idle time of each running unit without tasks."""
    startup_seconds: float | None = None
    """Measured time from a unit's start to its worker's connection, excluding time in a queue. None: unknown."""
    queue_seconds: float | None = None
    """Measured time in a queue before a unit starts; None until a unit has left the queue."""
    trouble: str = ""
    """Reason why the manager cannot start units now; empty if it can."""
    dispatch_seconds: float = 0.0
    """Delay between dispatch to a free slot and the start of the task: measured, else usual_dispatch_seconds."""
    tasks: int = 0
    """If tasks are charged: number of tasks that are assigned to workers, or have finished at a still unknown cost."""
    tasks_begun: int = 0
    """Number of these tasks that are running and have been charged the minimum."""
    busy_slots: float = 0.0
    """Occupied slots of the running units."""

    @property
    def is_late(self) -> bool:
        """True if tasks start so late that dispatching to this manager does not always pay off."""
        return self.dispatch_seconds >= LATE_SECONDS

    @property
    def slot_price(self) -> float:
        """Hourly cost of a busy slot."""
        return self.unit_price if self.charges_tasks else self.unit_price / self.unit_slots

    @property
    def units(self) -> int:
        """Running and pending units."""
        return self.units_running + len(self.pending_ages)

    @property
    def max_units(self) -> int | None:
        """Maximum units; None: unlimited."""
        return None if self.max_slots < 0 else self.max_slots // self.unit_slots


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The whole cluster at one point in time. managers: in order of connection."""

    now: float
    """Time of the view, from a monotonic clock."""
    demand: tuple[Demand, ...]
    managers: tuple[ManagerView, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Wanted units of a manager, with the reason. most_units: maximum, however much work there is; None: the manager's
    limit. kept (set by the scheduler): units wanted only as warm capacity. together: new units to start as one gang."""

    units: int
    reason: str
    most_units: int | None = None
    kept: int = field(default=0, repr=False)
    together: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Allocation:
    """How ready tasks are distributed over suitable workers: idle workers first, then evenly.

    prefer_least_capable: prefer workers with the fewest capabilities that the task does not need. A plain task then
    avoids GPU workers while other workers are free.
    """

    prefer_least_capable: bool = False


class ScalingPolicy(Protocol):
    """A scaling policy, created by calling its entry point with `policy_content`. Raises UsageError for bad content."""

    @property
    def allocation(self) -> Allocation:
        """Allocation of tasks. Constant for the lifetime of the policy."""

    # Optional attribute `named_managers`: manager ids in the content. The scheduler reports managers that never join.

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        """Return wanted units by manager id. Omitted managers keep their units."""
