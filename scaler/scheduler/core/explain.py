"""Explains in one sentence why a task waits or how it ended, from the state of the cluster and its history.

For single questions: O(workers), and for a task in a queue O(tasks before it, up to MAX_COUNTED).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import assert_never

from scaler.ids import ID_BYTES
from scaler.needs import Needs
from scaler.protocol.messages import Outcome
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.facts import TasksEnded
from scaler.scheduler.core.state import (
    Assigned,
    Delayed,
    ManagerRecord,
    Ready,
    Recalled,
    Task,
    Terminated,
    Waiting,
    Worker,
)

MAX_COUNTED = 100_000
"""How many tasks before a ready one are counted at most."""
MAX_NAMED = 3
"""How many tasks or worker managers one sentence names."""
JUST_NOW_SECONDS = 0.1
MAX_TEXT = 2_000
"""Characters of the text of a failed task."""
UNKNOWN = "no such task is known: it ended too long ago to be remembered, or it never was"


def explain(state: ClusterState, task_id: bytes, now: float) -> str:
    """Return what a task waits for, what it does, or how it ended. now: the clock's time, as `step` takes it."""
    task = state.living_task(task_id) if len(task_id) == ID_BYTES else None
    if task is None:
        found = state.history.find(task_id)
        return _ended(*found, now) if found is not None else UNKNOWN
    now = state.own_time(now)
    match task.state:
        case Waiting(missing=missing):
            tasks = task.group.client.tasks
            names = [f"{tasks[reference].group.spec.name}()" for reference in task.references if reference in tasks]
            results = "result" if missing == 1 else "results"
            return f"it needs the {results} of {_count(missing, 'task')}: {_listed(list(dict.fromkeys(names)))}"
        case Ready():
            return _ready(state, task, now)
        case Delayed(until=until):
            return f"its last run failed ({_last_error(task)}): it runs again in {max(0.0, until - now):.1f} s"
        case Assigned(worker=worker):
            return _assigned(task, worker)
        case Recalled(worker=worker, cancel=True):
            return f"it is being cancelled on worker {worker.title}"
        case Recalled(worker=worker):
            return f"it waited behind others on worker {worker.title}, and is on its way to another one{_so_far(task)}"
        case Terminated():
            raise AssertionError("a task that ended is not among its client's tasks")
        case never:
            assert_never(never)


def _assigned(task: Task, worker: Worker) -> str:
    if task.id in worker.blocked:
        return f"it runs on worker {worker.title} and waits for tasks of its own{_so_far(task)}"
    before = takewhile(lambda other: other is not task, worker.tasks.values())
    ahead = sum(other.id not in worker.blocked for other in before)
    if worker.broken_at is not None:
        return f"it was sent to worker {worker.title}, which is out of contact{_so_far(task)}"
    if ahead < worker.slots:
        return f"it runs on worker {worker.title}{_so_far(task)}"
    behind = ahead - worker.slots + 1
    before_it = f"{_count(behind, 'task')} before it that {_is(behind)} not done"
    return f"it is on worker {worker.title}, with {before_it}{_so_far(task)}"


def _so_far(task: Task) -> str:
    """Return which attempt this is and why it is not the first; empty for a task without errors."""
    attempt = f"attempt {task.number} of {task.max_number}"
    return f"; this is {attempt}, after {_last_error(task)}" if task.error_texts else ""


def _ready(state: ClusterState, task: Task, now: float) -> str:
    needs = task.group.needs
    fitting = [worker for worker in state.workers.values() if needs.fits(worker.offers)]
    willing = [worker for worker in fitting if worker.is_willing]
    could = [record for record in state.managers.values() if needs.fits(record.offers)]
    parts = []
    if willing:
        if len(willing) > 1 and any(task.avoids(worker, now) for worker in willing):
            return f"it failed ({_last_error(task)}), and waits for another worker than that"
        before = state.ready.of(needs).before(task, MAX_COUNTED)
        line = f"{_count(before, 'task')} {_is(before)} before it" if before else "it is the next"
        if before >= MAX_COUNTED:
            line = f"more than {MAX_COUNTED:,} tasks are before it"
        slots = sum(worker.slots for worker in willing)
        parts.append(f"{line}, for {_count(slots, 'slot')} that could run it")
        if task.error_texts:
            parts.append(f"it runs again after {_last_error(task)}")
        could = [record for record in could if record.pending_units]
    else:
        if fitting:
            broken = sum(worker.broken_at is not None for worker in fitting)
            counts = ((broken, "out of contact"), (len(fitting) - broken, "about to end"))
            how = " and ".join(text for count, text in counts if count)
            parts.append(f"{_count(len(fitting), 'worker')} could run it, but {_is(len(fitting))} {how}")
        if not could:
            parts.append(_no_candidate(state, needs, bool(fitting)))
    return "; ".join([*parts, *(_manager(record, now) for record in could[:MAX_NAMED])])


