"""How many units each worker manager should have: the optimiser that the built-in policies share. Pure.

Growing. For measured work the completion time with more units is known (`capacity.py`), and is weighed against their
cost. Existing units are used first, pending ones included. No unit is started for work that is done before it could
help, or little later without it. Work of unknown length starts on a few slots, which double whenever its tasks have run
for a while and none has ended: long tasks soon get all slots they can use, and tiny ones are measured early.

Shrinking. Units that the work has not needed during their cooldown stop: pending ones first, then idle ones.

Laws: a manager never gets more units than its limit; what is started never exceeds the budget; a busy unit never stops;
no manager grows and shrinks in one plan.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scaler.grammar import called, counted, listed
from scaler.needs import Needs
from scaler.policy.capacity import Budget, CapacityPlan, SlotBatch, best_seconds, soonest_seconds, tasks_done
from scaler.policy.view import ClusterView, ManagerView, Wanted

FIRST_SLOTS = 8
"""Slots for work of unknown length at its beginning."""
TOLERANCE = 1.15
"""Nothing is started while the existing units take at most this many times the best completion time."""
KEEP_SHARE = 0.9
"""While this share of the units is needed, none of them stops."""

RAMP_UP_SECONDS = 2.0
RAMP_UP_SHARE = 0.05
"""Slots of unmeasured work double each time it has run for this long, or for this share of a start-up time."""
MAX_DOUBLINGS = 24
MAX_STEP_SECONDS = 5.0
"""The most that one plan adds to a ramp-up: a stalled scheduler learns nothing while it stalls."""
MAX_FUNCTIONS_NAMED = 2

MIN_COOLDOWN_SECONDS = 20.0
MAX_COOLDOWN_SECONDS = 120.0
"""Bounds of a cooldown that follows from the start-up time."""
MAX_DOUBLED_SECONDS = 600.0
QUARTERS = 4
REMAINING_THIRDS = (3, 3, 2, 1, 0)
"""The part of a need that remains, by the quarters of the cooldown that have passed since."""
SHORTAGE_SECONDS = 900.0
"""How long a shortage of units keeps the cooldown doubled."""
IDLE_SHARE = 0.75
"""Mean time that a unit stays without work, as a share of the cooldown."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Constraints:
    """A user's constraints on a plan, by key and manager id; the empty id is for all others, and for global keys.

    finish_seconds: work need not be done sooner than this; without it, as soon as is worth its cost. idle_seconds: the
    cooldown of units that are not needed; without it, it follows from the start-up time. Costs are per hour.
    """

    values: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def get(self, key: str, manager_id: str = "") -> float | None:
        """Return the value for a manager, None when there is none."""
        return self.values.get((key, manager_id), self.values.get((key, "")))

    @property
    def ceiling(self) -> float:
        return self.values.get(("ceiling_per_hour", ""), math.inf)

    def price(self, manager: ManagerView) -> float:
        """Return what one unit costs in an hour: as the user says, else as its manager does."""
        price = self.get("price_per_hour", manager.manager_id)
        return manager.unit_price if price is None else price

    def cooldown(self, plan: CapacityPlan) -> float:
        seconds = self.get("idle_seconds", plan.manager.manager_id)
        return cooldown_seconds(plan.startup) if seconds is None else seconds


