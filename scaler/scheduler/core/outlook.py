"""Describes in one sentence which workers or worker managers could run tasks with given needs. Pure.

Sentences begin with their subject and have no full stop, so that callers can append them to other text.
"""

from __future__ import annotations

from scaler.grammar import counted, listed
from scaler.needs import CPUS, MEMORY, Needs, with_amount
from scaler.protocol.messages import UnitState
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import ManagerRecord, Worker

MAX_NAMED = 3


def outlook(state: ClusterState, needs: Needs, now: float) -> str:
    """Return a text on what ready tasks with these needs wait for. now: core time. O(workers)."""
    fitting = [worker for worker in state.workers.values() if needs.fits(worker.offers)]
    slots = sum(worker.slots for worker in fitting if worker.is_willing)
    parts = [f"{counted(slots, 'slot')} can run such tasks"] if slots else _unwilling(fitting)
    could = [record for record in state.managers.values() if needs.fits(record.offers)]
    if not could and not fitting:
        parts.append(_no_candidate(state, needs))
    starting = [record for record in could if _explains(record)] if slots else could
    return "; ".join([*parts, *(prospect(record, now, is_awaited=True) for record in starting[:MAX_NAMED])])


def _explains(record: ManagerRecord) -> bool:
    return bool(record.pending_units or record.limited or record.is_late or record.trouble)


def unservable(state: ClusterState, needs: Needs) -> str:
    """Return a warning for clients whose tasks no worker or manager can run now; empty if one can, or none is here."""
    here = [each.offers for each in state.managers.values()] + [each.offers for each in state.workers.values()]
    if not here or any(map(needs.fits, here)):
        return ""
    known = listed(sorted({offers.text(needs) or "none" for offers in here}), MAX_NAMED)
    options = [f"{name}=..." for name, _ in needs.items if name in (CPUS, MEMORY)] or ["capabilities=..."]
    return (
        f"tasks that need {needs} wait: {_no_candidate(state, needs)}. Offered are: {known}. "
        f"Ask for less in {listed(options, len(options))}, or start workers with --per-worker-capabilities {needs}"
    )


def without_workers(state: ClusterState, now: float) -> str:
    """Return why no worker is connected and what starts one, as `TITLE: TEXT`; empty if there are workers."""
    if state.workers:
        return ""
    records = list(state.managers.values())
    if not records:
        return "No workers: no worker manager is connected that could start any"
    waiting = state.ready.waiting()
    if waiting:
        return f"Tasks wait for workers: {outlook(state, waiting[0].needs, now)}"
    text = "; ".join(prospect(record, now, is_awaited=False) for record in records[:MAX_NAMED])
    if any(record.pending_units for record in records):
        return f"Workers are starting: {text}"
    return f"Idle: workers start when tasks arrive; {text}" if any(map(_may_start, records)) else f"No workers: {text}"


def prospect(record: ManagerRecord, now: float, *, is_awaited: bool) -> str:
    """Return the state of a worker manager's workers. is_awaited: tasks wait for them."""
    name = f"worker manager {record.name}"
    if record.broken_at is not None:
        return f"{name} is out of contact"
    if record.status is None:
        return f"{name} has connected just now"
    pending = record.pending_units
    if pending:
        oldest = max(unit.age_seconds for unit in pending) + now - record.status_at
        why = next((f": {unit.reason}" for unit in pending if unit.reason), "") or _after(record)
        why += f"; it cannot start more now: {record.trouble}" if record.trouble else ""
        if all(unit.state is UnitState.WAITING for unit in pending):
            return f"{name} has had {counted(len(pending), 'unit')} in a queue for {oldest:.0f} s{why}"
        usual = f" of about {record.startup_seconds:.0f} s" if record.startup_seconds is not None else ""
        first = "its first unit" if not record.running_units else counted(len(pending), "unit")
        return f"{name} has been starting {first} for {oldest:.0f} s{usual}{why}"
    if record.trouble:
        return f"{name} cannot start units now: {record.trouble}"
    if record.details.fixed:
        return f"{name} runs a fixed number of workers, none of which takes tasks now{_after(record)}"
    if record.wanted is None:
        return f"the scaling policy has not said how many units {name} should have"
    if record.limited:
        return f"{name} starts no more units: {record.limited}"
    if is_awaited and not record.wanted_for_tasks:
        return f"the scaling policy is about to decide about {name}"
    missing = record.wanted.units - len(record.running_units)
    if missing > 0:
        return f"{name} is about to start {counted(missing, 'unit')}"
    if is_awaited or not _may_start(record):
        return f"the scaling policy wants {counted(record.wanted.units, 'unit')} of {name}: {record.wanted.reason}"
    most = record.wanted.most_units
    return f"{name} may start " + ("any number of units" if most is None else f"up to {counted(most, 'unit')}")


def _after(record: ManagerRecord) -> str:
    return f"; its last unit that failed: {record.last_failure}" if record.last_failure else ""


def _may_start(record: ManagerRecord) -> bool:
    is_well = record.broken_at is None and record.status is not None and not record.trouble
    return is_well and not record.details.fixed and record.wanted is not None and record.wanted.most_units != 0


def _unwilling(fitting: list[Worker]) -> list[str]:
    broken = sum(worker.broken_at is not None for worker in fitting)
    counts = ((broken, "out of contact"), (len(fitting) - broken, "about to end"))
    how = ", ".join(f"{counted(count, 'worker')} {text}" for count, text in counts if count)
    why = next((f": {each.reports.degraded_reason}" for each in fitting if each.reports.degraded_reason), "")
    return [f"no worker can take such tasks now ({how}){why}"] if how else []


def _no_candidate(state: ClusterState, needs: Needs) -> str:
    if not needs.items or not (state.workers or state.managers):
        return "no worker and no worker manager is connected"
    known: dict[str, float] = {}
    offers = [record.offers for record in state.managers.values()]
    for offer in offers + [worker.offers for worker in state.workers.values()]:
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
