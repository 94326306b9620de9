"""State machine of admitted tasks; the only module that writes `Task.state`.

    admitted -> Ready | Waiting            resolve
    Waiting  -> Ready                      the last dependency ends
    Ready    -> Assigned                   assign
    Assigned -> Recalled                   recall, cancel; back to Assigned if the worker keeps the task
    Assigned, Recalled -> Ready | Delayed  returned, done, worker_lost
    Assigned -> Waiting                    done, if the storage lost an input; Ready after `restored`
    Delayed  -> Ready                      wake
    any      -> Terminated                 end

Invariants: a terminated task is in no table. Each task gets exactly one entry in a Finished, or none if its client has
left. Only the current attempt may deliver a result. Results of other attempts are dropped with their stored objects.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice, repeat
from typing import Any

from scaler.backoff import Backoff
from scaler.grammar import counted
from scaler.ids import ID_BYTES, MAX_ATTEMPT, content_id, is_task, owner_of, result_id, show
from scaler.protocol.chunks import LARGE_BYTES
from scaler.protocol.failures import failure_texts
from scaler.protocol.messages import (
    STORED_REFERENCE_BYTES,
    Done,
    ObjectsRestored,
    Outcome,
    Returned,
    RunGroup,
    Started,
    Suspended,
    is_stored,
    stored_bytes,
    stored_reference,
)
from scaler.scheduler.core.accounts import ENTRY_BYTES, REFERENCE_BYTES
from scaler.scheduler.core.attempt_texts import at_limit, interrupt, time_limit_text, together
from scaler.scheduler.core.changes import (
    NO_CALLS,
    CancelAsked,
    Dispatched,
    Dropped,
    FailedInput,
    FailureRecord,
    GivenBack,
    GroupEnded,
    Incident,
    TaskBlocked,
    TaskFailed,
    TaskRetried,
    TasksEnded,
    TasksStarted,
    ValueRetained,
)
from scaler.scheduler.core.cluster import ClusterState, calls_of, recount
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.state import (
    NO_BATCH,
    READY,
    TERMINATED,
    Assigned,
    AttemptErrors,
    ClientRecord,
    Delayed,
    Group,
    Ran,
    Ready,
    Recalled,
    ResultBatch,
    RetainedResult,
    Task,
    Terminated,
    Timing,
    Waiting,
    Worker,
)

POISON_WORKERS = 3
"""Number of lost workers (distinct agents or hosts) after which a task counts as poison."""
RETRY_BACKOFF = Backoff(0.05, 1.0)
AVOID_SECONDS = 1.0
"""Seconds that a retried task avoids the worker where it failed, if another worker is available."""
MAX_ATTEMPT_ERROR_TEXT = 200

MAX_CANCELLED = 2_000
"""Maximum tasks cancelled per step; each takes about 5 us."""
MAX_REJECTED_KEPT = 10
MAX_MISSES = 20
"""Maximum retries of a task whose worker cannot fetch an object: about 15 s in total, with backoff."""

_FINAL = (Outcome.SUCCESS, Outcome.EXCEPTION, Outcome.OBJECT_LOST)
_FAILED = frozenset(
    {
        Outcome.EXCEPTION,
        Outcome.EXCEPTION_TO_RETRY,
        Outcome.TIMED_OUT,
        Outcome.PROCESSOR_DIED,
        Outcome.MEMORY_LIMIT,
        Outcome.OUT_OF_MEMORY,
    }
)
"""Outcomes that count against a worker, which may be at fault if the function succeeds elsewhere."""
_SUCCESS = Outcome.SUCCESS
_CANCELLED = Outcome.CANCELLED
_AT_LIMIT = {Outcome.PROCESSOR_DIED: Outcome.PROCESSOR_DIED, Outcome.OUT_OF_MEMORY: Outcome.MEMORY_LIMIT}
"""Final outcome of a task that has reached its loss limit, by the outcome of the last attempt."""
_RAN = Outcome.EXCEPTION_TO_RETRY
"""Up to this outcome, the task's own code ran to completion."""
_ZEROS = repeat(0)
_NOT_RETAINED = RetainedResult(Outcome.OBJECT_LOST, b"the result of a task that it depends on is no longer kept")
_NOT_ITS_OWN = RetainedResult(
    Outcome.OBJECT_LOST, b"it depends on what another client made, and only its own can be named"
)


