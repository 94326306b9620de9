"""How many units each worker manager should have: the arithmetic that the built-in policies share.

Growing. Measured work is turned into slots: enough to finish what is left after one start-up within a horizon that
grows with the start-up time, and never more slots than tasks. Work of unknown length starts on a few slots, and gets
twice as many whenever its tasks have run for another `TRIAL_SECONDS` without one of them ending: long tasks soon have
all they can use, and tiny ones are measured before they do harm. What exists already, pending units included, is
counted first; only what is missing is started.

Shrinking. A unit goes only when it is idle and the work does not need it: when it has been idle for a while (longer
where starting takes longer), or when there were that many too many all of that while, because a few tasks that wander
over many units leave none idle for long. So a burst is followed by one way down. Pending units go before idle ones,
when nothing has needed them for `QUIET_SECONDS`.

Law: a manager never gets more units than its limit, and never grows and shrinks in one plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scaler.needs import Needs
from scaler.policy.view import ClusterView, Demand, ManagerView, Wanted

FIRST_SLOTS = 8
"""Slots for work of unknown length at its beginning."""
TRIAL_SECONDS = 2.0
"""Work of unknown length gets twice the slots for each of these that it has run."""
MAX_DOUBLINGS = 24
MAX_STEP_SECONDS = 5.0
"""The most that one plan may add to a trial: a stalled scheduler learns nothing while it stalls."""
ASSUMED_STARTUP_SECONDS = 4.0
"""Until a unit of the manager has connected."""
MIN_HORIZON_SECONDS = 2.0
MAX_HORIZON_SECONDS = 15.0
MIN_IDLE_SECONDS = 10.0
MAX_IDLE_SECONDS = 120.0
QUIET_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A manager that may run some tasks. limit_units: the most units that it may have, None for any number."""

    manager: ManagerView
    limit_units: int | None


@dataclass(slots=True)
class _Group:
    """The work of all functions with the same needs."""

    needs: Needs
    tasks: int = 0
    measured_tasks: int = 0
    seconds: float = 0.0
    trial_slots: int = 0


@dataclass(slots=True)
class _Room:
    """What is left of one manager while work is laid out. Law: used and free are what exists, together."""

    manager: ManagerView
    free: int = field(init=False)
    free_running: int = field(init=False)
    used: int = 0
    grown: int = 0
    """Units."""
    growth_used: int = 0
    """Slots of these that work was laid on."""
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = self.manager.units * self.manager.unit_slots
        self.free_running = self.manager.units_running * self.manager.unit_slots

    def use(self, slots: int) -> int:
        taken = min(slots, self.free)
        self.free -= taken
        self.free_running = max(0, self.free_running - taken)
        self.used += taken
        return taken

    def grow(self, slots: int, limit_units: int | None) -> int:
        if self.manager.fixed:
            return 0
        step = self.manager.unit_slots
        spare = self.grown * step - self.growth_used
        units = math.ceil(max(0, slots - spare) / step)
        if limit_units is not None:
            units = min(units, max(0, limit_units - self.manager.units - self.grown))
        self.grown += units
        taken = min(slots, spare + units * step)
        self.growth_used += taken
        return taken


@dataclass(slots=True)
class _Surplus:
    """What one manager has too much, without a break. least: the smallest surplus since watched_since, at least 1."""

    since: float
    watched_since: float
    least: int