class Sizing:
    """Plans for the whole cluster. Keeps the ramp-up of unmeasured work, and recent needs and answers."""

    def __init__(self) -> None:
        self._planned_at: float | None = None
        self._ran: dict[tuple[Needs, str], float] = {}
        """How long the tasks of functions without a measurement have run, by needs and function."""
        self._cooldowns: dict[str, Cooldown] = {}
        self._wanted: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def plan(
        self, view: ClusterView, limits: Mapping[str, int | None], constraints: Constraints | None = None
    ) -> dict[str, Wanted]:
        """Return what each manager that is not fixed should have.

        limits: the candidates for tasks by manager id, the preferred one first, with the most units that each may have,
        None for any number.
        """
        constraints = constraints or Constraints()
        managers = {manager.manager_id: manager for manager in view.managers}
        # Wanted units that do not exist yet may appear at any time: they count as spent.
        committed = {key: max(manager.units, self._still_wanted(manager)) for key, manager in managers.items()}
        prices = {key: constraints.price(manager) for key, manager in managers.items()}
        if sum(committed[key] * prices[key] for key in managers) > constraints.ceiling:
            committed = {key: manager.units for key, manager in managers.items()}
        budget = Budget(constraints.ceiling - sum(committed[key] * prices[key] for key in managers))
        plans = {
            key: CapacityPlan(manager, limits.get(key), budget, prices[key], committed[key])
            for key, manager in managers.items()
        }
        for key, plan in plans.items():
            plan.reserve(int(constraints.get("minimum_units", key) or 0))
        fitting = {
            needs: [plans[key] for key in limits if needs.fits(managers[key].offers)]
            for needs in dict.fromkeys(row.needs for row in view.demand)
        }
        works = self._works(view, int(constraints.get("first_slots") or FIRST_SLOTS), fitting)
        for plan in plans.values() if works else ():
            plan.idle_reason = "no work that its workers can run"
        for work in sorted(works, key=lambda work: (len(fitting[work.needs]), work.needs.items)):
            _assign(work, fitting[work.needs], constraints)
        wanted = {
            key: self._decide(plan, constraints, view.now) for key, plan in plans.items() if not managers[key].fixed
        }
        self._cooldowns = {key: cooldown for key, cooldown in self._cooldowns.items() if key in wanted}
        self._wanted = {key: answer.units for key, answer in wanted.items()}
        self._seen = {key: manager.units for key, manager in managers.items()}
        return wanted

    def _still_wanted(self, manager: ManagerView) -> int:
        """Return how many units the last plan wanted, of those that the manager may have now."""
        wanted = self._wanted.get(manager.manager_id, 0)
        return wanted if manager.max_units is None else min(wanted, manager.max_units)

    def _decide(self, plan: CapacityPlan, constraints: Constraints, now: float) -> Wanted:
        manager = plan.manager
        key = manager.manager_id
        cooldown = self._cooldowns.setdefault(key, Cooldown(manager.units, now))
        before = min(plan.committed_units, self._wanted.get(key, manager.units))
        usual = constraints.cooldown(plan)
        needed = math.ceil((plan.used + plan.useful) / manager.unit_slots)
        if plan.grown or manager.units > max(before, self._seen.get(key, 0)):
            # Unrequested units existed before the first plan saw them, for example after a restart.
            needed = manager.units + plan.grown
        level = max(cooldown.level(needed, usual, now), int(constraints.get("minimum_units", key) or 0))
        if plan.used and KEEP_SHARE * before < level < before:
            level = before
        # Units that were lost or could not be started yet stay wanted while they were needed recently.
        wanted = max(manager.units + plan.grown, min(before, level))
        surplus = min(wanted - level, len(manager.pending_ages) + len(manager.idle_seconds))
        if plan.grown and wanted > before:
            cooldown.grew(usual, now)
        elif surplus > 0:
            cooldown.shrunk(now)
            wanted -= surplus
        reasons = [*plan.reasons, plan.limit] if plan.limit else plan.reasons
        most = plan.most_units
        if not reasons:
            last = f"units stop after {seconds_text(cooldown.seconds(usual))} without work"
            reasons = ["it may have no units" if most == 0 else plan.idle_reason, *([last] if wanted else [])]
        return Wanted(wanted, "; ".join(reasons), most)

    def _works(
        self, view: ClusterView, first_slots: int, fitting: Mapping[Needs, Sequence[CapacityPlan]]
    ) -> list[Work]:
        """Return all work. first_slots: for work of unknown length at its beginning. Call once per plan."""
        elapsed = 0.0 if self._planned_at is None else min(MAX_STEP_SECONDS, max(0.0, view.now - self._planned_at))
        self._planned_at = view.now
        ran: dict[tuple[Needs, str], float] = {}
        works: dict[Needs, Work] = {}
        for row in view.demand:
            tasks = row.queued + row.running
            if not tasks and not row.ended_per_second:
                continue
            work = works.get(row.needs)
            if work is None:
                units = [(plan.manager.offers, plan.manager.unit_slots) for plan in fitting[row.needs]]
                width = min((row.needs.slots_taken(*unit) for unit in units), default=1.0)
                work = works[row.needs] = Work(row.needs, slots_each=width)
            work.tasks += tasks
            work.busy_slots += row.busy_slots * work.slots_each
            work.ended_per_second += row.ended_per_second
            work.functions.append(row.function)
            if row.task_seconds is not None:
                work.measured_tasks += tasks
                # A running task is half done on average.
                work.seconds += (row.queued + row.running / 2) * row.task_seconds
            else:
                key = (row.needs, row.function)
                ran[key] = self._ran.get(key, 0.0) + (elapsed if row.running else 0.0)
                startup = min((plan.startup for plan in fitting[row.needs]), default=0.0)
                doublings = int(ran[key] / max(RAMP_UP_SECONDS, RAMP_UP_SHARE * startup))
                slots = math.ceil(tasks * work.slots_each)
                work.ramp_up_slots += min(slots, first_slots << min(MAX_DOUBLINGS, doublings))
        self._ran = ran
        return list(works.values())


