"""The life of a task from when it is in: results, retries, losses, cancels, and its one end.

Laws: a task that ended is in no table; exactly one entry of a Finished is made for it, none when its client is gone; a
result of an attempt that is not the current one of a task on that worker is dropped, and its object forgotten.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from scaler.ids import MAX_ATTEMPT, is_task, owner_of, result_id
from scaler.protocol.messages import (
    Done,
    Outcome,
    Returned,
    Started,
    Suspended,
    is_stored,
    stored_reference,
)
from scaler.scheduler.core.facts import Facts, TaskRetried, TasksStarted
from scaler.scheduler.core.groups import Groups
from scaler.scheduler.core.objects import ObjectTable
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.ready import ReadyQueues
from scaler.scheduler.core.state import (
    READY,
    TERMINATED,
    Assigned,
    AttemptErrors,
    Client,
    Delayed,
    Group,
    Ready,
    Recalled,
    RetainedResult,
    Task,
    Waiting,
    Worker,
)
from scaler.serialization.exceptions import failure_texts

POISON_WORKERS = 3
"""Different agents or hosts that one task may take down."""
RETRY_DELAY_SECONDS = 0.05
MAX_RETRY_DELAY_SECONDS = 1.0
AVOID_SECONDS = 1.0
"""How long a task that is ready again waits for another worker than the one on which it failed, if there is one."""
MAX_ATTEMPT_ERRORS = 8
"""Lines of evidence kept per task; the text of its end quotes them."""
MAX_ATTEMPT_ERROR_TEXT = 200
"""Characters of an exception that are quoted in a line of evidence."""

_FINAL = (Outcome.SUCCESS, Outcome.EXCEPTION, Outcome.TIMED_OUT, Outcome.OBJECT_LOST)
_SUCCESS = Outcome.SUCCESS
_CANCELLED = Outcome.CANCELLED
_RAN = Outcome.EXCEPTION_TO_RETRY
"""Up to this one, the task's own code came to its end."""