def _no_candidate(state: ClusterState, needs: Needs, is_known: bool) -> str:
    if not needs.items:
        return "no worker manager is here" if is_known else "no worker and no worker manager is here"
    known: dict[str, float] = {}
    offers = [record.offers for record in state.managers.values()]
    for offer in offers + [worker.offers for worker in state.workers.values()]:
        for name, amount in offer.items:
            known[name] = max(amount, known.get(name, amount))
    short = [f"no more than {name}={known[name]:g}" for name, amount in needs.items if known.get(name, amount) < amount]
    short += [f"no {name}" for name, _ in needs.items if name not in known]
    because = f": there is {' and '.join(short)}" if short else ""
    others = "other worker" if is_known else "worker"
    return f"no {others} offers {needs}, and no worker manager could start one that does{because}"


def unservable(state: ClusterState, needs: Needs) -> str:
    """Return what to tell the clients of tasks that nothing here can run; empty when something can, or nothing is here.

    Their tasks are not refused: a worker that offers more may join at any time.
    """
    here = [each.offers for each in state.managers.values()] + [each.offers for each in state.workers.values()]
    if not here or any(map(needs.fits, here)):
        return ""
    known = _listed(sorted({str(offers) or "none" for offers in here}))
    return (
        f"tasks that need {needs} wait: {_no_candidate(state, needs, False)}. Offered are: {known}. "
        f"Ask for less in capabilities=..., or start workers with --per-worker-capabilities {needs}"
    )


def _manager(record: ManagerRecord, now: float) -> str:
    name = f"the worker manager {record.details.manager_id}"
    if record.broken_at is not None:
        return f"{name} is out of contact"
    if record.status is None:
        return f"{name} has just come"
    pending = record.pending_units
    if pending:
        oldest = max(unit.age_seconds for unit in pending) + now - record.status_at
        usual = f" of about {record.startup_seconds:.0f} s" if record.startup_seconds is not None else ""
        first = "its first unit" if not record.running_units else _count(len(pending), "unit")
        why = next((f" ({unit.reason})" for unit in pending if unit.reason), "")
        return f"{name} waits for {first}, {oldest:.0f} s{usual}{why}"
    if record.trouble:
        return f"{name} is in trouble: {record.trouble}"
    if record.details.fixed:
        return f"{name} has no worker that could run it, and starts only what it is configured to"
    if record.decision is None:
        return f"{name} has not been told how many units to start"
    if record.decision.units > len(record.running_units):
        return f"{name} is about to start {_count(record.decision.units - len(record.running_units), 'unit')}"
    return f"{name} is to have {record.decision.reason}"


def _ended(ended: TasksEnded, index: int, now: float) -> str:
    outcome = ended.outcomes[index]
    _, worker = ended.run_of(index)
    record = ended.record_of(index)
    attempt = f"attempt {record.attempt}"
    errors = [_line(text) for text in record.texts]
    age = now - ended.step_at
    when = "just now" if age < JUST_NOW_SECONDS else f"{_seconds(age)} ago"
    if worker:
        when += f" on worker {worker}"
    if record.failed_input is not None:
        return f"it {' '.join(ended.failure(index).text[:MAX_TEXT].split())}, {when}"
    match outcome:
        case Outcome.SUCCESS:
            earlier = f"; that was {attempt}, after {'; '.join(errors)}" if errors else ""
            return f"it ended {when}, and took {_seconds(ended.duration_us[index] * 1e-6)}{earlier}"
        case Outcome.CANCELLED:
            return f"it was cancelled {when}"
        case Outcome.EXCEPTION | Outcome.EXCEPTION_TO_RETRY:
            what = " ".join(ended.failure(index).text[:MAX_TEXT].split())
            before = [line for line in errors if not line.startswith(f"{attempt} ")]
            earlier = f"; before that, {'; '.join(before)}" if before else ""
            return f"it raised {what}, {when}, in {attempt}{earlier}"
        case _:
            return f"it failed {when}: {ended.failure(index).text[:MAX_TEXT]}"


def _seconds(seconds: float) -> str:
    if seconds < 0.1:
        return f"{max(0.0, seconds) * 1e3:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.0f} min"


def _last_error(task: Task) -> str:
    return _line(task.error_texts[-1]) if task.error_texts else "for a reason that is not known"


def _line(text: str) -> str:
    # What an interpreter wrote while it crashed follows in further lines.
    return text.partition("\n")[0]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(islice(names, MAX_NAMED)) + (f" and {more} more" if more > 0 else "")


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