def _assign(work: Work, plans: Sequence[CapacityPlan], constraints: Constraints) -> None:
    """Assign slots to this work, and start units for the missing ones."""
    # Managers that cannot start units now come last, but they are still asked, so that they keep trying.
    to_grow = sorted(plans, key=lambda plan: bool(plan.manager.trouble))
    text = str(work)
    used = {id(plan): plan.used for plan in plans}
    missing = work.ramp_up_slots
    for plan in plans:
        missing -= plan.use(missing)
    for plan in to_grow:
        if missing and (taken := plan.grow(missing)):
            missing -= taken
            plan.reasons.append(f"{text}, beginning on up to {counted(work.ramp_up_slots, 'slot')}")
    if work.measured_tasks:
        _assign_measured(work, plans, to_grow, constraints)
    # Tasks that come and end between two plans need the slots that they have kept busy.
    missing = math.ceil(work.busy_slots - _ROUNDING) - sum(plan.used - used[id(plan)] for plan in plans)
    for plan in plans:
        missing -= plan.use(max(0, missing))
        if plan.used == used[id(plan)]:
            plan.idle_reason = f"other units are enough for {text}"
        elif not any(reason.startswith(text) for reason in plan.reasons):
            plan.reasons.append(text)


def _assign_measured(
    work: Work, plans: Sequence[CapacityPlan], to_grow: Sequence[CapacityPlan], constraints: Constraints
) -> None:
    tasks, task_seconds = math.ceil(work.measured_tasks * work.slots_each), work.task_seconds
    existing = [batch for plan in plans for batch in plan.free]
    addable: list[SlotBatch] = []
    reserved = 0.0
    for plan in to_grow:
        addable.append(plan.growth(tasks, reserved))
        reserved += plan.cost(addable[-1])
    finish_seconds = constraints.get("finish_seconds")
    if finish_seconds is None:
        idle = [IDLE_SHARE * constraints.cooldown(plan) for plan in plans if not plan.manager.fixed]
        within = best_seconds(existing, addable, tasks, task_seconds, min(idle, default=0.0))
    else:
        within = max(finish_seconds, soonest_seconds([*existing, *addable], tasks, task_seconds))
    if math.isinf(within):
        return
    is_enough = tasks_done(existing, task_seconds, TOLERANCE * within) >= tasks
    for plan in plans:
        tasks -= plan.run(tasks, task_seconds, within)
    for plan in to_grow:
        each = plan.growth(1).tasks_each(task_seconds, within)
        slots = math.ceil(tasks / each) if each and tasks > 0 else 0
        taken = plan.note_useful(slots) if is_enough else plan.grow(slots)
        tasks -= each * taken
        if taken and not is_enough:
            start = f"{seconds_text(plan.startup)} to start a unit"
            plan.reasons.append(f"{work}, {start}, done in about {seconds_text(within)}")


