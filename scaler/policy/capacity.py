"""Models for planning: work and its completion time, and a manager's slots, growth, and cooldown. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scaler.grammar import called, counted, listed
from scaler.needs import Needs
from scaler.policy.view import Demand, ManagerView

ASSUMED_STARTUP_SECONDS = 4.0
QUEUE_SHARE = 0.25  # weight of queue time in the cost of replacing a unit, because a queued unit costs no money
PENDING_STEPS = 10  # pending units are grouped by tenths of the start-up time
SOONER_SHARE = 0.8  # late slots are used only if they reduce the completion time to this share
_PRECISION = 0.01
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class SlotBatch:
    """Slots available after from_seconds. least_seconds: minimum charge. dispatch_seconds: delay of each task."""

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
    """Return the shortest time to run all tasks, overestimated by at most 1 %. Infinite without slots."""
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


def tasks_worth_giving(
    tasks: int, queued: int, task_seconds: float, others: Sequence[SlotBatch], late: Sequence[SlotBatch]
) -> int:
    """Return the number of queued tasks to dispatch to late slots now, at most one per slot.

    A task on a late slot starts after a delay, but is paid for and cannot be recalled. Late slots therefore get tasks
    only if all work ends 20 % sooner, or if there are no other slots. tasks: unfinished tasks that are not on late
    slots. queued: the tasks among them that have not started.
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
    """Return the measured or estimated time from a unit's request to its worker's connection, including queue time."""
    queued = max(0.0, manager.queue_seconds or 0.0)
    if manager.startup_seconds is not None:
        return queued + max(0.0, manager.startup_seconds)
    usual = manager.usual_startup_seconds or ASSUMED_STARTUP_SECONDS
    return max(queued + usual, *manager.pending_ages, 0.0)


def replacement_seconds(manager: ManagerView) -> float:
    """Return the cost of replacing a stopped unit, in seconds of idle time."""
    return startup_seconds(manager) - max(0.0, manager.queue_seconds or 0.0) * (1 - QUEUE_SHARE)


class CapacityPlan:
    """One manager's slots during planning. most_units: maximum units; None: unlimited. Invariant: every existing slot
    is used or free."""

    def __init__(self, manager: ManagerView, most_units: int | None) -> None:
        self.manager = manager
        self.startup = startup_seconds(manager)
        self.back_seconds = replacement_seconds(manager)
        self.used = 0
        self.worth = 0  # slots worth keeping, fewer than `used` if the work ends very soon
        self.grown = 0
        self.together = 0  # largest number of units started for one gang
        self.reasons: list[str] = []
        self.idle_reason = "no work"
        self.is_at_limit = False  # the work needs more units than the limit allows
        self.most_units = most_units
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

    def growth(self, max_slots: int) -> SlotBatch:
        """Return at most max_slots slots of units that this plan starts or could start."""
        step, least = self.manager.unit_slots, self.manager.unit_minimum_seconds
        slots = 0 if self.manager.fixed else max_slots
        if self.most_units is not None:
            more = max(0, self.most_units - self.manager.units - self.grown)
            slots = min(slots, (self.grown + more) * step - self._growth_used)
        return SlotBatch(slots, self.startup, least, self.manager.dispatch_seconds)

    def grow(self, slots: int) -> int:
        taken = self.growth(max(0, slots)).slots
        step = self.manager.unit_slots
        self.grown += math.ceil(max(0, taken - (self.grown * step - self._growth_used)) / step)
        self._growth_used += taken
        self.is_at_limit |= taken < slots
        return taken


MAX_FUNCTIONS_NAMED = 2
MANY_ENDED = 20  # number of finished tasks between two views that makes a rate accurate within 50 %
SLOT_SECONDS = 5.5  # seconds of work that justify one more slot
ASSUMED_SECONDS = 0.5  # assumed task duration before any task has finished


