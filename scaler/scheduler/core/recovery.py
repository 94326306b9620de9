"""Recovery of a restarted scheduler from the reports of its peers and its journal. Pure.

Clients resubmit their unfinished tasks, and workers report their attempts and results, in any order. A resubmitted task
is *held* (`Waiting`, with one extra missing dependency) until workers had time to report. A report whose task has not
been resubmitted yet is a *claim*. Once task and claim are both here, the scheduler adopts the task: it is assigned to
that worker in that attempt, or gets its result. The journal resubmits the tasks of its clients, and claims those with
retries=0 that were sent to a worker. A dropped client also leaves claims, in case it returns.

Held tasks are released after RECOVERY_SECONDS, with two exceptions. A task with retries=0 may have run if a worker to
which it was sent has not reported. A client is *exact* if claims name these tasks: it was given up in its first
session, or is in the journal. Tasks with retries=0 of other clients may all have run. A worker that does not report
within its lease has killed such tasks itself, so they end as lost then. A task whose value only other tasks need stays
held until one of them waits for the value.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from scaler.ids import owner_of
from scaler.protocol.messages import Done, Outcome, Recall, Returned, Suspended, WorkerReport, is_stored
from scaler.scheduler.core.accounts import Rules
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Relayed
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.state import ClientRecord, ResultBatch, Task, Terminated, Waiting, Worker
from scaler.scheduler.core.tasks import Tasks

RECOVERY_SECONDS = 1.5
"""Seconds after the start in which workers may report before resubmitted tasks are placed."""
SETTLE_SECONDS = 0.1
"""Seconds for which late resubmissions are held, because their dependents follow in the next messages."""
SWEEP_SECONDS = 0.25
ATTEMPTS_BETWEEN_SESSIONS = 1024
MAX_SESSIONS = 60
"""Attempts of tasks resubmitted for the n-th time begin at n % MAX_SESSIONS * ATTEMPTS_BETWEEN_SESSIONS.

