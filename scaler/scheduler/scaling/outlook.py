"""Describes in one sentence which workers or worker managers could run tasks with given needs. Pure.

Sentences begin with their subject and have no full stop, so that callers can append them to other text.
"""

from __future__ import annotations

from scaler.grammar import counted, listed
from scaler.needs import CPUS, MEMORY, Needs, Offers, with_amount
from scaler.protocol.messages import UnitState
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import Worker
from scaler.scheduler.scaling.units import ManagerUnits

MAX_NAMED = 3


def managers_of(state: ClusterState) -> list[ManagerUnits]:
    """Return all worker managers, in order of joining."""
    return [record for record in state.managers.values() if isinstance(record, ManagerUnits)]


def outlook(state: ClusterState, needs: Needs) -> str:
    """Return a text on what ready tasks with these needs wait for. O(workers)."""
    fitting = [worker for worker in state.workers.values() if needs.fits(worker.offers)]
    slots = sum(worker.slots for worker in fitting if worker.is_willing)
    parts = [f"{counted(slots, 'slot')} can run such tasks"] if slots else _unwilling(fitting)
    could = [manager for manager in managers_of(state) if needs.fits(manager.offers)]
    if not could and not fitting:
        parts.append(_no_candidate(state, needs))
    if slots:
        could = [each for each in could if each.pending or each.limited or each.is_late or each.trouble]
    now = state.own_time(state.now)
    return "; ".join([*parts, *(_prospect(manager, now, is_awaited=True) for manager in could[:MAX_NAMED])])


def unservable(state: ClusterState, needs: Needs) -> str:
    """Return a warning for clients whose tasks no worker or manager can run now; empty if one can, or none is here."""
    here = _offers(state)
    if not here or any(map(needs.fits, here)):
        return ""
    known = listed(sorted({offers.text(needs) or "none" for offers in here}), MAX_NAMED)
    options = [f"{name}=..." for name, _ in needs.items if name in (CPUS, MEMORY)] or ["capabilities=..."]
    return (
        f"tasks that need {needs} wait: {_no_candidate(state, needs)}. Offered are: {known}. "
        f"Ask for less in {listed(options, len(options))}, or start workers with --per-worker-capabilities {needs}"
    )


def without_workers(state: ClusterState) -> str:
    """Return why no worker is connected and what starts one, as `TITLE: TEXT`; empty if there are workers."""
    if state.workers:
        return ""
    managers = managers_of(state)
    if not managers:
        return "No workers: no worker manager is connected that could start any"
    waiting = state.ready.waiting()
    if waiting:
        return f"Tasks wait for workers: {outlook(state, waiting[0].needs)}"
    now = state.own_time(state.now)
    text = "; ".join(_prospect(manager, now, is_awaited=False) for manager in managers[:MAX_NAMED])
    if any(manager.pending for manager in managers):
        return f"Workers are starting: {text}"
    return f"Idle: workers start when tasks arrive; {text}" if any(map(_may_start, managers)) else f"No workers: {text}"


def _prospect(manager: ManagerUnits, now: float, *, is_awaited: bool) -> str:
    """Return the state of a worker manager's workers. is_awaited: tasks wait for them."""
    name = f"worker manager {manager.name}"
    if manager.broken_at is not None:
        return f"{name} is out of contact"
    if manager.status is None:
        return f"{name} has just connected"
    if manager.pending:
        return f"{name} {_starting(manager, now)}"
    if manager.trouble:
        return f"{name} cannot start units now: {manager.trouble}"
    if manager.details.fixed:
        return f"{name} runs a fixed number of workers, none of which accepts tasks now{_after(manager)}"
    if manager.wanted is None:
        return f"the scaling policy has not said how many units {name} should have"
    if manager.limited:
        return f"{name} starts no more units: {manager.limited}"
    if is_awaited and not manager.wanted_for_tasks:
        return f"the scaling policy is about to decide on {name}"
    missing = manager.wanted.units - len(manager.running)
    if missing > 0:
        return f"{name} is about to start {counted(missing, 'unit')}"
    if is_awaited or not _may_start(manager):
        return f"the scaling policy wants {counted(manager.wanted.units, 'unit')} of {name}: {manager.wanted.reason}"
    most = manager.wanted.most_units
    return f"{name} may start " + ("any number of units" if most is None else f"up to {counted(most, 'unit')}")


def _starting(manager: ManagerUnits, now: float) -> str:
    pending = manager.pending
    oldest = max(unit.age_seconds for unit in pending) + now - manager.status_at
    why = next((f": {unit.reason}" for unit in pending if unit.reason), "") or _after(manager)
    why += f"; it cannot start more now: {manager.trouble}" if manager.trouble else ""
    if all(unit.state is UnitState.WAITING for unit in pending):
        return f"has had {counted(len(pending), 'unit')} in a queue for {oldest:.0f} s{why}"
    usual = f" of about {manager.startup_seconds:.0f} s" if manager.startup_seconds is not None else ""
    first = "its first unit" if not manager.running else counted(len(pending), "unit")
    return f"has been starting {first} for {oldest:.0f} s{usual}{why}"


def _after(manager: ManagerUnits) -> str:
    return f"; its last unit that failed: {manager.last_failure}" if manager.last_failure else ""


def _may_start(manager: ManagerUnits) -> bool:
    is_well = manager.broken_at is None and manager.status is not None and not manager.trouble
    return is_well and not manager.details.fixed and manager.wanted is not None and manager.wanted.most_units != 0


def _unwilling(fitting: list[Worker]) -> list[str]:
    broken = sum(worker.broken_at is not None for worker in fitting)
    counts = ((broken, "out of contact"), (len(fitting) - broken, "about to end"))
    how = ", ".join(f"{counted(count, 'worker')} {text}" for count, text in counts if count)
    why = next((f": {each.reports.degraded_reason}" for each in fitting if each.reports.degraded_reason), "")
    return [f"no worker can run such tasks now ({how}){why}"] if how else []


def _offers(state: ClusterState) -> list[Offers]:
    return [*(each.offers for each in managers_of(state)), *(each.offers for each in state.workers.values())]


def _no_candidate(state: ClusterState, needs: Needs) -> str:
    if not needs.items or not (state.workers or state.managers):
        return "no worker and no worker manager is connected"
    known: dict[str, float] = {}
    for offer in _offers(state):
        for name, amount in offer.amounts.items():
            known[name] = max(amount, known.get(name, amount))
    short = [
        f"no more than {with_amount(name, known[name])}"
        for name, amount in needs.items
        if known.get(name, amount) < amount
    ]
    short += [f"no {name}" for name, _ in needs.items if name not in known]
    because = f": there is {listed(short, len(short))}" if short else ""
    return f"no worker offers {needs}, and no worker manager could start one that does{because}"