@dataclass(slots=True)
class Work:
    """The tasks of all functions with the same needs: unfinished ones, and the rate of those that have ended."""

    needs: Needs
    slots_each: float = 1.0
    """Slots of a unit that one of the tasks leaves to no other: it counts as that many tasks."""
    tasks: int = 0
    measured_tasks: int = 0
    seconds: float = 0.0
    """Remaining time of the measured tasks on one slot."""
    ramp_up_slots: int = 0
    """Slots for the others."""
    busy_slots: float = 0.0
    ended_per_second: float = 0.0
    functions: list[str] = field(default_factory=list)

    @property
    def task_seconds(self) -> float:
        return max(1e-6, self.seconds / self.measured_tasks)

    def __str__(self) -> str:
        names = list(dict.fromkeys(self.functions))
        of = listed([called(name) for name in names], MAX_FUNCTIONS_NAMED)
        work = f"{of} needing {self.needs}" if self.needs.items else of
        if self.ended_per_second >= max(1, self.tasks):
            # Most of them come and end between two plans.
            return f"about {counted(int(float(f'{self.ended_per_second:.2g}')), 'task')} of {work} per second"
        tasks = f"{counted(self.tasks, 'task')} of {work}"
        if not self.measured_tasks:
            return f"{tasks}, not measured yet"
        unmeasured = self.tasks - self.measured_tasks
        rest = f", {unmeasured:,} of them not measured yet" if unmeasured else ""
        return f"{seconds_text(self.seconds)} of work in {tasks}{rest}"


def seconds_text(seconds: float) -> str:
    """Return a duration as display text: 0.25 s, 7.5 s, 12,000 s."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.3g} s"


class Cooldown:
    """How long one manager's units stay that the work does not need now.

    A recent need counts in full for half of the cooldown, then sinks by a third with each quarter, to nothing at its
    end. Units above that level are surplus. So a lull shorter than half of the cooldown stops no unit, and after a
    burst units stop in three parts: waiting for the next burst costs less the longer it does not come. A shortage of
    units soon after others have stopped doubles the cooldown, so that recurring bursts soon find their units running.

    Law: the level rises only with the need, is never below it, and has a bounded memory: one number per plan within the
    cooldown.
    """

    def __init__(self, units: int, now: float) -> None:
        self._needs: deque[tuple[float, int]] = deque([(now, units)])
        """Times and needs, decreasing: a need hides the earlier ones that were not larger."""
        self._doublings = 0
        self._shrunk_at = -math.inf
        self._shortage_at = -math.inf

    def seconds(self, usual: float) -> float:
        """Return the cooldown now. usual: the cooldown without a shortage."""
        return max(usual, min(MAX_DOUBLED_SECONDS, usual * 2.0**self._doublings))

    def level(self, needed: int, usual: float, now: float) -> int:
        """Return how many units should stay, given how many are needed now. Call at every plan."""
        if now - self._shortage_at > SHORTAGE_SECONDS:
            self._doublings = 0
        cooldown = self.seconds(usual)
        needs = self._needs
        while needs and needs[-1][1] <= needed:
            needs.pop()
        needs.append((now, needed))
        while needs[0][0] <= now - cooldown and len(needs) > 1:
            needs.popleft()
        return max(_remaining(units, now - at, cooldown) for at, units in needs)

    def shrunk(self, now: float) -> None:
        self._shrunk_at = now

    def grew(self, usual: float, now: float) -> None:
        if now - self._shrunk_at <= 2 * self.seconds(usual):
            self._doublings = min(self._doublings + 1, 16)
            self._shortage_at = now
            self._shrunk_at = -math.inf


def cooldown_seconds(startup: float) -> float:
    """Return the default cooldown of units with this start-up time in seconds."""
    return min(MAX_COOLDOWN_SECONDS, max(MIN_COOLDOWN_SECONDS, startup))


def _remaining(units: int, seconds: float, cooldown: float) -> int:
    if seconds <= 0:
        return units
    passed = QUARTERS if seconds >= cooldown else math.floor(seconds / cooldown * QUARTERS + _ROUNDING)
    return math.ceil(units * REMAINING_THIRDS[passed] / REMAINING_THIRDS[0])