@dataclass(slots=True)
class Work:
    """Unfinished tasks with the same needs, of any function, and the rate at which such tasks finish."""

    needs: Needs
    slots_each: float = 1.0  # slots that one task occupies, planned as this many one-slot tasks
    tasks: int = 0
    unmeasured_tasks: int = 0
    seconds: float = 0.0  # remaining time of all tasks on one slot
    known_seconds: float = 0.0  # like `seconds`, with the longest run time so far for each unmeasured task
    assumed_seconds: float = 0.0  # the part of `seconds` that is assumed for unmeasured tasks
    queued: int = 0
    late: int = 0  # tasks on late slots, not included in `tasks`
    first_slots: int = 0  # slots for unmeasured tasks, regardless of their assumed duration
    busy_slots: float = 0.0
    usually_busy: float = 0.0  # moving average of busy_slots over one start-up time
    ended_per_second: float = 0.0
    ended: float = 0.0  # tasks finished since the last view; too few make a rate meaningless
    functions: list[str] = field(default_factory=list)

    def add(self, row: Demand, first_slots: int = 0) -> None:
        """Add a function's tasks. first_slots: slots for unmeasured tasks, regardless of their assumed duration."""
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
        """True if most tasks start and finish between two plans, that is, more finish per second than exist at once."""
        return self.ended_per_second >= max(1, self.tasks) and self.seconds * self.ended_per_second <= self.ended

    def most_slots(self, tasks: int) -> int:
        return min(tasks, max(self.first_slots, math.ceil(self.seconds * self.slots_each / SLOT_SECONDS)))

    def __str__(self) -> str:
        names = list(dict.fromkeys(self.functions))
        of = listed([called(name) for name in names], MAX_FUNCTIONS_NAMED)
        work = f"{of} needing {self.needs}" if self.needs.items else of
        if self.passes:
            if self.ended < MANY_ENDED:
                return f"a few tasks of {work}, which finish as fast as they arrive"
            return f"about {counted(int(float(f'{self.ended_per_second:.2g}')), 'task')} of {work} per second"
        if not self.tasks and self.late:
            return f"{counted(self.late, 'task')} of {work} in transit"
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
LONGEST_IDLE = 3.0  # limit of extended cooldowns, as a multiple of the time to replace a unit
MIN_LONGEST_SECONDS, MAX_LONGEST_SECONDS = 10.0, 3600.0  # bounds of that limit
SHORTAGE_SECONDS = 900.0  # period for which a shortage of units extends the cooldown
LULL_SECONDS = 3.0
LULLS = 1.5  # minimum cooldown after a shortage, as a multiple of the preceding lull


class Cooldown:
    """Decides how many units of one manager to keep when fewer are needed.

    The level is the largest need within the cooldown. If units run short soon after a stop, the cooldown grows beyond
    the preceding lull, so that recurring bursts find running units. Invariants: the level rises only with the need and
    is never below it. Memory is bounded by one number per plan within the cooldown.
    """

    def __init__(self, units: int, now: float) -> None:
        self._needs: deque[tuple[float, int]] = deque([(now, units)])  # decreasing: a need removes smaller needs
        self.most_seconds = MAX_LONGEST_SECONDS  # limit of extended cooldowns
        self._shrunk_at = -math.inf
        self._shortage_at = -math.inf
        self._needed_at = now
        self._lull = self._longest_lull = 0.0  # the last lull, and the longest before a shortage

    def seconds(self, usual: float) -> float:
        return max(usual, min(self.most_seconds, LULLS * self._longest_lull))

    def level(self, needed: int, usual: float, now: float, *, has_work: bool) -> int:
        """Return the number of units to keep. Must be called for every plan."""
        if now - self._shortage_at > SHORTAGE_SECONDS:
            self._longest_lull = 0.0
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
            self._longest_lull = max(self._longest_lull, self._lull)
            self._shortage_at = now
            self._shrunk_at = -math.inf


def longest_idle_seconds(startup: float) -> float:
    return min(MAX_LONGEST_SECONDS, max(MIN_LONGEST_SECONDS, LONGEST_IDLE * startup))


def cooldown_seconds(startup: float) -> float:
    return min(MAX_COOLDOWN_SECONDS, max(MIN_COOLDOWN_SECONDS, RETURN_SHARE * startup))
