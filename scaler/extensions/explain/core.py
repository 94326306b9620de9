"""Explains in one sentence why a task waits or how it ended, and which workers or managers could run tasks.

Costs O(workers), plus O(MAX_COUNTED) for a queued task. Sentences begin with their subject and have no full stop, which
lets callers append them to other text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, assert_never

from scaler.config.setting import SettingsModel
from scaler.extensions.interface import SchedulerPart, sent_to
from scaler.grammar import called, counted, listed, timed
from scaler.ids import ID_BYTES
from scaler.monitor.messages import Explain, Explained
from scaler.needs import COUNTED, CPUS, MEMORY, Needs, Offers, with_amount
from scaler.protocol.messages import Notice, Outcome, UnitState
from scaler.scheduler.core.changes import TasksEnded
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.rooms import UNKNOWN, Explainer, Now
from scaler.scheduler.core.state import (
    Assigned,
    ClientRecord,
    Delayed,
    Ready,
    Recalled,
    Task,
    Terminated,
    Waiting,
    Worker,
)

MAX_COUNTED = 100_000
MAX_NAMED = 3
JUST_NOW_SECONDS = 0.1
MAX_TEXT = 2_000
HELD = "after a scheduler restart, it waits for reports from workers that may have it"
JOINING_SECONDS = 2.0
"""Seconds after the start for workers and managers to join before clients are warned."""
WARN_SECONDS = 0.5
"""Seconds between checks for tasks that no worker can run."""
MAX_WARNED = 100
"""Warnings per client."""


class Explanations(SchedulerPart, Explainer):
    questions = (Explain,)

    def __init__(self, _config: SettingsModel | None = None) -> None:
        self._warned: dict[bytes, set[Needs]] = {}

    def bound(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self.next_at = cluster.now + JOINING_SECONDS

    def explainer(self) -> Explanations:
        return self

    def why(self, task: bytes) -> str:
        return explain(self.cluster, task, self.cluster.now)

    def outlook(self, needs: Needs) -> str:
        return outlook(self.cluster, needs)

    def without_workers(self) -> str:
        return without_workers(self.cluster)

    def on_question(self, question: Explain, client: ClientRecord, state: ClusterState) -> Explained:
        task = question.task
        return Explained(task, explain(state, task, state.now) if state.may_see(client, task) else UNKNOWN)

    def on_time(self, now: Now) -> Iterable[Command]:
        """Warn clients whose tasks no worker or manager can run, once per client and requirement."""
        self.next_at = now.clock + WARN_SECONDS
        clients = self.cluster.clients
        self._warned = {client: warned for client, warned in self._warned.items() if client in clients}
        found: list[Command] = []
        for queue in self.cluster.ready.waiting():
            text = unservable(self.cluster, queue.needs) if queue.needs.required else ""
            receivers = queue.clients() if text else set()
            first = queue.first() if queue.needs.is_limited else None
            if first is not None and (stuck := self.cluster.rooms.resources.deadlock(first)):
                text, receivers = f"{called(first.group.spec.name)} waits: {stuck}", {first.group.owner.id}
            for client in filter(None, map(clients.get, receivers)):
                warned = self._warned.setdefault(client.id, set())
                if queue.needs in warned or len(warned) >= MAX_WARNED:
                    continue
                warned.add(queue.needs)
                found += sent_to(client, Notice(text))
        return found


def explain(state: ClusterState, task_id: bytes, now: float) -> str:
    """Return why a task waits, where it runs, or how it ended. now: clock time, as passed to `step`."""
    task = state.living_task(task_id) if len(task_id) == ID_BYTES else None
    if task is not None:
        text = _living(state, task, state.own_time(now))
    elif found := state.ended_task(task_id):
        text = _ended(*found, now)
    elif task_id in state.rooms.durability.refused:
        text = f"it was refused: {state.rooms.durability.refused[task_id].payload.decode()}"
    else:
        return UNKNOWN
    return (
        f"{text}; {state.rooms.durability.failure}" if state.rooms.durability.is_stuck else text
    )  # while the journal is stuck, the client lacks the outcome


def _living(state: ClusterState, task: Task, now: float) -> str:
    match task.state:
        case Waiting() if task in state.rooms.durability.held:
            return HELD
        case Waiting(missing=missing):
            tasks = task.group.client.tasks
            names = [called(tasks[reference].group.spec.name) for reference in task.references if reference in tasks]
            if not names:
                return "the object storage lost an object that it needs, and its client was asked to upload it again"
            functions = listed(list(dict.fromkeys(names)), MAX_NAMED)
            return f"it needs the results of {counted(missing, 'task')}: {functions}"
        case Ready():
            return _ready(state, task, now)
        case Delayed(until=until):
            return f"it waits {max(0.0, until - now):.1f} s before {_attempt(task)}, after {_last_error(task)}"
        case Assigned(worker=worker):
            return _assigned(state, task, worker)
        case Recalled(worker=worker, cancel=True):
            return f"it is being cancelled on worker {worker.title}"
        case Recalled(worker=worker, ahead=ahead) if ahead:
            return f"it runs on worker {worker.title} and is being stopped for {ahead}{_so_far(task)}"
        case Recalled(worker=worker):
            return f"it was queued on worker {worker.title} and is moving to another worker{_so_far(task)}"
        case Terminated():
            raise AssertionError("a task that ended is not among its client's tasks")
        case never:
            assert_never(never)


def _assigned(state: ClusterState, task: Task, worker: Worker) -> str:
    if worker.broken_at is not None:
        return f"it was sent to worker {worker.title}, which is out of contact{_so_far(task)}"
    if fetched := state.rooms.stores.fetching(task, worker):
        return f"it was sent to worker {worker.title}, whose host waits for {fetched}{_so_far(task)}"
    heartbeat = worker.reports.heartbeat
    processors = heartbeat.processors if heartbeat is not None else ()
    if waits_for := next((each.waits_for for each in processors if each.running == task.id), ""):
        return f"it runs on worker {worker.title} and {waits_for}{_so_far(task)}"
    if task.id in worker.blocked:
        return f"it runs on worker {worker.title} and waits for tasks that it submitted{_so_far(task)}"
    before = takewhile(lambda other: other is not task, worker.tasks.values())
    ahead = sum(other.id not in worker.blocked for other in before)
    if heartbeat is not None and heartbeat.degraded_reason:
        return f"it was sent to worker {worker.title}, where {heartbeat.degraded_reason}{_so_far(task)}"
    if ahead < worker.slots:
        return f"it runs on worker {worker.title}{_so_far(task)}"
    behind = ahead - worker.slots + 1
    lower = min(behind, _prefetched_below(task, [worker]))
    of_lower = f", {lower:,} of lower priority that the worker received earlier" if lower else ""
    return f"it waits on worker {worker.title} behind {counted(behind, 'task')}{of_lower}{_so_far(task)}"


def _prefetched_below(task: Task, workers: Iterable[Worker]) -> int:
    """Return how many tasks of lower priority are queued on workers, which run tasks in arrival order."""
    priority = task.group.spec.priority
    waiting = 0
    for worker in workers:
        there = takewhile(lambda other: other is not task, worker.tasks.values())
        queued = islice((other for other in there if other.id not in worker.blocked), worker.slots, None)
        waiting += sum(other.group.spec.priority < priority for other in queued)
    return waiting


def _so_far(task: Task) -> str:
    return f"; this is {_attempt(task)}, after {_last_error(task)}" if task.error_texts else ""


def _attempt(task: Task) -> str:
    attempt = f"attempt {task.number} of {task.max_number}"
    spec, errors = task.group.spec, task.errors
    if not spec.retry_on or errors is None:
        return attempt
    return f"{attempt} (retries: {errors.failures} of {spec.retries}, losses: {errors.losses} of {spec.max_losses})"


def _ready(state: ClusterState, task: Task, now: float) -> str:
    needs = task.needs
    willing = [worker for worker in state.workers.values() if worker.is_willing and needs.fits(worker.offers)]
    if len(willing) > 1 and any(task.avoids(worker, now) for worker in willing):
        return f"it waits for another worker, after {_last_error(task)}"
    again = f"it runs again after {_last_error(task)}" if task.error_texts else ""
    reasons = _why_not_yet(state, task, willing, now) if willing else ()
    return "; ".join(filter(None, (*reasons, again, outlook(state, needs, task))))


def _why_not_yet(state: ClusterState, task: Task, willing: Sequence[Worker], now: float) -> Iterator[str]:
    """Yield the reasons why a ready task waits; some are empty. willing: workers that may take the task."""
    needs, rooms, queue = task.needs, state.rooms, state.ready.of(task.needs)
    before = queue.before(task, MAX_COUNTED)
    least = "at least " if before >= MAX_COUNTED else "about " if state.ready.turns.is_shared else ""
    if before or not needs.gang:
        yield f"{least}{counted(before, 'task')} will run before it" if before else "it will run next"
    yield state.ready.turns.text(task.group)
    if lower := _prefetched_below(task, willing):
        yield f"{counted(lower, 'task')} of lower priority that workers received earlier may start first"
    yield rooms.stores.why_waits(task, now)
    yield rooms.near.why_waits(task) if needs.near else ""
    yield rooms.environments.why_waits(task) if needs.environment else ""
    yield rooms.resources.shortage(queue, willing) if needs.is_counted else ""
    yield rooms.gangs.shortage(queue, willing) if needs.gang else ""
    reasons = [each.reports.degraded_reason for each in willing]
    yield f"on worker {willing[0].title}, {reasons[0]}" if all(reasons) else ""


def _ended(ended: TasksEnded, index: int, now: float) -> str:
    outcome = ended.outcomes[index]
    _, worker = ended.run_of(index)
    record = ended.record_of(index)
    attempt = f"attempt {record.attempt}"
    errors = [_line(text) for text in record.texts]
    age = now - ended.step_at
    when = "just now" if age < JUST_NOW_SECONDS else f"{timed(age)} ago"
    if worker:
        when += f" on worker {worker}"
    failure = ended.failure(index).text[:MAX_TEXT] if index in ended.failure_records else ""
    if record.failed_input is not None:
        return f"it {' '.join(failure.split())}, {when}"
    match outcome:
        case Outcome.SUCCESS:
            earlier = f"; that was {attempt}, after {'; '.join(errors)}" if errors else ""
            return f"it ended {when}, and took {timed(ended.duration_us[index] * 1e-6)}{earlier}"
        case Outcome.CANCELLED:
            return f"it was cancelled {when}"
        case Outcome.EXCEPTION | Outcome.EXCEPTION_TO_RETRY:
            before = [line for line in errors if not line.startswith(f"{attempt} ")]
            earlier = f"; before that, {'; '.join(before)}" if before else ""
            return f"it raised {' '.join(failure.split())}, {when}, in {attempt}{earlier}"
        case _:
            return f"it failed {when}: {_line(failure)}"


def _last_error(task: Task) -> str:
    return _line(task.error_texts[-1]) if task.error_texts else "an attempt that failed"


def _line(text: str) -> str:
    # Further lines contain the output of a crashed interpreter.
    return text.partition("\n")[0]


def outlook(state: ClusterState, needs: Needs, task: Task | None = None) -> str:
    """Describe what ready tasks with these needs wait for. O(workers). task: the task to explain, or None."""
    limit = state.rooms.resources.limited(state.ready.of(needs), task) if needs.is_limited else ""
    fitting = [worker for worker in state.workers.values() if needs.fits(worker.offers)]
    slots = sum(worker.slots for worker in fitting if worker.is_willing)
    parts = [limit] * bool(limit)
    parts += [f"{counted(slots, 'slot')} can run such tasks"] if slots else _unwilling(fitting)
    could = [manager for manager in state.rooms.scaling.managers.values() if needs.fits(manager.offers)]
    if not could and not fitting:
        parts.append(_no_candidate(state, needs))
    if slots:
        could = [each for each in could if each.pending or each.limited or each.is_late or each.trouble]
    now = state.own_time(state.now)
    return "; ".join([*parts, *(_prospect(manager, now, is_awaited=True) for manager in could[:MAX_NAMED])])


def unservable(state: ClusterState, needs: Needs) -> str:
    """Return a warning for clients about tasks that no connected worker or manager can run. Empty if the tasks can run,
    or if nothing is connected."""
    here = _offers(state)
    if not here or any(map(needs.fits, here)):
        return ""
    known = listed(sorted({offers.text(needs) or "none" for offers in here}), MAX_NAMED)
    options = [f"{name}=..." for name, _ in needs.items if name in (CPUS, MEMORY)]
    options += ["resources=..."] if any(name.startswith(COUNTED) for name, _ in needs.items) else []
    options = options or ["capabilities=..."]
    return (
        f"tasks that need {needs} wait: {_no_candidate(state, needs)}. Workers offer: {known}. "
        f"Request less in {listed(options, len(options))}, or start workers with --per-worker-capabilities "
        f"{needs.capabilities}"
    )


def without_workers(state: ClusterState) -> str:
    """Return why no worker is connected and what starts one, as `TITLE: TEXT`; empty if there are workers."""
    if state.workers:
        return ""
    managers = [*state.rooms.scaling.managers.values()]
    if not managers:
        return "No workers: no connected worker manager can start any"
    waiting = state.ready.waiting()
    if waiting:
        return f"Tasks wait for workers: {outlook(state, waiting[0].needs)}"
    now = state.own_time(state.now)
    text = "; ".join(_prospect(manager, now, is_awaited=False) for manager in managers[:MAX_NAMED])
    if any(manager.pending for manager in managers):
        return f"Workers are starting: {text}"
    return f"Idle: workers start when tasks arrive; {text}" if any(map(_may_start, managers)) else f"No workers: {text}"


def _prospect(manager: Any, now: float, *, is_awaited: bool) -> str:
    """Return the state of a worker manager's workers. is_awaited: whether tasks wait for these workers."""
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
        return f"the scaling policy has not decided how many units {name} should have"
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


