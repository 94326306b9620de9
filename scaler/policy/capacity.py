"""Work, its completion times, affordable units, a manager's slots during planning, and delays of stops. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scaler.grammar import called, counted, listed
from scaler.needs import Needs
from scaler.policy.view import Demand, ManagerView

ASSUMED_STARTUP_SECONDS = 4.0
QUEUE_SHARE = 0.25  # weight of queue time in the cost of stopping a unit too early, as queueing costs time but no money
PENDING_STEPS = 10  # pending units are grouped by tenths of the start-up time
TIME_EXPONENT = 2.0  # weight of time against cost: finishing 10 % sooner may cost 20 % more
DECISION_SECONDS = 1.0  # completion times closer than this count as equal, because decisions are this far apart
TIMES_COMPARED = 24
LONGEST = 8.0  # longest completion time considered, as a multiple of the shortest
SOONER_SHARE = 0.8  # late slots are used only if work then ends within this share of the time without them
_PRECISION = 0.01
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class SlotBatch:
    """Slots available after from_seconds. least_seconds: minimum charge. dispatch_seconds: added to each task's
    duration."""

    slots: int
    from_seconds: float
    least_seconds: float = 0.0
    dispatch_seconds: float = 0.0

    def tasks_each(self, task_seconds: float, within_seconds: float) -> int:
        return max(
            0, math.floor((within_seconds - self.from_seconds) / (task_seconds + self.dispatch_seconds) + _ROUNDING)
        )

    def slots_for(self, tasks: int, task_seconds: float, within_seconds: float) -> int:
        each = self.tasks_each(task_seconds, within_seconds)
        return min(self.slots, math.ceil(tasks / each)) if each and tasks > 0 else 0


def tasks_done(batches: Sequence[SlotBatch], task_seconds: float, within_seconds: float) -> int:
    return sum(batch.slots * batch.tasks_each(task_seconds, within_seconds) for batch in batches)


def soonest_seconds(batches: Sequence[SlotBatch], tasks: int, task_seconds: float) -> float:
    """Return the shortest time to run all tasks, at most 1 % too long; infinite without slots."""
    present = [batch for batch in batches if batch.slots > 0]
    if not present or not tasks:
        return math.inf if tasks else 0.0
    high = min(
        batch.from_seconds + (task_seconds + batch.dispatch_seconds) * math.ceil(tasks / batch.slots)
        for batch in present
    )
    low = min(batch.from_seconds for batch in present)
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if tasks_done(present, task_seconds, middle) >= tasks:
            high = middle
        else:
            low = middle
    return high


def best_seconds(
    existing: Sequence[SlotBatch], addable: Sequence[SlotBatch], tasks: int, task_seconds: float, idle_seconds: float
) -> float:
    """Return the completion time with the best trade-off between time and cost; infinite without slots."""
    soonest = soonest_seconds([*existing, *addable], tasks, task_seconds) + DECISION_SECONDS
    if math.isinf(soonest):
        return soonest
    without = soonest_seconds(existing, tasks, task_seconds) + DECISION_SECONDS
    longest = min(without, LONGEST * soonest)
    best, lowest = soonest, math.inf
    for step in range(TIMES_COMPARED + 1):
        within = soonest * (longest / soonest) ** (step / TIMES_COMPARED)
        found = penalty(existing, addable, tasks, task_seconds, within, idle_seconds)
        if found < lowest:
            best, lowest = within, found
    return best


def penalty(
    existing: Sequence[SlotBatch],
    addable: Sequence[SlotBatch],
    tasks: int,
    task_seconds: float,
    within: float,
    idle_seconds: float,
) -> float:
    """Return the penalty of time and cost with the fewest added slots; infinite if all slots are too few."""
    left = tasks - tasks_done(existing, task_seconds, within)
    paid = sum(batch.slots for batch in existing) * (within + idle_seconds)
    for batch in addable:
        taken = batch.slots_for(left, task_seconds, within)
        left -= taken * batch.tasks_each(task_seconds, within)
        paid += taken * max(batch.least_seconds, within + idle_seconds)
    return within**TIME_EXPONENT * paid if left <= 0 else math.inf


def tasks_worth_giving(
    tasks: int, queued: int, task_seconds: float, others: Sequence[SlotBatch], late: Sequence[SlotBatch]
) -> int:
    """Return how many queued tasks to dispatch to late slots now, at most one per slot.

    A late slot receives a task before it can start it. The task is paid for and cannot be recalled, so late slots get
    tasks only if all work ends a fifth sooner, or if there are no other slots. tasks: all unfinished tasks except on
    late slots; queued: the unstarted ones among them.
    """
    free = min(queued, sum(batch.slots for batch in late))
    if free <= 0:
        return 0
    if not any(batch.slots > 0 for batch in others):
        return free
    alone = soonest_seconds(others, tasks, task_seconds)
    together = soonest_seconds([*others, *late], tasks, task_seconds)
    if together > SOONER_SHARE * alone:
        return 0
    return min(free, max(0, tasks - tasks_done(others, task_seconds, together)))


def startup_seconds(manager: ManagerView) -> float:
    """Return seconds from start to worker, including the queue: measured, usual, or estimated."""
    queued = max(0.0, manager.queue_seconds or 0.0)
    if manager.startup_seconds is not None:
        return queued + max(0.0, manager.startup_seconds)
    usual = manager.usual_startup_seconds or ASSUMED_STARTUP_SECONDS
    return max(queued + usual, *manager.pending_ages, 0.0)


@dataclass(slots=True)
class Budget:
    """Cost per hour that can still be added; infinite without a ceiling."""

    left: float = math.inf


class CapacityPlan:
    """A manager's slots during planning. limit_units: maximum units; None: unlimited. committed_units: existing and
    wanted units, already deducted from the budget. Invariant: used and free slots add up to the existing ones."""

    def __init__(
        self, manager: ManagerView, limit_units: int | None, budget: Budget, price: float, committed_units: int
    ) -> None:
        self.manager = manager
        self.startup = startup_seconds(manager)
        self.back_seconds = self.startup - max(0.0, manager.queue_seconds or 0.0) * (1 - QUEUE_SHARE)
        """Cost of replacing a stopped unit, as idle time."""
        self.is_paid = price > 0 and not manager.charges_tasks
        self.paid_seconds = 0.0 if manager.charges_tasks else max(0.0, manager.unit_minimum_seconds - self.startup)
        self.used = 0
        self.worth = 0  # slots worth keeping; fewer than the used slots if those finish the work very soon
        self.grown = 0
        self.useful = 0  # slots that would help, but do not justify starting units
        self.reasons: list[str] = []
        self.idle_reason = "no work"
        self.limit = ""  # why no more units start, or ""
        self.committed_units = committed_units
        self._limit_units = limit_units
        self._budget = budget
        self._price = price
        self._committed_free = max(0, committed_units - manager.units)
        self._growth_used = 0
        tick = self.startup / PENDING_STEPS
        pending = Counter(
            max(1, math.ceil(max(0.0, self.startup - age) / tick)) if tick > 0 else 0 for age in manager.pending_ages
        )
        units = [(0, manager.units_running), *sorted(pending.items())]
        late = manager.dispatch_seconds
        self.free = [SlotBatch(count * manager.unit_slots, ticks * tick, 0.0, late) for ticks, count in units]
        """Slots of running units, then of pending units in order of start."""

    @property
    def may_run(self) -> bool:
        return bool(self.manager.units) or (self.most_units != 0 and not self.manager.trouble)

    def use(self, slots: int) -> int:
        missing = slots
        for index, batch in enumerate(self.free):
            missing -= self._use(index, min(missing, batch.slots))
        return slots - missing

    def run(self, tasks: int, task_seconds: float, within_seconds: float) -> int:
        left = tasks
        for index, batch in enumerate(self.free):
            each = batch.tasks_each(task_seconds, within_seconds)
            left -= each * self._use(index, batch.slots_for(left, task_seconds, within_seconds))
        return tasks - max(0, left)

    def _use(self, index: int, slots: int) -> int:
        batch = self.free[index]
        self.free[index] = replace(batch, slots=batch.slots - slots)
        self.used += slots
        return slots

    def reserve(self, units: int) -> None:
        if self.manager.fixed:
            return
        limit = units if self.manager.max_units is None else min(units, self.manager.max_units)
        if limit > self.manager.units:
            self._start(int(min(limit - self.manager.units, self._affordable())))
            self.reasons.append(f"the minimum is {units}")

    def growth(self, max_slots: int, reserved: float = 0.0) -> SlotBatch:
        least = self.manager.unit_minimum_seconds
        if self.manager.fixed:
            return SlotBatch(0, self.startup, least, self.manager.dispatch_seconds)
        step = self.manager.unit_slots
        units = self._affordable(reserved)
        if self._limit_units is not None:
            units = min(units, max(0, self._limit_units - self.manager.units - self.grown))
        slots = int(min(max_slots, self.grown * step - self._growth_used + units * step))
        return SlotBatch(slots, self.startup, least, self.manager.dispatch_seconds)

    def note_useful(self, slots: int) -> int:
        """Record slots that would help but do not justify new units. Returns how many could be added."""
        taken = self.growth(max(0, slots)).slots
        self.useful += taken
        return taken

    def grow(self, slots: int) -> int:
        taken = self.growth(max(0, slots)).slots
        step = self.manager.unit_slots
        self._start(math.ceil(max(0, taken - (self.grown * step - self._growth_used)) / step))
        self._growth_used += taken
        if taken < slots:
            self.limit = "the spend limit is reached" if self._affordable() < 1 else "its limit is reached"
        return taken

    @property
    def most_units(self) -> int | None:
        affordable = self.manager.units + self.grown + self._affordable()
        limit = math.inf if self._limit_units is None else self._limit_units
        most = min(affordable, limit)
        return None if math.isinf(most) else int(most)

    def cost(self, growth: SlotBatch) -> float:
        return max(0, math.ceil(growth.slots / self.manager.unit_slots) - self._committed_free) * self._price

    def _affordable(self, reserved: float = 0.0) -> float:
        """Return how many more units the budget allows. reserved: budget kept for other managers."""
        left = self._budget.left - reserved
        if self._price <= 0 or math.isinf(left):
            return math.inf
        return self._committed_free + max(0, math.floor(left / self._price + _ROUNDING))

    def _start(self, units: int) -> None:
        self.grown += units
        paid = min(units, self._committed_free)
        self._committed_free -= paid
        self._budget.left -= (units - paid) * self._price


MAX_FUNCTIONS_NAMED = 2
MANY_ENDED = 20  # minimum number of finished tasks between two views for a rate with an error below 50 %
SLOT_SECONDS = 5.5  # amount of work that justifies a slot
ASSUMED_SECONDS = 0.5  # assumed task duration before any task has finished


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

    def add(self, row: Demand, first_slots: int = 0) -> None:
        """Add the tasks of a function. first_slots: initial slots for unmeasured tasks, however short they may be."""
        tasks = row.early
        self.tasks += tasks
        self.queued += row.queued
        self.late += row.late
        self.busy_slots += row.busy_slots * self.slots_each
        self.ended_per_second += row.ended_per_second
        self.functions.append(row.function)
        if row.task_seconds is not None:
            self.seconds += row.seconds(row.task_seconds)
            self.known_seconds += row.seconds(row.task_seconds)
            return
        assumed = ASSUMED_SECONDS if row.expected_seconds is None else row.expected_seconds
        self.unmeasured_tasks += tasks
        self.known_seconds += tasks * row.longest_seconds
        self.seconds += tasks * max(assumed, row.longest_seconds)
        self.assumed_seconds += tasks * max(assumed, row.longest_seconds)
        self.first_slots += min(tasks, first_slots)

    @property
    def known_task_seconds(self) -> float:
        return max(1e-6, self.known_seconds / max(1, self.tasks))

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


MIN_COOLDOWN_SECONDS = 3.0
MAX_COOLDOWN_SECONDS = 1800.0
RETURN_SHARE = 0.68  # cooldown as a share of the start-up time, within the bounds above
MAX_DOUBLED_SECONDS = 3600.0
SHORTAGE_SECONDS = 900.0  # how long a shortage of units keeps the cooldown doubled
LULL_SECONDS = 3.0
LULLS = 1.5  # minimum cooldown after a shortage, as a multiple of the preceding lull


class Cooldown:
    """Number of units of one manager to keep after a need has passed.

    A past need counts in full for half of the cooldown, then drops by a third per quarter, to nothing at the end. Units
    above this level are surplus. Thus a lull shorter than half of the cooldown stops no unit. After a burst, units stop
    in three steps, because the next burst becomes less likely with time. A shortage soon after a stop doubles the
    cooldown, so that recurring bursts find running units. Invariants: the level rises only with the need and is never
    below it; memory is bounded by one number per plan within the cooldown.
    """

    def __init__(self, units: int, now: float) -> None:
        self._needs: deque[tuple[float, int]] = deque(
            [(now, units)]
        )  # decreasing, because a need hides smaller earlier ones
        self._doublings = 0
        self.most_seconds = MAX_DOUBLED_SECONDS  # limit of cooldowns extended by shortages
        self._shrunk_at = -math.inf
        self._shortage_at = -math.inf
        self._needed_at = now
        self._lull = self._longest_lull = 0.0  # the last lull, and the longest before a shortage

    def seconds(self, usual: float) -> float:
        return max(usual, min(self.most_seconds, max(usual * 2.0**self._doublings, LULLS * self._longest_lull)))

    def level(self, needed: int, usual: float, now: float, *, has_work: bool) -> int:
        """Return the number of units to keep for this need. Call at every plan."""
        if now - self._shortage_at > SHORTAGE_SECONDS:
            self._doublings, self._longest_lull = 0, 0.0
        if has_work:
            if now - self._needed_at > LULL_SECONDS:
                self._lull = now - self._needed_at
            self._needed_at = now
        cooldown = self.seconds(usual)
        needs = self._needs
        while needs and needs[-1][1] <= needed:
            needs.pop()
        needs.append((now, needed))
        while len(needs) > 1 and needs[0][0] <= now - cooldown:
            needs.popleft()
        return needs[0][1]

    def shrunk(self, now: float) -> None:
        self._shrunk_at = now

    def grew(self, usual: float, now: float) -> None:
        if now - self._shrunk_at <= 2 * self.seconds(usual):
            self._doublings = min(self._doublings + 1, 16)
            self._longest_lull = max(self._longest_lull, self._lull)
            self._shortage_at = now
            self._shrunk_at = -math.inf


def cooldown_seconds(startup: float) -> float:
    return min(MAX_COOLDOWN_SECONDS, max(MIN_COOLDOWN_SECONDS, RETURN_SHARE * startup))
