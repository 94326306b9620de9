"""What a policy sees of the cluster, and what it answers.

A policy is asked again and again with the whole cluster in one view, and answers for all worker managers at once. It
is pure: it has no clock (`ClusterView.now` is the time), no input or output; it may keep what it saw between calls.

Counts are in units (what a worker manager starts and stops: a process, a container) and in slots (tasks that run at
once). Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from scaler.needs import Needs, Offers

NO_LIMIT = -1
LATE_SECONDS = 1.0
"""Slots where a task takes longer than this to begin are late."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Tasks of one function with the same needs that have not ended, or have since the last view."""

    needs: Needs
    function: str
    queued: int
    """Tasks that could run now and do not: waiting in the scheduler, or prefetched by a worker."""
    running: int
    task_seconds: float | None
    """Mean time of one task, in which those count that run unusually long; None until one of them has ended."""
    busy_slots: float = 0.0
    """Slots that tasks which have ended since the last view kept busy until now, on average."""
    ended_per_second: float = 0.0
    """Rate of these tasks: at a high rate, few of them are queued or running at the moment of a view."""
    expected_seconds: float | None = None
    """Of a task, while task_seconds is None: the user's hint, else the median of all tasks of this cluster."""
    is_hint: bool = True
    """expected_seconds is the user's hint, and not the median."""
    longest_seconds: float = 0.0
    """How long one of the running tasks has run, at least: the longest such time that is known."""
    running_seconds: float | None = None
    """How long the running tasks will run on, together, by the times of those that took longer; None: not known."""
    late: int = 0
    """Of the running tasks, those that late slots have, where they may not have begun."""

    @property
    def tasks(self) -> int:
        return self.queued + self.running


@dataclass(frozen=True, slots=True)
class ManagerView:
    """One worker manager. Units that drain or stop are not counted any more."""

    manager_id: str
    kind: str
    offers: Offers
    max_slots: int
    """The most slots it may provide, NO_LIMIT for any number."""
    unit_slots: int
    """Slots of one unit."""
    units_running: int
    """Units whose worker is connected."""
    pending_ages: tuple[float, ...] = ()
    """Seconds since each pending unit (started, its worker not connected yet) was started."""
    idle_seconds: tuple[float, ...] = ()
    """For every running unit that has nothing to do: for how long."""
    startup_seconds: float | None = None
    """Measured time from the start of a unit to its connected worker, without the time in a queue; None until one has
    connected."""
    queue_seconds: float | None = None
    """Measured time that a unit waits in a queue before it starts; None until one has left the queue."""
    usual_startup_seconds: float = 0.0
    """What its type says of its start-up time before it was measured; 0: nothing."""
    trouble: str = ""
    """Why it cannot start units now; empty when all is well."""
    fixed: bool = False
    """It starts what it is configured to by itself, and is not told how many units it should have."""
    unit_price: float = 0.0
    """Of one unit and hour; 0: nothing, or not known."""
    unit_minimum_seconds: float = 0.0
    """A unit that lives for less is charged for as long."""
    dispatch_seconds: float = 0.0
    """How long a task given to a free slot takes to begin: measured, before that what its type says; 0: nothing."""
    charges_tasks: bool = False
    """unit_price and unit_minimum_seconds are those of a task, and units cost nothing."""
    tasks: int = 0
    """Where tasks are charged, those that its workers have, and those that ended and whose cost is not known yet."""
    tasks_begun: int = 0
    """Of these, those that run and have been charged for the minimum."""

    @property
    def is_late(self) -> bool:
        """Its tasks run elsewhere, and begin so late that not every task is worth giving to it."""
        return self.dispatch_seconds >= LATE_SECONDS

    @property
    def slot_price(self) -> float:
        """What one slot with work costs per hour."""
        return self.unit_price if self.charges_tasks else self.unit_price / self.unit_slots

    @property
    def units(self) -> int:
        """Running and pending units."""
        return self.units_running + len(self.pending_ages)

    @property
    def max_units(self) -> int | None:
        """The most units it may have; None for any number."""
        return None if self.max_slots < 0 else self.max_slots // self.unit_slots


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The whole cluster at one time. managers are in the order in which they came."""

    now: float
    """Monotonic."""
    demand: tuple[Demand, ...]
    managers: tuple[ManagerView, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Units that a manager should have, and why. most_units: the most for more work; None for its own limit."""

    units: int
    reason: str
    most_units: int | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """How ready tasks are spread over the workers that fit: idle workers first, then evenly.

    prefer_least_capable: among these, workers with the fewest capabilities that the task does not need come first, so
    that a plain task leaves the worker with the gpu alone while another one is free.
    """

    prefer_least_capable: bool = False


class ScalingPolicy(Protocol):
    """Made from its `policy_content` by calling what its entry point names, which raises UsageError on bad content."""

    @property
    def allocation(self) -> Allocation:
        """How tasks are spread; the same for the policy's whole life."""

    # It may have `named_managers`, the ids of worker managers in its content: one that never joins is reported.

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        """Return what each manager should have, by manager id. Managers that are left alone do not occur."""