class Tasks:
    """What happens to living tasks."""

    __slots__ = (
        "_delayed",
        "_facts",
        "_groups",
        "_objects",
        "_outbox",
        "_ready",
        "_sequence",
        "departed",
        "ended",
        "waiting",
    )

    def __init__(self, groups: Groups, objects: ObjectTable, ready: ReadyQueues, outbox: Outbox, facts: Facts) -> None:
        self._groups = groups
        self._objects = objects
        self._ready = ready
        self._outbox = outbox
        self._facts = facts
        self._delayed: list[tuple[float, int, Task]] = []
        self._sequence = 0
        self.waiting = 0
        """Tasks in state Waiting or Delayed."""
        self.departed: dict[bytes, list[Client]] = {}
        """Clients that are gone but whose last tasks have not come back yet, by id: one may go several times."""
        self.ended: dict[int, int] = dict.fromkeys(Outcome, 0)

    # -- results

    def done(self, worker: Worker, message: Done, now: float) -> None:
        """Take in attempts that ended on a worker."""
        worker_tasks = worker.tasks
        cpu_us = message.cpu_us
        peak_bytes = message.peak_bytes
        healthy = False
        columns = zip(
            message.ids, message.attempts, message.outcomes, message.payloads, message.duration_us, strict=True
        )
        for index, (identifier, attempt, told, result, duration_us) in enumerate(columns):
            task = worker_tasks.get(identifier)
            if task is None or task.attempt != attempt:
                self.drop_late(result)
                continue
            self._leave(worker, task)
            outcome, payload = told, result
            if is_stored(payload) and payload[1:9] != identifier[:8]:
                outcome, payload = Outcome.OBJECT_LOST, b"its worker stored the result under another client's id"
            if outcome <= _RAN:
                healthy = True
                task.group.timing.observe(duration_us * 1e-6)
            if outcome in _FINAL:
                self.end(
                    task,
                    outcome,
                    payload,
                    duration_us,
                    cpu_us[index] if cpu_us else 0,
                    peak_bytes[index] if peak_bytes else 0,
                )
            else:
                self._ended_without_result(worker, task, outcome, payload, now)
        if healthy:
            worker.failures_in_row = 0
        worker.progressed_at = now
        worker.checks_without_progress = 0
        worker.stalled = False

    def drop_late(self, payload: bytes) -> None:
        """Drop a result that nobody waits for; what it stored is forgotten."""
        if is_stored(payload):
            self._objects.forget(payload[1:17])

    def _forget_attempt(self, task: Task) -> None:
        """An attempt was stopped in the middle: it may have stored a result that it could not tell of."""
        self._objects.forget(result_id(task.id, task.attempt))

    def _leave(self, worker: Worker, task: Task) -> None:
        """Take a task off a worker; its state still says how it was there."""
        del worker.tasks[task.id]
        group = task.group
        group.assigned -= 1
        if task.id in worker.blocked:
            worker.blocked.discard(task.id)
        else:
            worker.release(group.timing)
        if type(task.state) is Recalled:
            worker.recalled -= 1

    def _ended_without_result(self, worker: Worker, task: Task, outcome: int, payload: bytes, now: float) -> None:
        if outcome not in (Outcome.NOT_STARTED, Outcome.EXCEPTION_TO_RETRY):
            self._forget_attempt(task)
        if type(task.state) is Recalled and task.state.cancel:
            self.drop_late(payload)
            self.end(task, Outcome.CANCELLED, b"cancelled")
            return
        match Outcome(outcome):
            case Outcome.NOT_STARTED:
                self._requeue(task, 0.0, now)
            case Outcome.EXCEPTION_TO_RETRY:
                raised = failure_texts(outcome, payload).text[:MAX_ATTEMPT_ERROR_TEXT]
                self._retry(worker, task, Outcome.EXCEPTION, payload, f" on {worker.name}: it raised {raised}", now)
            case Outcome.PROCESSOR_DIED:
                worker.failures_in_row += 1
                why = payload.decode("utf-8", "replace")
                self._retry(worker, task, Outcome.PROCESSOR_DIED, payload, f" on {worker.name}: {why}", now)
            case Outcome.WORKER_LOST | Outcome.CANCELLED:
                why = payload.decode("utf-8", "replace")
                self._retry(worker, task, Outcome.WORKER_LOST, payload, f" on {worker.name}: {why}", now)
            case Outcome.REJECTED | Outcome.POISON | Outcome.TIMED_OUT | Outcome.OBJECT_LOST:
                self.end(task, outcome, payload)
            case Outcome.SUCCESS | Outcome.EXCEPTION:
                raise AssertionError("ended with a result")

    def _retry(self, worker: Worker, task: Task, at_limit: Outcome, payload: bytes, why: str, now: float) -> None:
        """Charge a task for a failure; run it again, elsewhere where there is an elsewhere, or end it at its limit.

        why: follows the number of the attempt.
        """
        evidence = f"attempt {task.attempt}{why}"
        errors = task.errors
        if errors is None:
            errors = task.errors = AttemptErrors()
        errors.failures += 1
        errors.last_worker = worker
        if len(errors.texts) < MAX_ATTEMPT_ERRORS:
            errors.texts.append(evidence)
        limit = task.group.spec.retries
        if errors.failures > limit:
            if at_limit is not Outcome.EXCEPTION:
                payload = _evidence(task, errors, limit)
            self.end(task, at_limit, payload)
            return
        if at_limit is Outcome.EXCEPTION:
            self.drop_late(payload)
        self._facts.add(TaskRetried(task, task.attempt, worker.name, evidence))
        delay = min(MAX_RETRY_DELAY_SECONDS, RETRY_DELAY_SECONDS * 2 ** (errors.failures - 1))
        errors.avoid_until = now + delay + AVOID_SECONDS
        self._requeue(task, delay, now)

    def _requeue(self, task: Task, delay: float, now: float) -> None:
        if task.attempt >= MAX_ATTEMPT:
            self.end(task, Outcome.REJECTED, f"MAX_ATTEMPT is {MAX_ATTEMPT}, and it was sent as often".encode())
        elif delay > 0:
            task.state = Delayed(now + delay)
            self.waiting += 1
            self._sequence += 1
            heapq.heappush(self._delayed, (now + delay, self._sequence, task))
        else:
            task.state = READY
            self._ready.add_first(task)

    def wake(self, now: float) -> None:
        """Make ready what has waited long enough after a failure."""
        delayed = self._delayed
        while delayed and delayed[0][0] <= now:
            task = heapq.heappop(delayed)[2]
            if type(task.state) is Delayed:
                self.waiting -= 1
                task.state = READY
                self._ready.add_first(task)

    def next_wake(self) -> float | None:
        return self._delayed[0][0] if self._delayed else None

    def returned(self, worker: Worker, message: Returned, now: float) -> None:
        """Take in what a worker gave back, or said that it keeps."""
        for index, identifier in enumerate(message.ids):
            task = worker.tasks.get(identifier)
            if task is None or task.attempt != message.attempts[index]:
                continue
            if message.started[index]:
                if type(task.state) is Recalled and not task.state.cancel:
                    task.state = worker.assigned
                    worker.recalled -= 1
                continue
            self._leave(worker, task)
            if type(task.state) is Recalled and task.state.cancel:
                self.end(task, Outcome.CANCELLED, b"cancelled")
            else:
                self._requeue(task, 0.0, now)

    def started(self, worker: Worker, ids: list[bytes]) -> None:
        """Tell the clients of these tasks that they run."""
        by_client: dict[Client, list[bytes]] = {}
        tasks: list[Task] = []
        for identifier in ids:
            task = worker.tasks.get(identifier)
            if task is not None:
                tasks.append(task)
                by_client.setdefault(task.group.client, []).append(identifier)
        if self._facts.watched:
            self._facts.add(TasksStarted(worker.name, tasks))
        for client, its_own in by_client.items():
            if not client.terminated:
                self._outbox.send_to_client(client, Started(its_own))

    def suspended(self, worker: Worker, message: Suspended) -> None:
        """Note which started tasks wait for tasks of their own, and which go on."""
        for index, identifier in enumerate(message.ids):
            task = worker.tasks.get(identifier)
            if task is None or task.attempt != message.attempts[index]:
                continue
            blocked = identifier in worker.blocked
            if message.suspended[index] and not blocked:
                worker.blocked.add(identifier)
                worker.release(task.group.timing)
            elif blocked and not message.suspended[index]:
                worker.blocked.discard(identifier)
                worker.hold(task.group.timing)

    def worker_lost(self, worker: Worker, why: str, charged: bool, now: float) -> None:
        """Give the tasks of a lost worker to others. Those that may have been running are charged, if anybody is."""
        text = f"worker {worker.name} {why}"
        blocked = set(worker.blocked)
        slots = worker.slots
        for task in list(worker.tasks.values()):
            self._leave(worker, task)
            state = task.state
            may_have_run = slots > 0 or task.id in blocked
            slots -= task.id not in blocked
            self._forget_attempt(task)
            if type(state) is Recalled and state.cancel:
                self.end(task, Outcome.CANCELLED, b"cancelled")
            elif task.group.spec.retries == 0:
                self.end(task, Outcome.WORKER_LOST, f"{text}; retries=0, and the task may have run".encode())
            elif not may_have_run:
                self._requeue(task, 0.0, now)
            elif charged:
                self._lost_with_worker(worker, task, text, now)
            else:
                self._requeue(task, 0.0, now)

    def _lost_with_worker(self, worker: Worker, task: Task, text: str, now: float) -> None:
        errors = task.errors
        if errors is None:
            errors = task.errors = AttemptErrors()
        errors.lost_workers.add(worker.id)
        if len(errors.lost_workers) >= POISON_WORKERS:
            errors.texts.append(f"attempt {task.attempt}: {text}")
            why = f"the task was running on {POISON_WORKERS} workers that were lost: " + "; ".join(errors.texts)
            self.end(task, Outcome.POISON, why.encode())
        else:
            self._retry(worker, task, Outcome.WORKER_LOST, b"", f": {text}", now)

    # -- end

    def end(
        self, task: Task, outcome: int, payload: bytes, duration_us: int = 0, cpu_us: int = 0, peak_bytes: int = 0
    ) -> None:
        """End a task that is on no worker, tell its client, and settle its dependents, however many."""
        self._end_one(task, outcome, payload, duration_us, cpu_us, peak_bytes)
        if task.dependents is None:
            return
        self._count_dependents(task)
        if outcome == Outcome.SUCCESS:
            self._feed_dependents(task)
            task.dependents = None  # the history must not keep what came after it
            return
        failed = [task]
        while failed:
            last = failed.pop()
            for dependent in last.dependents or ():
                if type(dependent.state) is Waiting:
                    self._end_one(dependent, outcome, payload, 0, 0, 0)
                    self._count_dependents(dependent)
                    failed.append(dependent)
            last.dependents = None

    def _end_one(
        self, task: Task, outcome: int, payload: bytes, duration_us: int, cpu_us: int, peak_bytes: int
    ) -> None:
        group = task.group
        client = group.client
        state = task.state
        if type(state) is Assigned:
            task.state = state.terminated
        elif type(state) is Recalled:
            task.state = state.worker.assigned.terminated
        else:
            task.state = TERMINATED
            if type(state) is Ready:
                self._ready.dropped(task)
            elif type(state) is Waiting or type(state) is Delayed:
                self.waiting -= 1
        del client.tasks[task.id]
        group.live -= 1
        if task.references:
            self._drop_references(task)
        self.ended[outcome] += 1
        if outcome:
            self._count_failure(group, outcome)
        if client.terminated:
            if task.attempt:
                self._outbox.unheard(task, outcome, payload, duration_us)
            self.drop_late(payload)
            if not client.tasks:
                self._has_left(client)
        else:
            self.tell(task, outcome, payload, duration_us, cpu_us, peak_bytes)
        if not group.live:
            self._groups.settle(group)

    def reject(self, task: Task, why: str) -> None:
        """End a task that was never taken in."""
        group = task.group
        group.function.submitted += 1
        group.client.submitted += 1
        self.ended[Outcome.REJECTED] += 1
        self._count_failure(group, Outcome.REJECTED)
        self.tell(task, Outcome.REJECTED, why.encode())

    @staticmethod
    def _count_failure(group: Group, outcome: int) -> None:
        if outcome != _CANCELLED:
            group.function.failed += 1
            group.client.failed += 1

    def tell(
        self,
        task: Task,
        outcome: int,
        payload: bytes,
        duration_us: int = 0,
        cpu_us: int = 0,
        peak_bytes: int = 0,
    ) -> None:
        group = task.group
        client = group.client
        deliver = group.spec.deliver or outcome != _SUCCESS
        client.retained[task.id] = RetainedResult(outcome, payload)
        if is_stored(payload):
            self._objects.use(payload[1:17], held=deliver)
        self._outbox.finished(client, task, outcome, payload if deliver else b"", duration_us, cpu_us, peak_bytes)

    @staticmethod
    def _count_dependents(task: Task) -> None:
        """A task ended: from now on its value is used once by every living mention in a dependent."""
        kept = task.group.client.retained.get(task.id)
        if kept is not None:
            kept.uses += sum(type(dependent.state) is Waiting for dependent in task.dependents or ())

    def _feed_dependents(self, task: Task) -> None:
        for dependent in task.dependents or ():
            state = dependent.state
            if type(state) is not Waiting:
                continue  # failed or cancelled by another dependency
            state.missing -= 1
            if not state.missing:
                self.waiting -= 1
                dependent.state = READY
                self._ready.add(dependent)

    def _drop_references(self, task: Task) -> None:
        """A task ended: what it referenced is used once less. A dependency that is still alive loses nothing."""
        client = task.group.client
        for reference in task.references:
            if owner_of(reference) != client.id:
                continue
            if not is_task(reference):
                self._objects.unuse(reference)
                continue
            kept = client.retained.get(reference)
            if kept is not None:
                kept.uses -= 1
                self._drop_retained(client, reference, kept)

    def _drop_retained(self, client: Client, identifier: bytes, kept: RetainedResult) -> None:
        if kept.uses or kept.unacknowledged:
            return
        del client.retained[identifier]
        if is_stored(kept.payload):
            self._objects.unuse(kept.payload[1:17])

    def acknowledge(self, client: Client, number: int) -> None:
        """A client has resolved all Finished up to this number."""
        unseen = client.unacknowledged
        while unseen and unseen[0].number <= number:
            for identifier in unseen.popleft().ids:
                kept = client.retained.get(identifier)
                if kept is not None:
                    kept.unacknowledged = False
                    self._drop_retained(client, identifier, kept)

    # -- cancel

    def cancel(self, client: Client, ids: Iterable[bytes]) -> None:
        """Cancel what has not ended; each of these ends in a Finished, some of them later."""
        for identifier in ids:
            task = client.tasks.get(identifier)
            if task is not None:
                self._cancel(task)

    def _cancel(self, task: Task) -> None:
        state = task.state
        if type(state) is Assigned:
            worker = state.worker
            task.state = Recalled(worker, cancel=True)
            worker.recalled += 1
            self._outbox.recall(worker, task, kill=True)
        elif type(state) is Recalled:
            if not state.cancel:
                state.cancel = True
                self._outbox.recall(state.worker, task, kill=True)
        else:
            self.end(task, Outcome.CANCELLED, b"cancelled")

    def client_gone(self, client: Client) -> None:
        """Drop everything of a client; what runs is recalled, and dropped when it comes back."""
        client.terminated = True
        self._outbox.drop_batch(client)
        client.unacknowledged.clear()
        for kept in client.retained.values():
            if is_stored(kept.payload):
                self._objects.unuse(kept.payload[1:17])
        client.retained.clear()
        self.departed.setdefault(client.id, []).append(client)
        self.cancel(client, list(client.tasks))
        if not client.tasks:
            self._has_left(client)

    def _has_left(self, client: Client) -> None:
        """The last task of a client that is gone has come back."""
        left = self.departed.get(client.id)
        if left is not None and client in left:
            left.remove(client)
            if not left:
                del self.departed[client.id]

    @staticmethod
    def inputs_of(task: Task) -> tuple[bytes, ...]:
        """Return the payloads of a ready task's references, in their order."""
        kept = task.group.client.retained
        return tuple(
            kept[reference].payload if is_task(reference) else stored_reference(reference, 0)
            for reference in task.references
        )


def _evidence(task: Task, errors: AttemptErrors, limit: int) -> bytes:
    times = "once" if task.attempt == 1 else f"{task.attempt} times"
    doubt = "; it may have run" if limit == 0 else ""
    return f"tried {times}, retries={limit}{doubt}: {'; '.join(errors.texts)}".encode()
