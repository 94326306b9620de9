"""Chooses the number of units per worker manager for the built-in policies. Pure.

Growing: measured work gets the fewest units that finish it nearly as soon as all units would (`capacity.py`). Existing
units, including pending ones, are used first. No unit starts if the work would end before the unit could help, or only
slightly later without the unit. Unmeasured tasks are assumed to take the expected time, or longer once a task has run
longer. Long tasks therefore soon get all slots that they can use.

Shrinking: units that were not needed during their cooldown stop, pending units before idle units.

Invariants: a manager never exceeds its limit; a busy unit never stops; no manager grows
and shrinks in one plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scaler.grammar import called, counted
from scaler.needs import Needs
from scaler.policy.capacity import (
    LULL_SECONDS,
    CapacityPlan,
    Cooldown,
    SlotBatch,
    Work,
    cooldown_seconds,
    longest_idle_seconds,
    seconds_text,
    soonest_seconds,
    tasks_done,
    tasks_worth_giving,
)
from scaler.policy.view import ClusterView, Demand, Wanted

FIRST_SLOTS = 8  # initial slots for tasks of unknown duration
TOLERANCE = 1.03  # no unit starts while existing units need at most this multiple of the shortest time
KEEP_SHARE = 0.9  # no unit stops while this share of the units is needed

LATER = 1.05  # acceptable multiple of the shortest time if fewer units are used
MUCH_LONGER = 2.0  # acceptable multiple of the shortest time if a minimum charge is avoided

LEAST_BUSY = 0.01
VIEW_SECONDS = 1.0
IDLE_SHARE = 0.75  # mean idle time of a unit as a share of the cooldown
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Constraints:
    """A user's constraints by key and manager id. The empty id holds the defaults for all managers and the global keys.

    finish_seconds: acceptable completion time; default: nearly the shortest. idle_seconds: cooldown of
    unneeded units; default: derived from the start-up time.
    """

    values: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def get(self, key: str, manager_id: str = "") -> float | None:
        return self.values.get((key, manager_id), self.values.get((key, "")))

    def cooldown(self, plan: CapacityPlan) -> float:
        seconds = self.get("idle_seconds", plan.manager.manager_id)
        return cooldown_seconds(plan.back_seconds) if seconds is None else seconds


class Sizing:
    def __init__(self) -> None:
        self._cooldowns: dict[str, Cooldown] = {}
        self._planned_at: float | None = None
        self._busy: dict[Needs, float] = {}
        self._found: dict[str, int] = {}
        self._lulls: dict[str, Cooldown] = {}
        self._wanted: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def plan(
        self, view: ClusterView, limits: Mapping[str, int | None], constraints: Constraints | None = None
    ) -> dict[str, Wanted]:
        """Return each scaled manager's wanted units. limits: maximum units per candidate, most preferred first."""
        constraints = constraints or Constraints()
        plans = {manager.manager_id: CapacityPlan(manager, limits.get(manager.manager_id)) for manager in view.managers}
        fitting = {
            needs: [plans[key] for key in limits if needs.fits(plans[key].manager.offers)]
            for needs in dict.fromkeys(row.needs for row in view.demand)
        }
        works = self._works(view, int(constraints.get("first_slots") or FIRST_SLOTS), fitting)
        for plan in plans.values() if works else ():
            plan.idle_reason = "no work for its workers"
        for row in view.demand:
            if row.at_once:
                _assign_gang(row, fitting[row.needs])
        for work in sorted(works, key=lambda work: (len(fitting[work.needs]), work.needs.items)):
            _assign(work, fitting[work.needs], constraints)
        wanted = {
            key: self._decide(plan, constraints, view.now) for key, plan in plans.items() if not plan.manager.fixed
        }
        self._cooldowns = {key: cooldown for key, cooldown in self._cooldowns.items() if key in wanted}
        self._wanted = {key: answer.units for key, answer in wanted.items()}
        self._seen = {manager.manager_id: manager.units for manager in view.managers}
        return wanted

    def _decide(self, plan: CapacityPlan, constraints: Constraints, now: float) -> Wanted:
        manager = plan.manager
        key = manager.manager_id
        cooldown = self._cooldowns.setdefault(key, Cooldown(manager.units, now))
        most = math.inf if manager.max_units is None else manager.max_units
        before = int(min(self._wanted.get(key, manager.units), max(manager.units, most)))
        is_given, usual = constraints.get("idle_seconds", key) is not None, constraints.cooldown(plan)
        cooldown.most_seconds = longest_idle_seconds(plan.back_seconds)
        needed = math.ceil(plan.used / manager.unit_slots)
        worth = needed if is_given else min(needed, math.ceil(plan.worth / manager.unit_slots))
        if manager.units > max(before, self._seen.get(key, 0)):
            # Unrequested units existed before the first plan, for example after a restart.
            needed = worth = manager.units + plan.grown
        elif plan.grown:
            needed = manager.units + plan.grown
        if not needed:
            self._found.pop(key, None)
        elif self._found.setdefault(key, manager.units_running) <= needed:
            # If recurring work needs all units that were kept, keep as many again.
            worth = max(worth, self._found[key])
        lately = self._lulls.setdefault(key, Cooldown(0, now)).level(needed, LULL_SECONDS, now, has_work=needed > 0)
        level = max(cooldown.level(worth, usual, now, has_work=needed > 0), lately)
        if plan.used and KEEP_SHARE * before < level < before:
            level = before
        # Units that were lost or could not start remain wanted if they were needed recently.
        wanted = max(manager.units + plan.grown, min(before, level))
        surplus = min(wanted - level, len(manager.pending_ages) + len(manager.idle_seconds))
        if plan.grown and wanted > before:
            cooldown.grew(usual, now)
        elif surplus > 0:
            wanted -= surplus
            if wanted < before:  # otherwise, the surplus is warm capacity
                cooldown.shrunk(now)
        reasons = [*plan.reasons, "its limit is reached"] if plan.is_at_limit else plan.reasons
        if not reasons:
            reasons = ["its limit is 0 units" if plan.most_units == 0 else plan.idle_reason]
            if wanted:
                seconds = cooldown.seconds(usual)
                why = ", since work recurs" if seconds > usual else ""
                what = "further units" if manager.minimum_units or manager.warm_units else "units"
                reasons.append(f"{what} stop after {seconds_text(seconds)} without work{why}")
        return Wanted(wanted, "; ".join(reasons), plan.most_units, together=plan.together)

    def _works(
        self, view: ClusterView, first_slots: int, fitting: Mapping[Needs, Sequence[CapacityPlan]]
    ) -> list[Work]:
        works: dict[Needs, Work] = {}
        for row in view.demand:
            if row.at_once or (not row.early and not row.late and not row.ended_per_second):
                continue
            work = works.get(row.needs)
            if work is None:
                units = [(plan.manager.offers, plan.manager.unit_slots) for plan in fitting[row.needs]]
                width = min((row.needs.slots_taken(*unit) for unit in units), default=1.0)
                work = works[row.needs] = Work(row.needs, slots_each=width)
            work.add(row, first_slots)
        self._note_ended(works, fitting, view.now)
        return list(works.values())

    def _note_ended(
        self, works: Mapping[Needs, Work], fitting: Mapping[Needs, Sequence[CapacityPlan]], now: float
    ) -> None:
        elapsed = 0.0 if self._planned_at is None else max(0.0, now - self._planned_at)
        self._planned_at = now
        for work in works.values():
            work.ended = work.ended_per_second * (elapsed or VIEW_SECONDS)
        busy: dict[Needs, float] = {}
        for needs in works.keys() | self._busy.keys():
            startup = min((plan.startup for plan in fitting.get(needs, ())), default=0.0)
            share = -math.expm1(-elapsed / max(1.0, startup))
            busy_now = works[needs].busy_slots if needs in works else 0.0
            before = self._busy.get(needs, 0.0)
            busy[needs] = before + share * (busy_now - before)
            if needs in works:
                works[needs].usually_busy = busy[needs]
        self._busy = {needs: slots for needs, slots in busy.items() if slots >= LEAST_BUSY}