def _starting(manager: Any, now: float) -> str:
    pending = manager.pending
    oldest = max(unit.age_seconds for unit in pending) + now - manager.status_at
    why = next((f": {unit.reason}" for unit in pending if unit.reason), "") or _after(manager)
    why += f"; it cannot start more now: {manager.trouble}" if manager.trouble else ""
    if all(unit.state is UnitState.WAITING for unit in pending):
        return f"has had {counted(len(pending), 'unit')} in a queue for {oldest:.0f} s{why}"
    usual = f" of about {manager.startup_seconds:.0f} s" if manager.startup_seconds is not None else ""
    first = "its first unit" if not manager.running else counted(len(pending), "unit")
    return f"has been starting {first} for {oldest:.0f} s{usual}{why}"


def _after(manager: Any) -> str:
    return f"; its last failure: {manager.last_failure}" if manager.last_failure else ""


def _may_start(manager: Any) -> bool:
    is_well = manager.broken_at is None and manager.status is not None and not manager.trouble
    return is_well and not manager.details.fixed and manager.wanted is not None and manager.wanted.most_units != 0


def _unwilling(fitting: list[Worker]) -> list[str]:
    broken = sum(worker.broken_at is not None for worker in fitting)
    counts = ((broken, "out of contact"), (len(fitting) - broken, "about to end"))
    how = ", ".join(f"{counted(count, 'worker')} {text}" for count, text in counts if count)
    why = next((f": {each.reports.degraded_reason}" for each in fitting if each.reports.degraded_reason), "")
    return [f"no worker can run such tasks now ({how}){why}"] if how else []


def _offers(state: ClusterState) -> list[Offers]:
    return [
        *(each.offers for each in state.rooms.scaling.managers.values()),
        *(each.offers for each in state.workers.values()),
    ]


def _no_candidate(state: ClusterState, needs: Needs) -> str:
    if not needs.required or not (state.workers or state.managers):
        return "no worker and no worker manager is connected"
    known: dict[str, float] = {}
    for offer in _offers(state):
        for name, amount in offer.amounts.items():
            known[name] = max(amount, known.get(name, amount))
    short = [
        f"no more than {with_amount(name, known[name])}"
        for name, amount in needs.required
        if known.get(name, amount) < amount
    ]
    short += [f"no {name}" for name, _ in needs.required if name not in known]
    because = f": there is {listed(short, len(short))}" if short else ""
    return f"no worker offers {needs.capabilities}, and no worker manager could start one that does{because}"