class Tasks:
    def __init__(self, state: ClusterState, outbox: Outbox) -> None:
        self._state = state
        self._objects = state.objects
        self._ready = state.ready
        self._stores = state.rooms.stores
        self._outbox = outbox
        self._paces = state.rooms.paces
        self._batch = NO_BATCH
        self._delayed: list[tuple[float, int, Task]] = []
        self._sequence = 0
        self._cancels: deque[tuple[ClientRecord, Iterator[bytes]]] = deque()
        self._idle: dict[Group, None] = {}
        """Groups that had no live tasks when last checked."""
        self.next_wake = math.inf

    # -- admission

    def resolve(self, task: Task, *, is_held: bool = False) -> None:
        """Admit a task with references: count the use of its objects, and wait for its dependencies or fail
        immediately. is_held: the task also waits for `release_hold` or `adopt`.
        """
        missing = int(is_held)
        failed: RetainedResult | None = None
        group = task.group
        client = group.client
        references: list[bytes] = []  # the tasks' own id objects, so that a graph shares them
        for reference in task.references:
            other = client.tasks.get(reference)
            if other is not None:
                if other.dependents is None:
                    other.dependents = []
                other.dependents.append(task)
                missing += 1
                references.append(other.id)
                continue
            references.append(reference)
            if owner_of(reference) != client.id:
                failed = failed or _NOT_ITS_OWN
                continue
            if not is_task(reference):
                self._objects.use(reference)
                continue
            retained = client.retained.get(reference) or self._state.rooms.durability.refused.get(reference)
            if retained is None:
                failed = failed or _NOT_RETAINED
            else:
                retained.uses += 1
                if retained.outcome != _SUCCESS and failed is None:
                    failed = retained
                    _errors_of(task).failed_input = retained.failed_input
        task.references = tuple(references)
        if missing:
            task.state = Waiting(missing)
            self._state.counts.waiting += 1
        else:
            self._enqueue(task)
        if failed is not None:
            self.end(task, failed.outcome, failed.payload)

    def release_hold(self, task: Task) -> None:
        state = task.state
        assert type(state) is Waiting, "only waiting tasks are held"
        state.missing -= 1
        if not state.missing:
            self._state.counts.waiting -= 1
            self._enqueue(task)

    def _enqueue(self, task: Task, *, is_first: bool = False) -> None:
        task.state = READY
        store = None
        if self._stores.is_spread and task.references and not task.group.needs.gang:
            store = self._stores.preferred(task, self._state.own_time(self._state.now))
        self._ready.add_one(task, store, is_first=is_first)

    # -- assignment to workers, and recall

    def assign(self, tasks: list[Task], worker: Worker, inputs: Mapping[bytes, tuple[bytes, ...]], now: float) -> None:
        """Send tasks to a worker. They are READY, but no longer in a queue. inputs: see `Outbox.run`."""
        by_group: defaultdict[Group, list[Task]] = defaultdict(list)
        state = worker.assigned
        for task in tasks:
            task.attempt += 1
            task.state = state
            by_group[task.group].append(task)
        worker.take(tasks, now)
        for group, its_own in by_group.items():
            self._join(group, its_own, worker)
            self._outbox.run(worker, group, its_own, inputs)

    def _join(self, group: Group, tasks: Sequence[Task], worker: Worker) -> None:
        group.assigned += len(tasks)
        worker.count_function(group.timing, len(tasks))
        if not group.spec.retries and group.client.via is None:
            for task in tasks:
                self._state.changes.add(Dispatched, task.id, worker.id)

    def adopt(self, task: Task, worker: Worker, attempt: int, devices: tuple[int, ...], now: float) -> None:
        """Mark a queued task as assigned, because a worker reported this attempt. Its dependencies may be live."""
        if type(task.state) is Ready:
            self._ready.remove(task)
        else:
            self._state.counts.waiting -= 1
        task.attempt = attempt
        task.state = worker.assigned
        if task.needs.is_counted:
            worker.claims.claim(task.id, task.needs, devices)
        worker.take((task,), now)
        self._join(task.group, (task,), worker)

    def inputs_of(self, task: Task) -> tuple[bytes, ...]:
        retained = task.group.client.retained
        return tuple(
            [
                retained[reference].payload if reference in retained else stored_reference(reference, 0)
                for reference in task.references
            ]
        )

    def recall(self, worker: Worker, tasks: Iterable[Task], *, cancel: bool = False) -> None:
        """Ask a worker to return unstarted tasks for another placement or, if cancel, to stop the tasks."""
        for task in tasks:
            if task.group.needs.gang and not cancel:
                continue
            task.state = Recalled(worker, cancel)
            worker.count_recall(1)
            self._outbox.recall(worker, task, kill=cancel)

    def preempt(self, worker: Worker, task: Task, ahead: str) -> None:
        """Ask a worker to stop a started task, to be run again later. ahead: text for the task to start instead."""
        task.state = Recalled(worker, False, ahead)
        worker.count_recall(1)
        self._outbox.recall(worker, task, preempt=True)

    def returned(self, worker: Worker, message: Returned, now: float) -> None:
        """Process the reply to a recall: the returned tasks, and the started tasks, which the worker keeps."""
        if not message.ids:
            worker.has_accounted = True
        rows = zip(message.ids, message.attempts, message.started, strict=True)
        for identifier, attempt, has_started in reversed(list(rows)):  # each is requeued ahead of the previous one
            task = worker.tasks.get(identifier)
            if task is None or task.attempt != attempt:
                continue
            if has_started:
                worker.keep(task)
                if type(task.state) is Recalled and not task.state.cancel:
                    task.state = worker.assigned
                continue
            self._take_back(worker, task, now)

    def _take_back(self, worker: Worker, task: Task, now: float) -> None:
        """Requeue an unstarted task ahead of its client's other tasks, or end it if it is being cancelled."""
        self._release(worker, task)
        if type(task.state) is Recalled and task.state.cancel:
            self.end(task, _CANCELLED, b"cancelled")
        else:
            self._requeue(task, 0.0, now)

    def _release(self, worker: Worker, task: Task) -> None:
        worker.release(task)
        task.group.assigned -= 1

    def started(self, worker: Worker, message: Started) -> None:
        worker.progress.has_begun = True
        by_client: dict[ClientRecord, list[bytes]] = {}
        tasks: list[Task] = []
        for identifier in message.ids:
            task = worker.tasks.get(identifier)
            if task is not None:
                tasks.append(task)
                by_client.setdefault(task.group.client, []).append(identifier)
        ran = Ran(worker.reports.clock, message.ids, message.began_us, [], message.lanes, [], [])
        self._state.changes.add(TasksStarted, worker.name, tasks, ran)
        for client, its_own in by_client.items():
            if not client.terminated:
                self._outbox.send_to_client(client, Started(its_own))

    def suspended(self, worker: Worker, message: Suspended) -> None:
        for identifier, attempt, is_suspended in zip(message.ids, message.attempts, message.suspended, strict=True):
            task = worker.tasks.get(identifier)
            if task is None or task.attempt != attempt:
                continue
            worker.block(task, is_blocked=is_suspended)
            self._state.changes.add(TaskBlocked, task, is_suspended)

    # -- results

    def done(self, worker: Worker, message: Done, now: float, batch: ResultBatch | None = None) -> None:
        """Process results. batch: the batch that contains them, or None for a newly received Done."""
        if batch is None:
            worker.results.number += 1
            batch = ResultBatch(worker.results.released, worker.results.number)
        self._batch = batch
        worker_tasks = worker.tasks
        self._outbox.called = calls_of(message) if message.calls else {}
        healthy = False  # whether a task's own code ran to completion
        measured: dict[Timing, None] = {}
        worker.note_done(message, self._state.now, now)
        columns = zip(
            count(),
            message.ids,
            message.attempts,
            message.outcomes,
            message.payloads,
            message.duration_us,
            message.cpu_us or _ZEROS,
            message.peak_bytes or _ZEROS,
            message.inputs_us or _ZEROS,
            strict=False,  # columns of equal length, as decoded
        )
        for index, identifier, attempt, reported, result, duration_us, cpu_us, peak_bytes, inputs_us in columns:
            task = worker_tasks.get(identifier)
            if task is None or task.attempt != attempt:
                if self._state.rooms.durability.done(worker, message, index, batch):
                    continue
                current = getattr(self._state.living_task(identifier), "attempt", 0)  # the result may be stored already
                if current != attempt and self._is_result(identifier, attempt, result):
                    self.drop_late(result, worker)
                continue
            worker.release(task)
            group = task.group
            group.assigned -= 1
            outcome, payload = reported, result
            if len(payload) == STORED_REFERENCE_BYTES and is_stored(payload):
                outcome, payload = self._stored(worker, task, reported, payload)
            if outcome <= _RAN:
                healthy = True
                own_us = max(0, duration_us - inputs_us) if inputs_us else duration_us
                measured[group.timing.add(own_us)] = None
            if outcome in _FAILED:
                self._paces.failed(worker.id, group.timing, has_run=outcome <= _RAN)
            if outcome in _FINAL:
                self._end_one(task, outcome, payload, duration_us, cpu_us, peak_bytes)
                if task.dependents is not None:
                    self._end_dependents(task, outcome, payload)
            else:
                costs = duration_us, cpu_us, peak_bytes
                self._ended_without_result(worker, task, Outcome(outcome), payload, costs, now)
        for timing in measured:
            self._paces.measured(worker.id, timing, *timing.refresh())
        self._batch, self._outbox.called = NO_BATCH, {}
        batch.settle()
        worker.progress.failures_in_row *= not healthy
        worker.progress.has_begun |= healthy

    def _stored(self, worker: Worker, task: Task, outcome: int, payload: bytes) -> tuple[int, bytes]:
        """Record where a result is stored. Returns its outcome and payload, or an error for both if the id is wrong."""
        if not self._is_result(task.id, task.attempt, payload):
            return Outcome.OBJECT_LOST, b"its worker stored the result under another id"
        size_bytes = stored_bytes(payload)
        if size_bytes >= LARGE_BYTES or self._stores.is_used:
            self._stores.stored(payload[1:17], size_bytes, worker, task.group.spec.name)
        return outcome, payload

    @staticmethod
    def _is_result(identifier: bytes, attempt: int, payload: bytes) -> bool:
        return is_task(identifier) and 1 <= attempt <= MAX_ATTEMPT and payload[1:17] == result_id(identifier, attempt)

    def drop_late(self, payload: bytes, worker: Worker | None = None) -> None:
        """Drop a result that no task expects, and its stored object. worker: the worker that stored it, if known."""
        if is_stored(payload):
            self._forget_stored(payload[1:17], worker)

    def _forget_stored(self, identifier: bytes, worker: Worker | None) -> None:
        if worker is not None and self._stores.is_used and identifier not in self._objects.stored:
            self._stores.stored(identifier, 0, worker)
        self._objects.forget(identifier)

    def _ended_without_result(
        self, worker: Worker, task: Task, outcome: Outcome, payload: bytes, costs: tuple[int, int, int], now: float
    ) -> None:
        if outcome not in (Outcome.NOT_STARTED, Outcome.EXCEPTION_TO_RETRY, Outcome.INPUT_MISSING):
            self._forget_stored(result_id(task.id, task.attempt), worker)  # may be stored already
        if type(task.state) is Recalled and task.state.cancel:
            self.drop_late(payload, worker)
            self.end(task, _CANCELLED, b"cancelled")
            return
        match outcome:
            case Outcome.NOT_STARTED:
                ahead = task.state.ahead if type(task.state) is Recalled else ""
                if ahead or costs[0]:  # without ahead: the worker exits, or an earlier scheduler stopped the task
                    text = (
                        f"stopped after {costs[0] / 1e6:.0f} s for {ahead}"
                        if ahead
                        else failure_texts(outcome, payload).text
                    )
                    self._note_stopped(worker, task, text)
                self._requeue(task, 0.0, now)
            case Outcome.INPUT_MISSING:
                self._hold(task, payload)
            case Outcome.EXCEPTION_TO_RETRY:
                raised = failure_texts(outcome, payload).text[:MAX_ATTEMPT_ERROR_TEXT]
                self._retry(worker, task, Outcome.EXCEPTION, payload, f" on {worker.title}: it raised {raised}", now)
            case Outcome.PROCESSOR_DIED | Outcome.WORKER_LOST | Outcome.CANCELLED | Outcome.OUT_OF_MEMORY:
                at_last = _AT_LIMIT.get(outcome, Outcome.WORKER_LOST)
                if outcome == Outcome.PROCESSOR_DIED:
                    worker.progress.failures_in_row += 1
                why = failure_texts(outcome, payload).text
                self._retry(worker, task, at_last, payload, f" on {worker.title}: {why}", now)
            case Outcome.REJECTED | Outcome.POISON | Outcome.TIMED_OUT | Outcome.OBJECT_LOST | Outcome.MEMORY_LIMIT:
                self.end(task, outcome, payload, *costs)
            case Outcome.SUCCESS | Outcome.EXCEPTION:
                raise AssertionError("the task ended with a result")

    def _note_stopped(self, worker: Worker, task: Task, text: str) -> None:
        """Record that an attempt was stopped, without counting it against a limit."""
        self._forget_stored(result_id(task.id, task.attempt), worker)
        errors, number = _errors_of(task), task.number
        error = f"attempt {number} on {worker.title}: {text[:MAX_ATTEMPT_ERROR_TEXT]}"
        errors.uncharged += 1
        errors.add(error)
        self._state.changes.add(TaskRetried, task, number, worker.name, error)
        if not task.group.client.terminated:
            self._outbox.send_to_client(task.group.client, Started([task.id], requeued=True))

    def worker_lost(self, worker: Worker, why: str, charged: bool, limit_seconds: float, now: float) -> None:
        """Requeue or end the tasks of a lost worker. charged: a running task may have caused the loss. limit_seconds:
        the unit's time limit if it caused the loss (then no task is charged); otherwise 0.

        A task is charged only if it was the only one running. If several tasks were running, the cause is unknown: all
        are retried, and a task that is suspected too often then runs alone. If the worker has accounted for its tasks,
        tasks not reported as begun are requeued regardless of `retries`.
        """
        text = f"worker {worker.title} {why}"
        if limit_seconds:
            text += f" at the time limit of its unit ({time_limit_text(limit_seconds)})"
            charged = False
        if worker.has_accounted:
            self._take_back_unbegun(worker, now)
        blocked = set(worker.blocked)
        slots = worker.slots
        # Blocked tasks are suspects only if no other task was running.
        running = min(len(worker.tasks) - len(blocked), slots)
        suspects = running or len(blocked)
        unstarted: list[Task] = []
        for task in list(worker.tasks.values()):
            self._release(worker, task)
            state = task.state
            may_have_run = slots > 0 or task.id in blocked
            slots -= task.id not in blocked
            self._forget_stored(result_id(task.id, task.attempt), worker)
            if type(state) is Recalled and state.cancel:
                self.end(task, _CANCELLED, b"cancelled")
            elif task.group.spec.retries == 0:
                self.end(task, Outcome.WORKER_LOST, f"{text}; retries=0, and the task may have run".encode())
            elif may_have_run and charged and (suspects > 1 or (task.id in blocked and running)):
                self._lost_in_doubt(worker, task, text, suspects, now)
            elif may_have_run and charged:
                self._lost_with_worker(worker, task, text, now)
            elif not may_have_run or self._interrupted(worker, task, text, limit_seconds, now):
                unstarted.append(task)
        for task in reversed(unstarted):  # each is requeued ahead of the previous one
            self._requeue(task, 0.0, now)

    def _take_back_unbegun(self, worker: Worker, now: float) -> None:
        for task in [each for each in reversed(worker.tasks.values()) if each.id not in worker.started]:
            self._take_back(worker, task, now)

    def _lost_with_worker(self, worker: Worker, task: Task, text: str, now: float) -> None:
        """Charge the only suspect for the loss of a worker. A task that ran alone in several losses is poison."""
        errors = _errors_of(task)
        was_alone = task.needs.is_alone
        lost = self._isolate(task, worker)
        if was_alone and lost >= POISON_WORKERS:
            errors.add(f"attempt {task.number}, alone: {text}")
            why = f"the task was running on {counted(lost, 'worker')} that were lost\n{together(errors.texts)}"
            self.end(task, Outcome.POISON, why.encode())
        else:
            self._retry(worker, task, Outcome.WORKER_LOST, b"", f": {text}", now)

    def _lost_in_doubt(self, worker: Worker, task: Task, text: str, suspects: int, now: float) -> None:
        errors = _errors_of(task)
        number = task.number
        error = f"attempt {number}: {text}, with {counted(suspects, 'task')} that may have been running"
        errors.add(error)
        errors.uncharged += 1
        lost = self._isolate(task, worker)
        self._state.changes.add(TaskRetried, task, number, worker.name, error)
        self._requeue(task, RETRY_BACKOFF.seconds(lost), now)

    def _interrupted(self, worker: Worker, task: Task, text: str, limit_seconds: float, now: float) -> bool:
        """Record that the cluster interrupted an attempt, if it had begun. Returns False if this ended the task."""
        errors, number = _errors_of(task), task.number
        if not worker.progress.has_begun:
            errors.uncharged += 1
            return True
        error, failure = interrupt(
            errors,
            task.group.spec,
            f"attempt {number}: {text}",
            ran_seconds=now - worker.progress.at,
            limit_seconds=limit_seconds,
        )
        errors.add(error)
        if failure:
            self.end(task, Outcome.WORKER_LOST, f"{failure}\n{together(errors.texts)}".encode())
        else:
            self._state.changes.add(TaskRetried, task, number, worker.name, error)
        return not failure

    @staticmethod
    def _isolate(task: Task, worker: Worker) -> int:
        errors = _errors_of(task)
        errors.lost_workers.add(worker.id)
        lost = len(errors.lost_workers)
        if lost >= POISON_WORKERS - 1:
            errors.needs = replace(task.group.needs, is_alone=True)
        return lost

    # -- objects that the storage has lost

    def _hold(self, task: Task, payload: bytes) -> None:
        identifier, text = payload[:ID_BYTES], payload[ID_BYTES:]
        client = task.group.client
        misses = _errors_of(task).misses
        misses[identifier] = misses.get(identifier, 0) + 1
        if owner_of(identifier) != client.id or misses[identifier] > MAX_MISSES:
            self.end(task, Outcome.OBJECT_LOST, text or b"its worker did not get what it needs")
            return
        self._note_given_back(task)
        task.state = Waiting(1)
        self._state.counts.waiting += 1
        held = self._objects.missing.get(identifier)
        if held is None:
            self._objects.missing[identifier] = [task]
            self._outbox.ask_for(client, identifier)
        else:
            held.append(task)

    def restored(self, client: ClientRecord, message: ObjectsRestored, now: float) -> None:
        """Requeue the tasks that waited for these objects, or fail them if an object is lost for good."""
        for identifiers, is_lost in ((message.ids, False), (message.lost, True)):
            for identifier in identifiers:
                if owner_of(identifier) != client.id:
                    continue
                if not is_lost:
                    self._stores.restored(identifier)
                for task in reversed(self._objects.missing.pop(identifier, [])):  # each task is added in front
                    if type(task.state) is not Waiting:
                        continue  # cancelled in the meantime
                    if is_lost:
                        host = self._stores.lost_with(identifier)
                        where = f" with host {host}, which had the only copy" if host else ""
                        why = f"object {show(identifier)} is lost{where}: {message.text}"
                        self.end(task, Outcome.OBJECT_LOST, why.encode())
                    else:
                        # The worker may still be without a connection to the storage that the client reached.
                        misses = _errors_of(task).misses[identifier]
                        self._state.counts.waiting -= 1
                        self._requeue(task, RETRY_BACKOFF.seconds(misses - 1) if misses > 1 else 0.0, now)

    # -- retries

    def _retry(self, worker: Worker, task: Task, outcome: Outcome, payload: bytes, why: str, now: float) -> None:
        """Charge a task for a failure. Retry it, preferably on another worker, or end it if it reached its limit.
        Exceptions count against `retries`; losses of the processor or worker count against `losses`. why: text after
        the attempt number.
        """
        number = task.number
        error = f"attempt {number}{why}"
        errors = _errors_of(task)
        errors.last_worker = worker
        errors.add(error)
        spec = task.group.spec
        if outcome is Outcome.EXCEPTION:
            if errors.failures >= spec.retries:
                self.end(task, outcome, payload)
                return
            errors.failures += 1
            self.drop_late(payload)
            delay = _retry_delay(task)
        else:
            limit = spec.max_losses
            if errors.losses >= limit:
                option = "losses" if spec.losses and spec.retries else "retries"
                self.end(task, outcome, at_limit(errors.texts, number, option, limit).encode())
                return
            errors.losses += 1
            delay = RETRY_BACKOFF.seconds(errors.losses)
        line = error.partition("\n")[0]
        self._state.changes.add(Incident, "retried", f"task {task.id.hex()}", line, {"task": task.id.hex()})
        self._state.changes.add(TaskRetried, task, number, worker.name, error)
        errors.avoid_until = now + delay + AVOID_SECONDS
        self._requeue(task, delay, now)

    def _requeue(self, task: Task, delay: float, now: float) -> None:
        self._note_given_back(task)
        if task.group.client.attempt_base:
            task.attempt = max(task.attempt, task.group.client.attempt_base)
            delay = max(delay, self._state.rooms.durability.recovers_until - now)
        if task.attempt >= MAX_ATTEMPT:
            self.end(task, Outcome.REJECTED, f"the task has reached MAX_ATTEMPT = {MAX_ATTEMPT}".encode())
        elif task.references and self._lacks_inputs(task):
            pass
        elif delay > 0:
            task.state = Delayed(now + delay)
            self._state.counts.waiting += 1
            self._sequence += 1
            heapq.heappush(self._delayed, (now + delay, self._sequence, task))
            self.next_wake = min(self.next_wake, now + delay)
        else:
            self._enqueue(task, is_first=True)

    def _note_given_back(self, task: Task) -> None:
        if not task.group.spec.retries and task.group.client.via is None:
            self._state.changes.add(GivenBack, task.id)

    def _lacks_inputs(self, task: Task) -> bool:
        """Make a requeued task wait for live dependencies, or fail with a failed input. Returns False if it has all
        inputs."""
        client = task.group.client
        missing = sum(reference in client.tasks for reference in task.references)
        found = [client.retained.get(each, _NOT_RETAINED) for each in task.references if is_task(each)]
        failed = next((each for each in found if each.outcome != _SUCCESS), None)
        if missing:
            task.state = Waiting(missing)
            self._state.counts.waiting += 1
        elif failed is not None:
            self.end(task, failed.outcome, failed.payload)
        return missing > 0 or failed is not None

    def wake(self, now: float) -> None:
        """Cancel tasks, and queue the tasks whose delay has ended. Called at `next_wake`."""
        left = MAX_CANCELLED
        while self._cancels and left:
            client, ids = self._cancels[0]
            some = list(islice(ids, left))
            left -= len(some)
            for task in filter(None, map(client.tasks.get, some)):
                self._cancel(task)
            if left:
                self._cancels.popleft()
        delayed = self._delayed
        while delayed and delayed[0][0] <= now:
            task = heapq.heappop(delayed)[2]
            if type(task.state) is Delayed:
                self._state.counts.waiting -= 1
                self._enqueue(task, is_first=True)
        self.next_wake = 0.0 if self._cancels else delayed[0][0] if delayed else math.inf

    # -- ends

    def end(
        self, task: Task, outcome: int, payload: bytes, duration_us: int = 0, cpu_us: int = 0, peak_bytes: int = 0
    ) -> None:
        """End a task that is not on a worker: send its outcome to its client, and settle all dependents."""
        self._end_one(task, outcome, payload, duration_us, cpu_us, peak_bytes)
        if task.dependents is not None:
            self._end_dependents(task, outcome, payload)

    def _end_dependents(self, task: Task, outcome: int, payload: bytes) -> None:
        failed_input = _failed_input_of(task)
        ended = [task]
        while ended:
            last = ended.pop()
            # The history refers to ended tasks, but must not keep their dependents alive.
            dependents, last.dependents = last.dependents or (), None
            for dependent in dependents:
                state = dependent.state
                if type(state) is not Waiting:
                    continue  # already failed or cancelled because of another dependency
                if outcome != _SUCCESS:
                    _errors_of(dependent).failed_input = failed_input
                    self._end_one(dependent, outcome, payload)
                    ended.append(dependent)
                    continue
                state.missing -= 1
                if not state.missing:
                    self._state.counts.waiting -= 1
                    self._enqueue(dependent)

    def reject(self, tasks: Sequence[Task], why: str) -> None:
        """Reject tasks at submission. Only the first few are recorded as failures."""
        payload = why.encode()
        for number, task in enumerate(tasks):
            self._end_one(task, Outcome.REJECTED, payload, is_kept=number < MAX_REJECTED_KEPT)

    def _end_one(
        self,
        task: Task,
        outcome: int,
        payload: bytes,
        duration_us: int = 0,
        cpu_us: int = 0,
        peak_bytes: int = 0,
        *,
        is_kept: bool = True,
    ) -> None:
        """Remove a task from all tables, and count its end. If its client is present, retain and send its result."""
        group = task.group
        client = group.client
        state = task.state
        if type(state) is Assigned or type(state) is Recalled:
            task.state = state.worker.terminated
        else:
            self._end_queued(task)
        del client.tasks[task.id]
        group.live -= 1
        account = client.account
        account.tasks -= 1
        self._state.counts.ended[outcome] += 1
        if outcome:
            self._failed(task, is_kept, outcome, payload, duration_us, cpu_us, peak_bytes)
        if task.references:
            self._drop_references(task)
        if client.terminated:
            account.size_bytes -= len(task.payload)
            if task.attempt:
                self._outbox.finish(task, outcome, payload, duration_us, 0, 0)
            self.drop_late(payload)
            if not client.tasks:
                del self._state.departed[client]
        else:
            if client.is_durable:
                self._state.rooms.durability.ended(task)
            batch = self._batch
            batch.left += 1
            retained = client.retained[task.id] = RetainedResult(outcome, payload, batch)
            size_bytes = len(payload)
            account.size_bytes += ENTRY_BYTES + size_bytes - len(task.payload)
            deliver = group.spec.deliver or outcome != _SUCCESS
            if outcome:
                retained.failed_input = _failed_input_of(task)
                if client.via is None:
                    self._state.changes.add(FailedInput, task.id, *retained.failed_input)
            elif not deliver and client.via is None:
                self._state.changes.add(ValueRetained, task.id, payload)
            if task.dependents is not None:  # one use for each reference from a live dependent
                retained.uses = sum([type(dependent.state) is not Terminated for dependent in task.dependents])
            if size_bytes == STORED_REFERENCE_BYTES and is_stored(payload):
                self._objects.use(payload[1:17], pinned=deliver)
            self._outbox.finish(task, outcome, payload if deliver else b"", duration_us, cpu_us, peak_bytes)
        if group.calls or self._outbox.called:
            recount(self._state, self._outbox.called, task, outcome, duration_us)
        if not group.live:
            self.rest(group)

    def _end_queued(self, task: Task) -> None:
        state, task.state = task.state, TERMINATED
        if type(state) is Ready:
            self._ready.drop(task)
        elif type(state) is Waiting or type(state) is Delayed:
            self._state.counts.waiting -= 1

    def _failed(self, task: Task, is_kept: bool, *columns: Any) -> None:
        """Count a failed or cancelled task. Report a failed task for replay, unless it failed because of an input."""
        outcome, payload, duration_us, cpu_us, peak_bytes = columns
        if not duration_us:
            task.group.function.untimed += 1
        if outcome == _CANCELLED:
            for counts in task.group.records:
                counts.cancelled += 1
            return
        for counts in task.group.records:
            counts.failed += 1
        if not is_kept or (task.errors is not None and task.errors.failed_input is not None):
            return
        state, group = self._state, task.group
        if TaskFailed not in state.changes.taken:
            return
        record = FailureRecord.of(task, payload, self._outbox.called.get(task.id, NO_CALLS))
        profile = [duration_us], [cpu_us], [peak_bytes]
        where = task.state.alone(task.id) if type(task.state) is Terminated else task.state
        ended = TasksEnded([task.id], [outcome], *profile, {0: record}, state.now, [0], [group], [where])
        # A task resubmitted after a scheduler restart may have run although its dependencies have not.
        has_inputs = not any(is_task(each) and each not in group.client.retained for each in task.references)
        has_run = task.state is not TERMINATED and not group.client.terminated and has_inputs
        run, functions = None, list[tuple[bytes, bytes]]()
        if has_run:
            run = RunGroup(group.spec, [task.id], [task.attempt], [task.payload], [self.inputs_of(task)])
            functions = [(each, self._objects.functions[each].payload) for each in group.spec.registered]
        state.changes.add(TaskFailed, ended, functions, run)

    def rest(self, group: Group) -> None:
        """Exclude a group without live tasks from the turns, until it gets tasks or `end_idle` ends it."""
        if group.is_active:
            group.is_active = False
            self._ready.turns.left(group)
            self._idle[group] = None
            if group.client.terminated or group.needs.gang:
                self.end_idle()

    def end_idle(self) -> None:
        """End the groups without live tasks."""
        idle, self._idle = self._idle, {}
        for group in idle:
            if not group.is_active:
                group.arrivals.clear()  # the history keeps the group alive
                del group.client.groups[group.spec]
                self._state.changes.add(GroupEnded, group)
                group.client.account.size_bytes -= group.size_bytes
                for identifier in group.functions:
                    self._objects.unuse(identifier)

    # -- retained results

    def _drop_references(self, task: Task) -> None:
        """Release the objects and retained results that an ended task references. Live dependencies are unaffected."""
        client = task.group.client
        client.account.size_bytes -= REFERENCE_BYTES * len(task.references)
        for reference in task.references:
            retained = client.retained.get(reference)
            if retained is not None:
                retained.uses -= 1
                if not (retained.uses or retained.unacknowledged):
                    self.drop_results(client, [reference])
            elif not is_task(reference) and owner_of(reference) == client.id:
                self._objects.unuse(reference)

    def drop_results(self, client: ClientRecord, ids: Sequence[bytes]) -> None:
        if client.via is None:
            self._state.changes.add(Dropped, ids)
        dropped_bytes = 0
        for identifier in ids:
            retained = client.retained.pop(identifier)
            retained.batch.settle()
            size_bytes = len(retained.payload)
            dropped_bytes += ENTRY_BYTES + size_bytes
            if size_bytes == STORED_REFERENCE_BYTES and is_stored(retained.payload):
                self._objects.unuse(retained.payload[1:17])
        client.account.size_bytes -= dropped_bytes

    def acknowledge(self, client: ClientRecord, number: int) -> None:
        """Process a client's acknowledgement of all Finished messages up to this number."""
        unacknowledged = client.unacknowledged
        while unacknowledged and unacknowledged[0].number <= number:
            unused: list[bytes] = []
            for identifier in unacknowledged.popleft().ids:
                retained = client.retained.get(identifier)
                if retained is None:
                    continue
                if not client.is_durable:
                    retained.unacknowledged = False
                    if not retained.uses:
                        unused.append(identifier)
                else:  # the scheduler retains the result, so the worker need not
                    retained.batch.settle()
                    retained.batch = NO_BATCH
            if unused:
                self.drop_results(client, unused)

    # -- cancel

    def cancel(self, client: ClientRecord, ids: Sequence[bytes]) -> None:
        """Cancel tasks. A Finished reports each task. Many tasks take several steps, so that other clients need not
        wait."""
        if client.via is None:
            self._state.changes.add(CancelAsked, ids)
        self._cancels.append((client, iter(ids)))
        self.next_wake = 0.0

    def _cancel(self, task: Task) -> None:
        state = task.state
        if type(state) is Assigned:
            self.recall(state.worker, (task,), cancel=True)
        elif type(state) is not Recalled:
            self.end(task, _CANCELLED, b"cancelled")
        elif not state.cancel:
            state.cancel = True
            self._outbox.recall(state.worker, task, kill=True)

    def client_left(self, client: ClientRecord) -> None:
        """Drop all tasks and results of a client. Running tasks are recalled, and dropped when they return."""
        self.end_idle()
        client.terminated = True
        client.unacknowledged.clear()
        for identifier in [each for each in self._objects.missing if owner_of(each) == client.id]:
            del self._objects.missing[identifier]
        for retained in client.retained.values():
            client.account.size_bytes -= ENTRY_BYTES + len(retained.payload)
            retained.batch.settle()
            if is_stored(retained.payload):
                self._objects.unuse(retained.payload[1:17])
        client.retained.clear()
        if client.tasks:
            self._state.departed[client] = None
            for task in list(client.tasks.values()):  # all in this step, so that no task starts
                if type(task.state) is not Terminated:
                    self._cancel(task)


def _failed_input_of(task: Task) -> tuple[str, bytes]:
    found = task.errors.failed_input if task.errors is not None else None
    return found or (task.group.spec.name, task.id)


def _retry_delay(task: Task) -> float:
    """Return the delay (seconds) before the next attempt after an exception in `retry_on`. Pure."""
    spec = task.group.spec
    failures = _errors_of(task).failures
    if not spec.retry_delays:
        return RETRY_BACKOFF.seconds(failures)
    delay = spec.retry_delays[min(failures, len(spec.retry_delays)) - 1]
    # Deterministic jitter by task, so that tasks that failed together are not retried together.
    chance = int.from_bytes(content_id(task.id, failures.to_bytes(4))[:4]) / 2**32
    return delay * (1.0 - spec.retry_jitter * chance)


def _errors_of(task: Task) -> AttemptErrors:
    if task.errors is None:
        task.errors = AttemptErrors()
    return task.errors