Their result ids therefore differ from results of attempts that earlier schedulers dispatched.
"""
_UNREPORTED = (
    "the scheduler was restarted or its client was out of contact, and no worker has reported the task; retries=0, and "
    "the task may have run"
)
_REMEDY = "; set [scheduler] state_directory, so that a restarted scheduler knows which tasks it had sent to workers"


@dataclass(slots=True, eq=False)
class Claim:
    """State of a task that its client has not resubmitted yet.

    worker: has the task or reported its result; None: no worker has it now. Without worker and result, the task may
    have started on a worker that has not reported.
    """

    worker: Worker | None
    attempt: int
    once: bool
    suspended: bool = False
    devices: tuple[int, ...] = ()
    result: Done | None = None
    batch: ResultBatch | None = None
    relays: list[Relayed] = field(default_factory=list)
    sent_to: bytes = b""

    @property
    def is_known(self) -> bool:
        return self.worker is not None or self.result is not None


class Recovery:
    """Claims and held tasks; both are empty outside of recovery."""

    def __init__(
        self,
        state: ClusterState,
        tasks: Tasks,
        outbox: Outbox,
        config: Rules,
        touched: dict[Worker, None],
        relayed: Callable[[Worker, Relayed, float], None],
    ) -> None:
        """touched: collects the workers whose tasks change. relayed: processes a message of a nested client."""
        self._state = state
        self._tasks = tasks
        self._outbox = outbox
        self._touched = touched
        self._relayed = relayed
        self._opens_at = tasks.recovers_until = state.now + RECOVERY_SECONDS
        self._fenced_at = state.now + config.worker_timeout_seconds
        self._dropped_at = state.now + config.client_timeout_seconds
        self._lost_text = (_UNREPORTED if config.state_directory else _UNREPORTED + _REMEDY).encode()
        self.claims: dict[bytes, Claim] = {}
        self._stashed: dict[bytes, Claim] = {}
        self._kept: dict[bytes, bool] = {}
        """Clients that are in the journal or were dropped. Their claims are kept until they leave. The value: whether
        the client is exact."""
        self._reported: set[bytes] = set()
        """Workers that reconnected from an earlier scheduler within their lease."""
        self._batches: deque[tuple[float, list[Task]]] = deque()
        self._later: dict[Task, None] = {}
        """Held tasks past their release time that wait because of an exception in the module docstring."""
        self._unreported: dict[Task, None] = {}
        """Held tasks with retries=0 of clients that are not exact. They run nowhere unless a worker reports them."""
        self.next_at = math.inf

    # -- clients

    def recovered(self, client: ClientRecord, dispatched: Mapping[bytes, bytes]) -> int:
        """Prepare for a journaled client. Returns `again` for its Submit. dispatched: worker by retries=0 task."""
        self._kept[client.id] = True
        self.claims.update((task, Claim(None, 0, once=True, sent_to=worker)) for task, worker in dispatched.items())
        return 1 + int(self._state.now) % (MAX_SESSIONS - 1)

    def hold(self, client: ClientRecord, tasks: list[Task], now: float) -> None:
        """Hold new resubmitted tasks, which are `Waiting` with one extra missing dependency."""
        held: list[Task] = []
        for task in tasks:
            task.attempt = max(task.attempt, client.attempt_base)
            if not task.is_queued:
                continue  # an input has failed
            self._state.held[task] = None
            claim = self.claims.get(task.id)
            if claim is not None and claim.is_known:
                del self.claims[task.id]
                self._apply(task, claim, now)
            if task not in self._state.held:
                continue
            if task.group.spec.retries == 0 and not self._kept.get(client.id):
                self._unreported[task] = None
                self.next_at = min(self.next_at, self._fenced_at)
            else:
                held.append(task)
        if held:
            self._batches.append((max(self._opens_at, now + SETTLE_SECONDS), held))
            self.next_at = min(self.next_at, self._batches[0][0])

    def cancelled(self, client: ClientRecord, ids: Iterable[bytes]) -> None:
        for identifier in ids:
            if owner_of(identifier) == client.id and identifier in self.claims:
                self._drop(identifier)

    def client_given_up(self, client: ClientRecord, why: str) -> None:
        """Keep the unacknowledged results and the retries=0 tasks that may have run, in case the client returns."""
        self._kept.setdefault(client.id, not client.is_back)
        lost = f"its client {why}; retries=0, and the task may have run".encode()
        for task in client.tasks.values():
            if task.group.spec.retries == 0 and not task.is_queued:
                self.claims[task.id] = Claim(None, 1, once=True, result=_row(task.id, Outcome.WORKER_LOST, lost))
        pins = self._state.objects.pins.get(client.id, {})
        for identifier, retained in client.retained.items():
            if retained.unacknowledged and (not is_stored(retained.payload) or retained.payload[1:17] in pins):
                result = _row(identifier, retained.outcome, retained.payload)
                self.claims[identifier] = Claim(None, 1, once=True, result=result)

    def client_left(self, peer: bytes) -> None:
        self._kept.pop(peer, None)
        if self.claims:
            for identifier in [each for each in self.claims if owner_of(each) == peer]:
                self._drop(identifier)

    # -- workers

    def take(self, worker: Worker, message: WorkerReport | Returned | Suspended, now: float) -> None:
        """Process a worker's message about its attempts, both for tasks and for claims."""
        self._touched[worker] = None
        match message:
            case WorkerReport():
                self._reported_all(worker, message, now)
            case Returned(ids, attempts, started):
                self._tasks.returned(worker, message, now)
                for identifier, attempt, goes_on in zip(ids, attempts, started, strict=True):
                    if not goes_on and self._claim_of(worker, identifier, attempt) is not None:
                        self._forget_relays(self.claims.pop(identifier))
            case Suspended(ids, attempts, suspended):
                self._tasks.suspended(worker, message)
                for identifier, attempt, is_suspended in zip(ids, attempts, suspended, strict=True):
                    claim = self._claim_of(worker, identifier, attempt)
                    if claim is not None:
                        claim.suspended = is_suspended

    def _reported_all(self, worker: Worker, message: WorkerReport, now: float) -> None:
        worker.reports.came()
        if now < self._fenced_at:  # later, no task waits for a worker
            self._reported.add(worker.id)
        devices = message.devices or [()] * len(message.ids)
        answer, unstarted = Recall([], [], True), Recall([], [], False)
        columns = zip(message.ids, message.attempts, message.once, message.suspended, devices, strict=True)
        for identifier, attempt, once, suspended, gpus in columns:
            is_kept = self._keep(identifier, Claim(worker, attempt, once, suspended, gpus), now)
            if not is_kept or self._is_late(identifier, self._opens_at, now, is_here=True):
                recall = unstarted if is_kept else answer
                recall.ids.append(identifier)
                recall.attempts.append(attempt)
        for identifier in message.ids:
            task = self._state.living_task(identifier)
            if task is not None and task.is_queued and identifier in self.claims:
                self._apply(task, self.claims.pop(identifier), now)
        # The worker starts its unlisted tasks after the first answer, even an empty one.
        if unstarted.ids:
            unstarted.ids += answer.ids
            unstarted.attempts += answer.attempts
            self._outbox.send(worker.id, unstarted)
        if answer.ids or not unstarted.ids:
            self._outbox.send(worker.id, answer)

    def _keep(self, identifier: bytes, claim: Claim, now: float) -> bool:
        """Keep a worker's claim. Returns False if its task is on another worker or has ended."""
        task, other = self._state.living_task(identifier), self.claims.get(identifier)
        is_beaten = other is not None and other.is_known and (other.worker is None or other.attempt >= claim.attempt)
        if is_beaten or (task is not None and not task.is_queued):
            return False
        if self._is_late(identifier, self._dropped_at, now, is_here=False):
            return False
        if other is not None and other.is_known:
            self._drop(identifier)
        self.claims[identifier] = claim
        self.next_at = min(self.next_at, self._dropped_at)
        return True

    def _is_late(self, identifier: bytes, until: float, now: float, *, is_here: bool) -> bool:
        """Return whether a task was not resubmitted in time. is_here: whether its client is connected."""
        is_unknown = self._state.living_task(identifier) is None
        return is_unknown and now >= until and (owner_of(identifier) in self._state.clients) == is_here

    def done(self, worker: Worker, message: Done, index: int, batch: ResultBatch) -> bool:
        """Keep a row of a Done if it is the result of a claim. Returns whether it is."""
        identifier, attempt = message.ids[index], message.attempts[index]
        claim = self._claim_of(worker, identifier, attempt)
        if claim is None:
            return False
        columns = [getattr(message, name) for name in message.__match_args__]
        claim.result = Done(*([column[index]] if column else [] for column in columns))
        claim.batch = batch
        batch.left += 1
        return True

    def relayed(self, worker: Worker, relay: Relayed) -> bool:
        """Keep a nested client's message if its task is still a claim. Returns whether it is."""
        claim = self._stashed.get(relay.client) or self.claims.get(relay.task)
        if claim is None or claim.worker is not worker:
            return False
        self._stashed[relay.client] = claim
        claim.relays.append(relay)
        return True

    def relay_closed(self, peer: bytes) -> None:
        claim = self._stashed.pop(peer, None)
        if claim is not None:
            claim.relays = [relay for relay in claim.relays if relay.client != peer]

    def worker_left(self, worker: Worker, why: str) -> None:
        """Reduce a lost worker's claims to results and to tasks that may have run and must not be repeated."""
        for identifier, claim in list(self.claims.items()):
            if claim.worker is not worker:
                continue
            claim.worker, claim.batch = None, None
            self._forget_relays(claim)
            if claim.result is None:
                text = f"worker {worker.title} {why}; retries=0, and the task may have run".encode()
                claim.result = _row(identifier, Outcome.WORKER_LOST, text) if claim.once else None
            if claim.result is None:
                del self.claims[identifier]

    # -- time

    def tick(self, now: float) -> None:
        """Release held tasks that are due, and drop claims of clients that have not returned."""
        if now >= self._fenced_at:
            unreported, self._unreported = self._unreported, {}
            for task in unreported:
                if task in self._state.held:
                    self._lose(task)
        due, self._later = list(self._later), {}
        while self._batches and self._batches[0][0] <= now:
            due += self._batches.popleft()[1]
        if due:
            self._open(due, now)
        if now >= self._dropped_at:
            clients = self._state.clients
            for identifier, claim in list(self.claims.items()):
                owner = owner_of(identifier)
                if owner not in self._kept and (owner not in clients or not claim.once):
                    self._drop(identifier)
        self.next_at = self._batches[0][0] if self._batches else math.inf
        if self._unreported:
            self.next_at = min(self.next_at, self._fenced_at)
        if self._later:
            self.next_at = min(self.next_at, now + SWEEP_SECONDS)
        if self.claims and now < self._dropped_at:
            self.next_at = min(self.next_at, self._dropped_at)

    def _open(self, tasks: list[Task], now: float) -> None:
        """Release held tasks that are needed and may run. tasks: in order of dependency."""
        opened: list[Task] = []
        for task in reversed(tasks):
            if task not in self._state.held:
                continue
            claim = self.claims.get(task.id)
            if claim is not None and claim.sent_to and claim.sent_to not in self._reported:
                if now >= self._fenced_at:
                    self._lose(task)
                else:
                    self._later[task] = None
            elif self._is_needed(task):
                self.claims.pop(task.id, None)
                opened.append(task)
            elif any(type(each.state) is not Terminated for each in task.dependents or ()):
                self._later[task] = None
            else:
                self._unhold(task)
                self._tasks.end(task, Outcome.SUCCESS, b"")  # all tasks that needed its value have ended
        self._later = dict.fromkeys(reversed(self._later))
        for task in reversed(opened):
            if task in self._state.held:
                self._unhold(task)
                self._tasks.release_hold(task)

    def _is_needed(self, task: Task) -> bool:
        if task.group.spec.deliver or not task.dependents:
            return True
        later, unreported = self._later, self._unreported
        return any(
            type(each.state) is Waiting and each not in later and each not in unreported for each in task.dependents
        )

    # -- one task

    def _apply(self, task: Task, claim: Claim, now: float) -> None:
        worker, result = claim.worker, claim.result
        if worker is None or self._state.workers.get(worker.id) is not worker:
            if result is not None:
                self._unhold(task)
                self._tasks.end(task, result.outcomes[0], result.payloads[0], result.duration_us[0])
            return
        if not task.group.needs.fits(worker.offers):
            self._reject(worker, task.id, claim.attempt)
            return
        self._unhold(task)
        self._tasks.adopt(task, worker, claim.attempt, claim.devices, now)
        self._touched[worker] = None
        if claim.suspended:
            worker.block(task, is_blocked=True)
        if result is not None:
            assert claim.batch is not None, "the result came with a Done"
            self._tasks.done(worker, result, now, claim.batch)
        for relay in self._forget_relays(claim):
            self._relayed(worker, relay, now)

    def _unhold(self, task: Task) -> None:
        self._state.held.pop(task, None)
        self._unreported.pop(task, None)

    def _lose(self, task: Task) -> None:
        self.claims.pop(task.id, None)
        self._unhold(task)
        self._tasks.end(task, Outcome.WORKER_LOST, self._lost_text)

    def _claim_of(self, worker: Worker, identifier: bytes, attempt: int) -> Claim | None:
        claim = self.claims.get(identifier)
        return claim if claim is not None and claim.worker is worker and claim.attempt == attempt else None

    def _drop(self, identifier: bytes) -> None:
        claim = self.claims.pop(identifier)
        self._forget_relays(claim)
        if claim.batch is not None:
            claim.batch.settle()
        if claim.worker is None:
            return
        if claim.result is None:
            self._reject(claim.worker, identifier, claim.attempt)
        else:
            self._tasks.drop_late(claim.result.payloads[0], claim.worker)

    def _forget_relays(self, claim: Claim) -> list[Relayed]:
        relays, claim.relays = claim.relays, []
        for relay in relays:
            self._stashed.pop(relay.client, None)
        return relays

    def _reject(self, worker: Worker, identifier: bytes, attempt: int) -> None:
        self._outbox.send(worker.id, Recall([identifier], [attempt], True))


def _row(identifier: bytes, outcome: int, payload: bytes) -> Done:
    return Done([identifier], [1], [outcome], [payload], [0])
