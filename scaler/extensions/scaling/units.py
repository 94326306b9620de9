"""Units of one worker manager (reported, connected, and wanted), and the interface to their costs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter

from scaler.needs import Offers
from scaler.policy.view import LATE_SECONDS, ClusterView, ManagerView, Wanted, facts_of
from scaler.protocol.messages import Desired, ManagerStatus, UnitState, UnitStatus
from scaler.scheduler.core.changes import ScalingDecided
from scaler.scheduler.core.state import ManagerRecord, Worker

STARTUP_WEIGHT = 0.3
"""Weight of a new measurement in the moving averages of start-up and queue times."""
MAX_UNITS_NAMED = 1000
"""Maximum units per field of one Desired. Later messages list the remaining units."""
MIN_LEFT_SECONDS = 30.0
"""Minimum seconds between the start of a worker's drain and the end of its unit."""
END_TOLERANCE_SECONDS = 5.0
"""A unit that ends this close (seconds) to its time limit counts as having reached the limit, because both times are
known only to the heartbeat."""
LONGEST_TASKS = 2.0
"""Time before a unit's end at which its worker drains, as a multiple of the longest mean duration among suitable
tasks."""
MAX_TEXT = 200
ALIVE = (UnitState.WAITING, UnitState.PENDING, UnitState.RUNNING)


@dataclass(frozen=True, slots=True)
class UnitEnd:
    """End that a service has set for a unit, when the end became known, and the unit's total time limit."""

    ends_at: float
    seen_at: float
    limit_seconds: float


class UnitEnds(dict[str, UnitEnd]):
    """Ends that services have set for units, such as time limits of jobs.

    A worker drains early enough, by measured task times, for its tasks to end before its unit. It does not drain in the
    first half of the unit's time.
    """

    def report(self, units: Iterable[UnitStatus], queued: Mapping[str, float], now: float) -> None:
        """Replace all ends with the reported units' ends. queued: queueing times, which do not count toward limits."""
        before = self.copy()
        self.clear()
        for unit in units:
            known = before.get(unit.unit_id)
            if unit.remaining_seconds and unit.state in ALIVE:
                lived = max(0.0, unit.age_seconds - queued.get(unit.unit_id, 0.0))
                limit = known.limit_seconds if known is not None else lived + unit.remaining_seconds
                seen_at = now if known is None else known.seen_at
                self[unit.unit_id] = UnitEnd(now + unit.remaining_seconds, seen_at, limit)
            elif known is not None and unit.state is not UnitState.RUNNING:
                self[unit.unit_id] = known  # terminating, but its worker may still be connected

    def passed_limit(self, unit_id: str, now: float) -> float:
        """Return the time limit (seconds) of a unit that has reached it; otherwise 0."""
        end = self.get(unit_id)
        return end.limit_seconds if end is not None and end.ends_at - now <= END_TOLERANCE_SECONDS else 0.0

    def due(self, task_seconds: float, now: float) -> Iterator[tuple[str, float]]:
        """Yield the units whose workers must drain now, and the seconds left. task_seconds: longest mean duration."""
        wanted_seconds = max(MIN_LEFT_SECONDS, LONGEST_TASKS * task_seconds)
        for unit_id, end in self.items():
            left = end.ends_at - now
            if left <= min(wanted_seconds, (end.ends_at - end.seen_at) / 2):
                yield unit_id, left


