"""Interface of the `durability` extension, and the core's behavior without it. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from scaler.net.connection import Identity, TryAgain
from scaler.protocol.messages import (
    Done,
    Hello,
    Message,
    Outcome,
    Recall,
    RefusalReason,
    Refused,
    Returned,
    Submit,
    Suspended,
    TaskGroup,
    WorkerReport,
)
from scaler.scheduler.core.commands import Command, Relayed
from scaler.scheduler.core.state import ClientRecord, PeerRecord, ResultBatch, RetainedResult, Task, Worker

RECOVERY_SECONDS = 1.5
"""Seconds after the start that workers and stores have to report before resubmitted tasks are placed."""
ATTEMPTS_BETWEEN_SESSIONS = 1024
MAX_SESSIONS = 60
"""Attempt numbers of tasks resubmitted for the n-th time begin at n % MAX_SESSIONS * ATTEMPTS_BETWEEN_SESSIONS.

Their result ids therefore differ from the ids of attempts that earlier schedulers dispatched.
"""
UNREPORTED = (
    "the scheduler was restarted or its client was out of contact, and no worker has reported the task; retries=0, and "
    "the task may have run"
)
REMEDY = "; set [scheduler] state_directory, so that a restarted scheduler knows which tasks were sent to workers"
_NO_SESSIONS = "this scheduler has no durable sessions: its extension durability is disabled"


class Durability:
    """Recovery of a restarted scheduler, the journal's view of the changes, and durable sessions.

    Without the extension, the core uses this base class, which recalls attempts that an earlier scheduler dispatched
    and runs resubmitted tasks again. Tasks with retries=0 may have run, so they end as lost. Times are core time.
    """

    changes: Collection[type] = ()
    """Types of changes that `on_changes` receives. Its commands are the last in a step."""
    messages: Collection[type[Message]] = ()
    """Types of client messages that `on_message` receives."""
    inputs: Collection[type] = ()
    """Types of the items that `said` receives, and of the values in them."""
    next_at = math.inf
    """Time of the next `tick`."""
    recovers_until = 0.0
    """Time until which another worker may report a later attempt of a resubmitted task."""
    claims: Container[bytes] = ()
    """Tasks that workers have or had, but the scheduler does not know."""
    held: Container[Task] = ()
    """Resubmitted tasks that are Waiting because workers may have them."""
    failure = ""
    """Why new tasks are rejected instead of journaled; empty if journaling works."""
    is_stuck = False
    """Whether all work waits because nothing can be journaled."""
    refused: Mapping[bytes, RetainedResult] = {}
    """Tasks refused because of `failure`. Tasks that depend on a refused task fail for the same reason."""

    def bound(self, core: Any) -> None:
        """Called once, before the first step, with the `SchedulerCore`."""
        self._core = core
        self._state = core.state
        self._tasks = core.tasks
        self._outbox = core.outbox

    def tick(self, now: float) -> None: ...

    def on_changes(self, _changes: Sequence[Any], _now: Any) -> Iterable[Command]:
        return ()

    def said(self, item: Any, now: float) -> None:
        """Process an item from the extension's shell."""

    # -- resubmitted tasks and reported attempts

    def hold(self, tasks: list[Task], _now: float) -> None:
        """Hold new resubmitted tasks, which are `Waiting` with one extra missing dependency."""
        for task in tasks:
            if task.is_queued and task.group.spec.retries:
                self._tasks.release_hold(task)
            elif task.is_queued:  # no input has failed
                self._tasks.end(task, Outcome.WORKER_LOST, f"{UNREPORTED}{REMEDY}".encode())

    def take(self, worker: Worker, message: WorkerReport | Returned | Suspended, now: float) -> None:
        """Process a worker's message about its attempts."""
        match message:
            case WorkerReport(ids, attempts):
                worker.reports.is_awaited = False
                self._outbox.send(worker.id, Recall(ids, attempts, True))
            case Returned():
                self._tasks.returned(worker, message, now)
            case Suspended():
                self._tasks.suspended(worker, message)

    def done(self, _worker: Worker, _message: Done, _index: int, _batch: ResultBatch) -> bool:
        """Store a row of a Done that matches no task on its worker. Returns False if the result is useless."""
        return False

    def relayed(self, _worker: Worker, _relay: Relayed) -> bool:
        """Store a message from an unknown nested client whose task is not resubmitted yet. Returns False otherwise."""
        return False

    def relay_closed(self, nested: bytes) -> None: ...
    def worker_left(self, worker: Worker, why: str) -> None: ...
    def cancelled(self, client: ClientRecord, ids: Iterable[bytes]) -> None: ...

    # -- clients

    def client_given_up(self, client: ClientRecord, why: str) -> None:
        """Called when a client that may return is lost, while its record is still complete."""

    def client_left(self, peer: bytes) -> None: ...
    def returned(self, _peer: bytes, _hello: Hello, _identity: Identity, _now: float) -> bool:
        """Attach a client to its record from an earlier scheduler. Returns False if there is no such record."""
        return False

    # -- durable sessions

    def refusal(
        self, _peer: bytes, _name: str, _identity: Identity, _now: float, _is_its_own: bool
    ) -> Refused | TryAgain | None:
        """Return why a client may not use this session, or None. is_its_own: the client returns to its own session."""
        return Refused(RefusalReason.LIMIT, _NO_SESSIONS)

    def attach(self, client: ClientRecord, name: str, where: str, identity: Identity, now: float) -> ClientRecord:
        """Return the record of a continued session, or `client` for a new one. where: host and pid of the client.

        Only this hook sets `is_durable`. The hooks below are called only for durable clients, except `repeated`."""
        raise NotImplementedError

    def detach(self, client: ClientRecord, now: float) -> None: ...
    def on_message(self, peer: PeerRecord, message: Any, state: Any) -> Iterable[Command]:
        raise NotImplementedError

    def make_way(self, client: ClientRecord, message: Submit) -> str:
        """Prepare for a Submit before it is journaled. Returns an error if its labels must be dropped."""
        raise NotImplementedError

    def repeated(self, client: ClientRecord, columns: TaskGroup, row: int) -> None:
        """Answer a repeated task."""

    def label(self, client: ClientRecord, columns: TaskGroup, row: int) -> int:
        """Record a task. Returns the number of bytes added."""
        raise NotImplementedError

    def ended(self, task: Task) -> None: ...
    def send_owed(self, client: ClientRecord) -> None:
        """Send the next requested results once all earlier results are acknowledged."""

    # -- a failing disk

    def refuse(self, client: ClientRecord, function: str, ids: list[bytes]) -> None:
        """Answer new tasks while `failure` is set."""