class Sizing:
    """Plans for the whole cluster. Keeps how long unmeasured work has run, and what managers have too much."""

    __slots__ = ("_planned_at", "_surplus", "_trials")

    def __init__(self) -> None:
        self._planned_at: float | None = None
        self._trials: dict[tuple[Needs, str], float] = {}
        self._surplus: dict[str, _Surplus] = {}

    def plan(self, view: ClusterView, choices: Mapping[Needs, Sequence[Choice]]) -> dict[str, Wanted]:
        """Return what each manager that is not fixed should have.

        choices: for the needs of every demand, the managers that may run it, the preferred one first.
        """
        rooms = {manager.manager_id: _Room(manager) for manager in view.managers}
        groups = sorted(self._groups(view), key=lambda group: (len(choices[group.needs]), group.needs.items))
        for group in groups:
            fitting = choices[group.needs]
            _lay_out(group, [(rooms[choice.manager.manager_id], choice.limit_units) for choice in fitting])
        wanted = {
            manager_id: self._wanted(room, view.now) for manager_id, room in rooms.items() if not room.manager.fixed
        }
        self._surplus = {key: surplus for key, surplus in self._surplus.items() if key in wanted}
        return wanted

    def _groups(self, view: ClusterView) -> list[_Group]:
        elapsed = 0.0 if self._planned_at is None else min(MAX_STEP_SECONDS, max(0.0, view.now - self._planned_at))
        self._planned_at = view.now
        trials: dict[tuple[Needs, str], float] = {}
        groups: dict[Needs, _Group] = {}
        for row in view.demand:
            tasks = row.queued + row.running
            if not tasks:
                continue
            group = groups.setdefault(row.needs, _Group(row.needs))
            group.tasks += tasks
            if row.task_seconds is not None:
                group.measured_tasks += tasks
                # A running task is half done on average.
                group.seconds += (row.queued + row.running / 2) * row.task_seconds
            else:
                key = (row.needs, row.function)
                ran = self._trials.get(key, 0.0) + (elapsed if row.running else 0.0)
                trials[key] = ran
                group.trial_slots += min(tasks, FIRST_SLOTS << min(MAX_DOUBLINGS, int(ran / TRIAL_SECONDS)))
        self._trials = trials
        return list(groups.values())

    def _wanted(self, room: _Room, now: float) -> Wanted:
        manager = room.manager
        if room.grown:
            self._surplus.pop(manager.manager_id, None)
            return Wanted(manager.units + room.grown, "; ".join(room.reasons))
        needed = math.ceil(room.used / manager.unit_slots)
        surplus = manager.units - needed
        if surplus <= 0:
            self._surplus.pop(manager.manager_id, None)
            return Wanted(manager.units, "; ".join(room.reasons) or "no work, no units")
        patience = idle_limit_seconds(manager)
        seen = self._surplus.setdefault(manager.manager_id, _Surplus(now, now, surplus))
        seen.least = min(seen.least, surplus)
        steady = seen.least if now - seen.watched_since >= patience else 0
        long_idle = sum(seconds >= patience for seconds in manager.idle_seconds)
        idle = max(long_idle, min(steady, len(manager.idle_seconds)))
        pending = len(manager.pending_ages)
        leaving = 0 if pending and now - seen.since < QUIET_SECONDS else min(surplus, pending + idle)
        if not leaving:
            reason = f"{surplus} more than the work needs now; idle ones go after {patience:g} s"
        else:
            seen.watched_since, seen.least = now, max(1, surplus - leaving)
            pending = min(pending, leaving)
            reason = f"{leaving} go: {pending} not needed before they have started, {leaving - pending} idle"
        return Wanted(manager.units - leaving, "; ".join([*room.reasons, reason]))


def idle_limit_seconds(manager: ManagerView) -> float:
    """Return for how long a unit of this manager stays without work."""
    startup = ASSUMED_STARTUP_SECONDS if manager.startup_seconds is None else manager.startup_seconds
    return min(MAX_IDLE_SECONDS, max(MIN_IDLE_SECONDS, 2 * startup))


def demanded(view: ClusterView) -> list[Needs]:
    """Return the different needs of all unfinished tasks."""
    return list(dict.fromkeys(row.needs for row in view.demand if _tasks(row)))


def _tasks(row: Demand) -> int:
    return row.queued + row.running


def _lay_out(group: _Group, choices: Sequence[tuple[_Room, int | None]]) -> None:
    slots = _slots(group, [room for room, _ in choices])
    missing = slots
    for room, _ in choices:
        taken = room.use(missing)
        if taken:
            missing -= taken
            room.reasons.append(_reason(group, slots))
    # Those that cannot start units now are asked last, but they are asked: that keeps them trying.
    for room, limit_units in sorted(choices, key=lambda choice: bool(choice[0].manager.trouble)):
        if not missing:
            break
        grown = room.grow(missing, limit_units)
        if grown:
            missing -= grown
            if (reason := _reason(group, slots)) not in room.reasons:
                room.reasons.append(reason)


def _slots(group: _Group, rooms: Sequence[_Room]) -> int:
    """Return how many slots this work should have in all, those that it has counted in."""
    if not group.measured_tasks:
        return group.trial_slots
    startups = [
        ASSUMED_STARTUP_SECONDS if room.manager.startup_seconds is None else room.manager.startup_seconds
        for room in rooms
        if not room.manager.fixed
    ]
    startup = min(startups, default=0.0)
    horizon = min(MAX_HORIZON_SECONDS, max(MIN_HORIZON_SECONDS, startup / 4))
    # What the running slots do by themselves until a new unit could help needs no new unit.
    left = group.seconds - startup * sum(room.free_running for room in rooms)
    return group.trial_slots + min(group.measured_tasks, max(1, math.ceil(left / horizon)))


def _reason(group: _Group, slots: int) -> str:
    tasks = f"{group.tasks} tasks" if group.tasks != 1 else "1 task"
    needs = f" that need {group.needs}" if group.needs.items else ""
    work = f", about {group.seconds:.3g} s of work" if group.measured_tasks else ", not measured yet"
    return f"{tasks}{needs}{work}: {slots} slot{'' if slots == 1 else 's'}"