@dataclass(slots=True, eq=False)
class ManagerUnits(ManagerRecord):
    offers: Offers = field(init=False)
    status: ManagerStatus | None = None
    status_at: float = 0.0
    desired: tuple[int, tuple[str, ...], int, int] | None = None
    """Last Desired: units, drained units, number of other draining units, and number of units that start together."""
    wanted: Wanted | None = None
    """The policy's last answer for the manager; None before the first answer, or if the policy does not control the
    manager."""
    wanted_for_tasks: bool = False
    """Whether the policy's last view had queued tasks that fit the manager."""
    limited: str = ""
    """Why the spend limit prevents more units, or empty."""
    decision: ScalingDecided | None = None
    startup_seconds: float | None = None
    """Moving average of the time from a unit's start until its worker connects, excluding queue time."""
    measured_dispatch_seconds: float = 0.0
    """Delay before dispatched tasks start, as last measured by the manager's workers; 0: not measured."""
    queue_seconds: float | None = None
    """Moving average of the queueing time; None until a unit has left a queue."""
    queued: dict[str, float] = field(default_factory=dict)
    running: dict[str, Worker] = field(default_factory=dict)
    """Connected workers by unit."""
    ends: UnitEnds = field(default_factory=UnitEnds)
    joined: set[str] = field(default_factory=set)
    """Units with a joined worker that has not been reported to the manager."""
    connected: set[str] = field(default_factory=set)
    """Units with a connected worker, as of the last Desired."""
    left: set[str] = field(default_factory=set)
    """Units with a departed worker that the manager still lists. They do not count as pending."""
    unwanted: set[str] = field(default_factory=set)
    """Units to stop because their worker never joined or was given up. If the worker joins later, it gets no tasks."""

    def __post_init__(self) -> None:
        details = self.details
        self.offers = Offers.of(details.capabilities, details.unit_slots, details.unit_memory_bytes or math.inf)

    @property
    def dispatch_seconds(self) -> float:
        return self.measured_dispatch_seconds or self.details.usual_dispatch_seconds

    @property
    def is_late(self) -> bool:
        return self.dispatch_seconds >= LATE_SECONDS

    @property
    def reported(self) -> list[UnitStatus]:
        return self.status.units if self.status is not None else []

    @property
    def trouble(self) -> str:
        return self.status.degraded_reason if self.status is not None else ""

    @property
    def last_failure(self) -> str:
        failed = [unit for unit in self.reported if unit.state is UnitState.FAILED]
        return min(failed, key=attrgetter("age_seconds")).reason if failed else ""

    @property
    def pending(self) -> list[UnitStatus]:
        others = self.running.keys() | self.left | self.unwanted
        return [unit for unit in self.reported if unit.state in ALIVE and unit.unit_id not in others]

    @property
    def staying(self) -> list[Worker]:
        """Workers that the policy counts. Excludes workers out of contact, which the manager may be replacing."""
        return [worker for worker in self.running.values() if worker.is_willing]

    # -- events

    def report(self, status: ManagerStatus, now: float) -> None:
        self.status, self.status_at = status, now
        listed = {unit.unit_id for unit in status.units}
        waiting = {unit.unit_id: unit.age_seconds for unit in status.units if unit.state is UnitState.WAITING}
        self.queued = {unit: age for unit, age in self.queued.items() if unit in listed} | waiting
        self.ends.report(status.units, self.queued, now)
        self.left &= listed
        self.unwanted &= {unit.unit_id for unit in status.units if unit.state in ALIVE}

    def join(self, worker: Worker) -> None:
        self.running[worker.details.unit_id] = worker
        self.joined.add(worker.details.unit_id)
        self.offers = Offers(self.offers.items, worker.offers.implied)

    def measure(self, worker: Worker, now: float) -> None:
        """Measure a newly joined worker's start-up time."""
        unit = next((each for each in self.reported if each.unit_id == worker.details.unit_id), None)
        if unit is None or worker.reports.is_awaited:
            return
        queued = self.queued.get(unit.unit_id, 0.0)
        if queued or self.queue_seconds is not None:
            self.queue_seconds = _averaged(self.queue_seconds, queued)
        took = unit.age_seconds + (now - self.status_at)
        self.startup_seconds = _averaged(self.startup_seconds, max(0.0, took - queued))

    def leave(self, worker: Worker) -> None:
        unit = worker.details.unit_id
        if self.running.get(unit) is worker:
            del self.running[unit]
            self.left.add(unit)

    # -- decisions

    def surplus(self, units: int) -> tuple[list[str], list[Worker]]:
        """Return the pending units and the workers to give up to leave this many units. Youngest pending units first,
        then workers with the fewest tasks, longest idle first. The longest queued units remain queued unless the spend
        limit allows no unit.
        """
        most = 0 if self.limited and not units else self.details.backlog
        waiting = [unit for unit in self.pending if unit.state is UnitState.WAITING] if most else []
        backlog = {unit.unit_id for unit in nlargest(most, waiting, key=attrgetter("age_seconds"))}
        pending = [unit for unit in self.pending if unit.unit_id not in backlog]
        staying = self.staying
        count = max(0, len(staying) + len(pending) - units)
        pending.sort(key=attrgetter("age_seconds"))
        staying.sort(key=lambda worker: (len(worker.tasks), worker.progress.at))
        return [unit.unit_id for unit in pending[:count]], staying[: max(0, count - len(pending))]

    def desire(self, wanted: Wanted) -> Desired | None:
        """Return a message with the manager's changes, or None."""
        # A departing agent ends its unit itself. Listing the unit would make a failure look like a requested stop.
        draining = {
            unit: not (worker.tasks or worker.is_leaving) for unit, worker in self.running.items() if worker.draining
        }
        draining.update((unit, True) for unit in self.unwanted if unit not in self.running)
        for unit in self.reported:
            if unit.state not in ALIVE:
                draining.pop(unit.unit_id, None)  # the manager sees the unit end and does not count it
        drained = tuple(sorted(unit for unit, is_empty in draining.items() if is_empty)[:MAX_UNITS_NAMED])
        desired = (wanted.units, drained, len(draining) - len(drained), wanted.together)
        connected = {unit for unit, worker in self.running.items() if worker.broken_at is None}
        joined = sorted(self.joined | (connected - self.connected))[:MAX_UNITS_NAMED]
        left = sorted(self.connected.union(joined) - connected)[:MAX_UNITS_NAMED]
        if not (joined or left) and (desired == self.desired or (self.details.fixed and not drained)):
            return None
        self.joined.difference_update(joined)
        self.connected.update(joined)
        self.connected.difference_update(left)
        self.desired = desired
        return Desired(wanted.units, list(drained), wanted.reason, joined, desired[2], left, wanted.together)

    def columns(self, sees_all: bool) -> dict[str, object]:
        """Return columns of `ManagerRow`. sees_all: includes the reason, which names functions."""
        pending = self.pending
        return {
            "desired": self.desired[0] if self.desired is not None else None,
            "running": len(self.running),
            "pending": len(pending),
            "waiting": sum(unit.state is UnitState.WAITING for unit in pending),
            "failed": sum(unit.state is UnitState.FAILED for unit in self.reported),
            "units": len(self.reported),
            "capabilities": str(self.offers)[:MAX_TEXT],
            "trouble": self.trouble[:MAX_TEXT],
            "kept": self.wanted.kept if self.wanted is not None else 0,
            "reason": self.wanted.reason[:MAX_TEXT] if self.wanted is not None and sees_all else "",
        }

    def view(self, now: float) -> ManagerView:
        details, staying = self.details, self.staying
        charged = list(self.running.values()) if details.charges_tasks else []
        return ManagerView(
            **facts_of(details),
            manager_id=details.manager_id,
            kind=details.kind,
            offers=self.offers,
            units_running=len(staying),
            pending_ages=tuple(unit.age_seconds + now - self.status_at for unit in self.pending),
            idle_seconds=tuple(now - worker.progress.at for worker in staying if not worker.tasks),
            busy_slots=sum(min(worker.slots, worker.busy + worker.claims.extra) for worker in staying),
            startup_seconds=self.startup_seconds,
            queue_seconds=self.queue_seconds,
            dispatch_seconds=self.dispatch_seconds,
            trouble=self.trouble,
            # A heartbeat's paid time excludes tasks that have left the worker since.
            tasks=sum(each.busy + max(0, each.sent - len(each.tasks) - each.reports.ended) for each in charged),
            tasks_begun=sum(each.paid_tasks for worker in charged if (each := worker.reports.heartbeat) is not None),
        )


