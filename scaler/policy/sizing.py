"""How many units each worker manager should have: the arithmetic that the built-in policies share.

Growing. Of measured work it is known when it would be done with more units (`forecast.py`). What is weighed is that
time against what the units cost until then. Existing ones are counted first, pending ones included. Nothing is started
for work that is done before a new unit could help, or not much later without it. Work of unknown length starts on a few
slots, and gets twice as many whenever its tasks have run for a while without one of them ending: long tasks soon have
all they can use, and tiny ones are measured before they do harm.

Shrinking. Units go that the work has not needed lately (`patience.py`): pending ones first, then idle ones.

Laws: a manager never gets more units than its limit; what is started is never more than may be spent; a busy unit never
goes; no manager grows and shrinks in one plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scaler.needs import Needs
from scaler.policy.forecast import Batch, best_seconds, soonest_seconds, tasks_done
from scaler.policy.patience import IDLE_SHARE, Patience, usual_seconds
from scaler.policy.room import Purse, Room, startup_seconds
from scaler.policy.view import ClusterView, ManagerView, Wanted
from scaler.policy.work import Trials, Work, seconds_text

FIRST_SLOTS = 8
"""Slots for work of unknown length at its beginning."""
PATIENT = 1.15
"""As long as work does not take this many times longer than it had better, nothing is started."""

FEW_SHARE = 0.9
"""As long as this share of the units is needed, none of them goes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A manager that may run some tasks. limit_units: the most units that it may have, None for any number."""

    manager: ManagerView
    limit_units: int | None


@dataclass(frozen=True, slots=True)
class Terms:
    """What a user may ask of a plan. Mappings are by manager id; prices are per unit and hour."""

    first_slots: int = FIRST_SLOTS
    finish_seconds: float | None = None
    """Work need not be done sooner than this; None: as soon as is worth its cost."""
    idle_seconds: Mapping[str, float] = field(default_factory=dict)
    """The patience with units that are not needed; where it is missing it follows from the start-up time."""
    minimum: Mapping[str, int] = field(default_factory=dict)
    price: Mapping[str, float] = field(default_factory=dict)
    ceiling: float = math.inf
    """What all units together may cost per hour."""

    def patience(self, room: Room) -> float:
        """Return for how long units stay that are not needed, in seconds."""
        return self.idle_seconds.get(room.manager.manager_id, usual_seconds(room.startup))


NO_TERMS = Terms()


class Sizing:
    """Plans for the whole cluster. Keeps how long unmeasured work has run, and what was needed and wanted lately."""

    __slots__ = ("_patience", "_seen", "_trials", "_wanted")

    def __init__(self) -> None:
        self._trials = Trials()
        self._patience: dict[str, Patience] = {}
        self._wanted: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def plan(
        self, view: ClusterView, choices: Mapping[Needs, Sequence[Choice]], terms: Terms = NO_TERMS
    ) -> dict[str, Wanted]:
        """Return what each manager that is not fixed should have.

        choices: for the needs of every demand, the managers that may run it, the preferred one first.
        """
        managers = {manager.manager_id: manager for manager in view.managers}
        # What was wanted and is not there yet may come at any time: it counts as spent.
        promised = {key: max(manager.units, self._held(manager)) for key, manager in managers.items()}
        prices = {key: terms.price.get(key, 0.0) for key in managers}
        if sum(promised[key] * prices[key] for key in managers) > terms.ceiling:
            promised = {key: manager.units for key, manager in managers.items()}
        purse = Purse(terms.ceiling - sum(promised[key] * prices[key] for key in managers))
        rooms = {key: Room(manager, purse, prices[key], promised[key]) for key, manager in managers.items()}
        for room in rooms.values():
            room.reserve(terms.minimum.get(room.manager.manager_id, 0))
        works = self._trials.works(
            view,
            terms.first_slots,
            lambda needs: min((startup_seconds(choice.manager) for choice in choices[needs]), default=0.0),
        )
        for work in sorted(works, key=lambda work: (len(choices[work.needs]), work.needs.items)):
            fitting = [(rooms[choice.manager.manager_id], choice.limit_units) for choice in choices[work.needs]]
            _lay_out(work, fitting, terms)
        wanted = {key: self._decide(room, terms, view.now) for key, room in rooms.items() if not room.manager.fixed}
        self._patience = {key: patience for key, patience in self._patience.items() if key in wanted}
        self._wanted = {key: answer.units for key, answer in wanted.items()}
        self._seen = {key: manager.units for key, manager in managers.items()}
        return wanted

    def _held(self, manager: ManagerView) -> int:
        """Return how many units were wanted last, of those that the manager may have now."""
        wanted = self._wanted.get(manager.manager_id, 0)
        return wanted if manager.max_units is None else min(wanted, manager.max_units)

    def _decide(self, room: Room, terms: Terms, now: float) -> Wanted:
        manager = room.manager
        patience = self._patience.setdefault(manager.manager_id, Patience(manager.units, now))
        before = min(room.promised, self._wanted.get(manager.manager_id, manager.units))
        usual = terms.patience(room)
        needed = math.ceil((room.used + room.wished) / manager.unit_slots)
        if room.grown or manager.units > max(before, self._seen.get(manager.manager_id, 0)):
            # Units that nobody asked for were here before this plan knew of them: after a restart, say.
            needed = manager.units + room.grown
        level = max(patience.level(needed, usual, now), terms.minimum.get(manager.manager_id, 0))
        if room.used and FEW_SHARE * before < level < before:
            level = before
        # Those that were lost, or could not be started yet, stay wanted as long as they were needed lately.
        wanted = max(manager.units + room.grown, min(before, level))
        leaving = min(wanted - level, len(manager.pending_ages) + len(manager.idle_seconds))
        if room.grown and wanted > before:
            patience.grew(usual, now)
        elif leaving > 0:
            patience.left(now)
            wanted -= leaving
        reasons = [*room.reasons, room.limit] if room.limit else room.reasons
        return Wanted(wanted, "; ".join(reasons) or _lull(wanted, patience.seconds(usual)))


def _lull(units: int, seconds: float) -> str:
    return f"no work; the last ones go after {seconds_text(seconds)} without any" if units else "no work"


def _lay_out(work: Work, choices: Sequence[tuple[Room, int | None]], terms: Terms) -> None:
    """Take slots for this work, and start units for what is missing."""
    # Those that cannot start units now are asked last, but they are asked: that keeps them trying.
    to_grow = sorted(choices, key=lambda choice: bool(choice[0].manager.trouble))
    words = str(work)
    used = {id(room): room.used for room, _ in choices}
    missing = work.trial_slots
    for room, _ in choices:
        missing -= room.use(missing)
    for room, limit_units in to_grow:
        if missing and (taken := room.grow(missing, limit_units)):
            missing -= taken
            room.reasons.append(f"{words}, begins on up to {work.trial_slots} slots")
    if work.measured_tasks:
        _lay_out_measured(work, choices, to_grow, terms)
    for room, _ in choices:
        if room.used > used[id(room)] and not any(reason.startswith(words) for reason in room.reasons):
            room.reasons.append(words)


def _lay_out_measured(
    work: Work,
    choices: Sequence[tuple[Room, int | None]],
    to_grow: Sequence[tuple[Room, int | None]],
    terms: Terms,
) -> None:
    tasks, task_seconds = work.measured_tasks, work.task_seconds
    here = [batch for room, _ in choices for batch in room.free]
    more: list[Batch] = []
    spent = 0.0
    for room, limit_units in to_grow:
        more.append(room.growth(limit_units, tasks, spent))
        spent += room.cost(more[-1])
    if terms.finish_seconds is None:
        idle = [IDLE_SHARE * terms.patience(room) for room, _ in choices if not room.manager.fixed]
        within = best_seconds(here, more, tasks, task_seconds, min(idle, default=0.0))
    else:
        within = max(terms.finish_seconds, soonest_seconds([*here, *more], tasks, task_seconds))
    if math.isinf(within):
        return
    is_enough = tasks_done(here, task_seconds, PATIENT * within) >= tasks
    for room, _ in choices:
        tasks -= room.run(tasks, task_seconds, within)
    for room, limit_units in to_grow:
        each = room.growth(limit_units, 1).tasks_each(task_seconds, within)
        slots = math.ceil(tasks / each) if each and tasks > 0 else 0
        taken = room.wish(slots, limit_units) if is_enough else room.grow(slots, limit_units)
        tasks -= each * taken
        if taken and not is_enough:
            start = f"{seconds_text(room.startup)} to start a unit"
            room.reasons.append(f"{work}, {start}, done in about {seconds_text(within)}")
