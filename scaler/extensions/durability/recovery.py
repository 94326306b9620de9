"""Recovery of a restarted scheduler from the reports of its peers, including its journal. Pure.

Clients resubmit their unfinished tasks, and workers report their attempts and results, in any order. The journal does
both: it resubmits its clients' tasks and reports which retries=0 tasks were sent to which worker. A resubmitted task is
*held* (`Waiting`, with one extra missing dependency) until workers have had time to report. A report whose task has not
been resubmitted yet is a *claim*. Once the task and its claim have arrived, the scheduler assigns the task to that
worker with that attempt, or completes the task with the reported result. A dropped client's tasks also become claims,
in case the client returns.

Held tasks are released after RECOVERY_SECONDS, with two exceptions:

- A retries=0 task that may have been sent to a worker waits until this worker reports. A worker that does not report
  within its lease has killed such tasks itself, so they then fail as lost. Without a journal, this applies to all such
  tasks.
- A task whose value only other tasks need remains held until such a task waits for the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scaler.ids import owner_of
from scaler.protocol.messages import Done, Outcome, Recall, Returned, Suspended, WorkerReport, is_stored
from scaler.scheduler.core.commands import Relayed
from scaler.scheduler.core.durability import MAX_SESSIONS, RECOVERY_SECONDS, REMEDY, UNREPORTED, Durability
from scaler.scheduler.core.state import ClientRecord, ResultBatch, Task, Terminated, Waiting, Worker

SETTLE_SECONDS = 0.1
"""Seconds for which late resubmissions are held, because their dependents arrive in later messages."""
SWEEP_SECONDS = 0.25
_LATER = math.inf
"""Release time of held tasks without a time limit: see the two exceptions in the module docstring."""


@dataclass(slots=True, eq=False)
class Claim:
    """An attempt of a task that its client has not resubmitted yet, or its result.

    worker: has the task or reported its result; None: no worker has it now, and `result` is set.
    """

    worker: Worker | None
    attempt: int
    once: bool
    suspended: bool = False
    devices: tuple[int, ...] = ()
    result: Done | None = None
    batch: ResultBatch | None = None


class Recovery(Durability):
    """Claims and held tasks; both are empty except during recovery."""

    claims: dict[bytes, Claim]
    held: dict[Task, float]
    """Release time by task, in dependency order."""

    def __init__(self) -> None:
        self.claims = {}
        self.held = {}
        self._relays: dict[bytes, list[Relayed]] = {}
        """Messages of nested clients whose first task is a claim."""
        self._kept: dict[bytes, bool] = {}
        """Clients in the journal or dropped, until they disconnect. Their claims are kept. Value: whether it is known
        which of the client's retries=0 tasks may have run."""
        self._sent: dict[bytes, bytes] = {}
        """The worker to which each journaled retries=0 task was sent."""
        self._reported: set[bytes] = set()
        """Workers that reconnected from an earlier scheduler within their lease."""

    def bound(self, core: Any) -> None:
        super().bound(core)
        self._opens_at = self.recovers_until = self._state.now + RECOVERY_SECONDS
        self._fenced_at = self._state.now + core.config.worker_timeout_seconds
        self._dropped_at = self._state.now + core.config.client_timeout_seconds
        self._unreported = (UNREPORTED if core.config.state_directory else f"{UNREPORTED}{REMEDY}").encode()

    # -- clients

    def recovered(self, client: ClientRecord, dispatched: Mapping[bytes, bytes]) -> int:
        """Prepare for a journaled client. Returns `again` for its Submit. dispatched: worker by retries=0 task."""
        self._kept[client.id] = True
        if dispatched:
            self._sent.update(dispatched)
            self.next_at = min(self.next_at, self._fenced_at)
        return 1 + int(self._state.now) % (MAX_SESSIONS - 1)

    def hold(self, tasks: list[Task], now: float) -> None:
        at = max(self._opens_at, now + SETTLE_SECONDS)
        for task in tasks:
            if not task.is_queued:
                continue  # an input has failed
            may_run = self._may_run(task)
            self.held[task] = _LATER if may_run else at
            self.next_at = min(self.next_at, self._fenced_at if may_run else at)
            if task.id in self.claims:
                self._apply(task, self.claims.pop(task.id), now)

    def cancelled(self, client: ClientRecord, ids: Iterable[bytes]) -> None:
        for identifier in ids:
            if owner_of(identifier) == client.id and identifier in self.claims:
                self._drop(identifier)

    def client_given_up(self, client: ClientRecord, why: str) -> None:
        """Keep unacknowledged results, and retries=0 tasks that may have run, in case the client returns."""
        self._kept.setdefault(client.id, not client.is_back)
        lost = f"its client {why}; retries=0, and the task may have run".encode()
        for task in client.tasks.values():
            if task.group.spec.retries == 0 and not task.is_queued:
                self._claim_result(task.id, Outcome.WORKER_LOST, lost)
        pins = self._state.objects.pins.get(client.id, {})
        for identifier, retained in client.retained.items():
            if retained.unacknowledged and (not is_stored(retained.payload) or retained.payload[1:17] in pins):
                self._claim_result(identifier, retained.outcome, retained.payload)

    def client_left(self, peer: bytes) -> None:
        self._kept.pop(peer, None)
        for identifier in [each for each in self.claims if owner_of(each) == peer]:
            self._drop(identifier)

    # -- workers

    def take(self, worker: Worker, message: WorkerReport | Returned | Suspended, now: float) -> None:
        """Process a worker's message about its attempts, both for tasks and for claims."""
        match message:
            case WorkerReport():
                self._reported_all(worker, message, now)
            case Returned(ids, attempts, started):
                self._tasks.returned(worker, message, now)
                for identifier, attempt, goes_on in zip(ids, attempts, started, strict=True):
                    if not goes_on and self._claim_of(worker, identifier, attempt) is not None:
                        del self.claims[identifier]
                        self._take_relays(identifier)
            case Suspended(ids, attempts, suspended):
                self._tasks.suspended(worker, message)
                for identifier, attempt, is_suspended in zip(ids, attempts, suspended, strict=True):
                    claim = self._claim_of(worker, identifier, attempt)
                    if claim is not None:
                        claim.suspended = is_suspended

    def _reported_all(self, worker: Worker, message: WorkerReport, now: float) -> None:
        worker.reports.is_awaited = False
        if now < self._fenced_at:  # after this time, tasks do not wait for a worker
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
        if self._sent:  # the worker may not have received all tasks that were sent to it
            self.next_at = min(self.next_at, max(self._opens_at, now + SETTLE_SECONDS))
        # After the first answer, even an empty one, the worker starts its unlisted tasks.
        if unstarted.ids:
            unstarted.ids += answer.ids
            unstarted.attempts += answer.attempts
            self._outbox.send(worker.id, unstarted)
        if answer.ids or not unstarted.ids:
            self._outbox.send(worker.id, answer)

    def _keep(self, identifier: bytes, claim: Claim, now: float) -> bool:
        """Keep a worker's claim. Returns False if its task is on another worker or has ended."""
        task, other = self._state.living_task(identifier), self.claims.get(identifier)
        is_beaten = other is not None and (other.worker is None or other.attempt >= claim.attempt)
        if is_beaten or (task is not None and not task.is_queued):
            return False
        if self._is_late(identifier, self._dropped_at, now, is_here=False):
            return False
        if other is not None:
            self._drop(identifier)
        self.claims[identifier] = claim
        self.next_at = min(self.next_at, self._dropped_at)
        return True

    def _is_late(self, identifier: bytes, until: float, now: float, *, is_here: bool) -> bool:
        """Return whether a task was not resubmitted in time. is_here: whether its client is connected."""
        is_unknown = self._state.living_task(identifier) is None
        return is_unknown and now >= until and (owner_of(identifier) in self._state.clients) == is_here

    def done(self, worker: Worker, message: Done, index: int, batch: ResultBatch) -> bool:
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
        relays = self._relays.get(relay.client)
        if relays is None:
            claim = self.claims.get(relay.task)
            if claim is None or claim.worker is not worker:
                return False
            relays = self._relays[relay.client] = []
        relays.append(relay)
        return True

    def relay_closed(self, nested: bytes) -> None:
        self._relays.pop(nested, None)

    def worker_left(self, worker: Worker, why: str) -> None:
        """Reduce a lost worker's claims to results and to tasks that may have run and must not be repeated."""
        for identifier, claim in list(self.claims.items()):
            if claim.worker is not worker:
                continue
            claim.worker, claim.batch = None, None
            self._take_relays(identifier)
            if claim.result is None:
                del self.claims[identifier]
                if claim.once:
                    text = f"worker {worker.title} {why}; retries=0, and the task may have run"
                    self._claim_result(identifier, Outcome.WORKER_LOST, text.encode())

    # -- time

    def tick(self, now: float) -> None:
        """Release held tasks that are due, and drop claims of clients that have not returned."""
        if now >= self._dropped_at:
            clients = self._state.clients
            for identifier, claim in list(self.claims.items()):
                owner = owner_of(identifier)
                if owner not in self._kept and (owner not in clients or not claim.once):
                    self._drop(identifier)
        sweep_at = self._open([task for task, at in self.held.items() if at <= now or at == _LATER], now)
        if now >= self._fenced_at:
            self._sent.clear()
        self.next_at = min([sweep_at, *self.held.values()])
        if self.claims and now < self._dropped_at:
            self.next_at = min(self.next_at, self._dropped_at)
        if self._sent or (self.held and now < self._fenced_at):
            self.next_at = min(self.next_at, self._fenced_at)

    def _open(self, tasks: list[Task], now: float) -> float:
        """Release held tasks that are needed and may run. tasks: in dependency order. Returns when to retry."""
        opened: list[Task] = []
        again_at = math.inf
        for task in reversed(tasks):
            self.held[task] = _LATER
            if type(task.state) is not Waiting:  # an input has failed, or the task was cancelled
                del self.held[task]
            elif self._may_run(task):
                if now >= self._fenced_at:
                    del self.held[task]
                    self._tasks.end(task, Outcome.WORKER_LOST, self._unreported)
            elif self._is_needed(task):
                opened.append(task)
                self.held[task] = now
            elif any(type(each.state) is not Terminated for each in task.dependents or ()):
                again_at = now + SWEEP_SECONDS
            else:  # all tasks that needed its value have ended
                del self.held[task]
                self._tasks.end(task, Outcome.SUCCESS, b"")
        for task in reversed(opened):
            del self.held[task]
            if type(task.state) is Waiting:
                self._tasks.release_hold(task)
        return again_at

    def _may_run(self, task: Task) -> bool:
        """Return whether a retries=0 task may have been sent to a worker that has not reported. Without a journal, this
        holds for a member of a restartable gang only if another member has been adopted."""
        spec = task.group.spec
        if spec.retries:
            return False
        if not self._kept.get(task.group.client.id):
            return spec.losses <= 1 or task.group.assigned > 0
        sent_to = self._sent.get(task.id)
        return sent_to is not None and sent_to not in self._reported

    def _is_needed(self, task: Task) -> bool:
        if task.group.spec.deliver or not task.dependents:
            return True
        return any(type(each.state) is Waiting and self.held.get(each) != _LATER for each in task.dependents)

    # -- one task

    def _apply(self, task: Task, claim: Claim, now: float) -> None:
        worker, result = claim.worker, claim.result
        if worker is None or self._state.workers.get(worker.id) is not worker:
            if result is not None:
                self.held.pop(task, None)
                self._tasks.end(task, result.outcomes[0], result.payloads[0], result.duration_us[0])
            return
        if not task.group.needs.fits(worker.offers):
            self._take_relays(task.id)
            self._reject(worker, task.id, claim.attempt)
            return
        self.held.pop(task, None)
        self._tasks.adopt(task, worker, claim.attempt, claim.devices, now)
        self._core.placement.touched[worker] = None
        if claim.suspended:
            worker.block(task, is_blocked=True)
        if result is not None:
            assert claim.batch is not None, "the result arrived in a Done"
            self._tasks.done(worker, result, now, claim.batch)
        for relay in self._take_relays(task.id):
            self._core.relayed(worker, relay, now)

    def _claim_of(self, worker: Worker, identifier: bytes, attempt: int) -> Claim | None:
        claim = self.claims.get(identifier)
        return claim if claim is not None and claim.worker is worker and claim.attempt == attempt else None

    def _claim_result(self, identifier: bytes, outcome: int, payload: bytes) -> None:
        row = Done([identifier], [1], [outcome], [payload], [0])
        self.claims[identifier] = Claim(None, 1, once=True, result=row)

    def _drop(self, identifier: bytes) -> None:
        claim = self.claims.pop(identifier)
        self._take_relays(identifier)
        if claim.batch is not None:
            claim.batch.settle()
        if claim.worker is None:
            return
        if claim.result is None:
            self._reject(claim.worker, identifier, claim.attempt)
        else:
            self._tasks.drop_late(claim.result.payloads[0], claim.worker)

    def _take_relays(self, task: bytes) -> list[Relayed]:
        nested = [client for client, relays in self._relays.items() if relays[0].task == task]
        return [relay for client in nested for relay in self._relays.pop(client)]

    def _reject(self, worker: Worker, identifier: bytes, attempt: int) -> None:
        self._outbox.send(worker.id, Recall([identifier], [attempt], True))