def _averaged(average: float | None, seconds: float) -> float:
    return seconds if average is None else average + STARTUP_WEIGHT * (seconds - average)


class Spending:
    """Default spending: no costs and no limits. An extension may replace this object."""

    is_limited = False

    @property
    def run(self) -> float:
        return 0.0

    def began(self, manager: ManagerUnits, worker: Worker) -> None:
        """Add a worker with charged tasks, before its first task. Idempotent."""

    def left(self, manager: ManagerUnits, worker: Worker, now: float) -> None:
        """Charge the final cost of a departed worker with charged tasks."""

    def charge(self, _managers: Iterable[ManagerUnits], _now: float) -> Iterable[str]:
        """Charge the cost of all units so far. Returns warnings about limits."""
        return ()

    def affordable(self, view: ClusterView) -> ClusterView:
        """Reduce a view for the policy to the slots that the budget allows."""
        return view

    def limited(
        self, _managers: Sequence[ManagerView], wanted: Mapping[str, Wanted], _now: float
    ) -> tuple[dict[str, Wanted], dict[str, str]]:
        """Return the policy's answer within the limits, and why managers start no more units."""
        return dict(wanted), {}

    def budget(self, _managers: Iterable[ManagerView], _now: float) -> float:
        """Return the budget for new units and tasks."""
        return math.inf

    def task_charge(self, _manager: ManagerView, _task_seconds: float) -> float:
        """Return the cost of a task of this duration; 0 if tasks are not charged."""
        return 0.0