def _assign(work: Work, plans: Sequence[CapacityPlan], constraints: Constraints) -> None:
    text = str(work)
    used = {id(plan): plan.used for plan in plans}
    late = [plan for plan in plans if plan.manager.is_late]
    on_their_way = math.ceil(work.late * work.slots_each)
    for plan in late:
        taken = plan.use(on_their_way)
        plan.worth += taken
        on_their_way -= taken
    others = [plan for plan in plans if not plan.manager.is_late and plan.may_run]
    if work.tasks and late and others:
        _assign_late(work, late, others, constraints)
    elif work.tasks:
        _Assignment(work, plans, constraints).assign()
    # Tasks that start and finish between two plans still need the slots that they kept busy.
    missing = math.ceil(work.busy_slots - _ROUNDING) - sum(plan.used - used[id(plan)] for plan in plans)
    for plan in plans:
        taken = plan.use(max(0, missing))
        plan.worth += min(taken, math.ceil(work.usually_busy - _ROUNDING))
        missing -= taken
        if plan.used == used[id(plan)]:
            if not (plan.manager.is_late and others and work.tasks):
                plan.idle_reason = f"other units suffice for {text}"
        elif not any(reason.startswith(text) for reason in plan.reasons):
            plan.reasons.append(text)


def _assign_gang(row: Demand, plans: Sequence[CapacityPlan]) -> None:
    """Assign slots to running tasks, and either all needed slots or none to the largest gang."""
    text = f"{counted(row.at_once, 'task')} of {called(row.function)} that start together"
    missing = row.at_once
    slots: list[tuple[CapacityPlan, int, int]] = []
    for plan in plans:
        plan.worth += plan.use(math.ceil(row.running / len(plans)))
        unit_slots = plan.manager.unit_slots
        in_unit = int(unit_slots // row.needs.slots_taken(plan.manager.offers, unit_slots))
        in_unit = min(in_unit, row.per_host or in_unit)
        if not in_unit or not plan.may_run:
            continue
        free = sum(batch.slots for batch in plan.free) // unit_slots
        units = min(free, math.ceil(missing / in_unit))
        missing -= units * in_unit
        more = 0
        if missing > 0 and not plan.manager.trouble:
            more = plan.growth(math.ceil(missing / in_unit) * unit_slots).slots // unit_slots
            missing -= more * in_unit
        slots.append((plan, units * unit_slots, more * unit_slots))
    for plan, used, grown in slots if missing <= 0 else ():
        plan.worth += plan.use(used)
        plan.together = max(plan.together, plan.grow(grown) // plan.manager.unit_slots)
        plan.reasons.append(text)
    if missing > 0:
        for plan in plans:
            plan.idle_reason = f"the managers cannot provide enough slots for {text}"


def _assign_late(
    work: Work, late: Sequence[CapacityPlan], others: Sequence[CapacityPlan], constraints: Constraints
) -> None:
    """Assign work to managers without delay, and to late managers if the work then ends much sooner."""
    slots = [batch for plan in others for batch in plan.free]
    grown = {id(plan): plan.grown for plan in others}
    _Assignment(work, others, constraints).assign()
    slots += [
        SlotBatch((plan.grown - grown[id(plan)]) * plan.manager.unit_slots, plan.startup)
        for plan in others
        if not plan.manager.trouble
    ]
    tasks, queued = math.ceil(work.tasks * work.slots_each), math.ceil(work.queued * work.slots_each)
    for plan in late:
        free = [*plan.free, plan.growth(queued)]
        found = tasks_worth_giving(tasks, queued, work.known_task_seconds, slots, free)
        text = f"its tasks start after about {seconds_text(plan.manager.dispatch_seconds)}"
        if not found:
            plan.idle_reason = f"{text}, and other slots finish {work} about as soon"
            continue
        taken = plan.use(found)
        plan.worth += taken
        taken += plan.grow(found - taken)
        tasks, queued = tasks - taken, queued - taken
        plan.reasons.append(f"{work}, {taken:,} of them here; {text}")


class _Assignment:
    """Assigns work to managers whose tasks start without delay: to existing slots, then to new units."""

    def __init__(self, work: Work, plans: Sequence[CapacityPlan], constraints: Constraints) -> None:
        self._work, self._plans = work, plans
        self._tasks, self._task_seconds = math.ceil(work.tasks * work.slots_each), work.task_seconds
        self._finish_seconds = constraints.get("finish_seconds")
        self._idle_seconds = min(
            [IDLE_SHARE * constraints.cooldown(plan) for plan in plans if not plan.manager.fixed], default=0.0
        )
        self._existing = [batch for plan in plans for batch in plan.free]
        self._present = sum(batch.slots for batch in self._existing)
        self._most = self._tasks if self._finish_seconds is not None else work.most_slots(self._tasks)
        self._room = max(0, self._most - self._present)
        # Managers that cannot start units rank last, but still get requests so that they retry.
        self._to_grow = sorted(plans, key=lambda plan: bool(plan.manager.trouble))
        self._addable = [plan.growth(self._room) for plan in self._to_grow]

    def assign(self) -> None:
        work, task_seconds, most = self._work, self._task_seconds, self._most
        if self._finish_seconds is None and any(batch.least_seconds for batch in self._addable):
            self._keep_what_pays_off()
        within, is_enough = self._completion()
        if math.isinf(within):
            return
        if not work.unmeasured_tasks:
            self._note_worth()
        left, is_guess = self._tasks, bool(work.unmeasured_tasks)
        for plan in self._plans:
            before = plan.used
            helpful = sum(batch.slots for batch in plan.free if is_guess or batch.tasks_each(task_seconds, within))
            left -= plan.run(left, task_seconds, within)
            if self._finish_seconds is None:
                most -= plan.used - before
                most -= plan.use(max(0, min(most, helpful - (plan.used - before))))
        if not is_enough:
            self._grow(left, within, is_guess=is_guess and self._finish_seconds is None)

    def _soonest(self, batches: Sequence[SlotBatch]) -> float:
        return soonest_seconds(batches, self._tasks, self._task_seconds)

    def _keep_what_pays_off(self) -> None:
        """Exclude units with a minimum charge longer than the work, unless the work takes much longer without them."""
        soonest = self._soonest([*self._existing, *self._addable])
        kept = [
            (plan, batch)
            for plan, batch in zip(self._to_grow, self._addable, strict=True)
            if batch.least_seconds <= soonest + self._idle_seconds
        ]
        others = [batch for plan, batch in kept if not plan.manager.trouble]
        if self._soonest([*self._existing, *others]) <= MUCH_LONGER * soonest:
            self._to_grow, self._addable = [plan for plan, _ in kept], [batch for _, batch in kept]

    def _completion(self) -> tuple[float, bool]:
        """Return the target completion time (infinite without slots), and whether existing slots suffice."""
        existing, finish_seconds = self._existing, self._finish_seconds
        within = self._soonest([*existing, *self._addable])
        if math.isinf(within):
            return within, False
        if self._work.unmeasured_tasks and finish_seconds is None:
            is_enough = not self._room
        else:
            within = LATER * within if finish_seconds is None else max(finish_seconds, within)
            is_enough = tasks_done(existing, self._task_seconds, TOLERANCE * within) >= self._tasks
        if is_enough:
            # Pending units may start later than expected, so use all existing slots that help.
            within = max(finish_seconds or 0.0, self._soonest(existing))
        return within, is_enough

    def _note_worth(self) -> None:
        """Record the slots worth keeping: enough to finish this work as soon as newly started units would."""
        tasks, task_seconds = self._tasks, self._task_seconds
        most_slots = self._present + sum(batch.slots for batch in self._addable)
        for plan in self._plans:
            fresh = soonest_seconds([SlotBatch(most_slots, plan.startup)], tasks, task_seconds)
            batch = SlotBatch(sum(each.slots for each in plan.free), 0.0)
            slots = batch.slots_for(tasks, task_seconds, fresh)
            plan.worth += slots
            tasks -= slots * batch.tasks_each(task_seconds, fresh)

    def _grow(self, left: int, within: float, *, is_guess: bool) -> None:
        work, room, capacity = self._work, self._room, list(self._existing)
        for plan in self._to_grow:
            each = plan.growth(1).tasks_each(work.task_seconds, within)
            slots = min(room, math.ceil(left / each)) if each and left > 0 else 0
            if is_guess:
                # Use all allowed slots, unless existing slots finish the work before a new unit has started.
                done = tasks_done(capacity, work.task_seconds, plan.startup)
                slots = room if done < self._tasks else 0
            taken = plan.grow(slots)
            if taken:
                plan.reasons.append(f"{work}, {seconds_text(plan.startup)} to start a unit")
            capacity.append(SlotBatch(taken, plan.startup))
            room, left = room - taken, left - each * taken
