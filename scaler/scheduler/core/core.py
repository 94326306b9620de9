"""The scheduler core: one batch of inputs in, one batch of commands out. Pure.

`SchedulerCore.step(inputs, now)` applies the inputs in order, lets time pass, places ready tasks, balances, asks the
scaling policy, and returns what is to be done. It never raises for what a peer says: nonsense is dropped and becomes a
fact. An AssertionError is a fault of ours; the shell writes the black box and stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from scaler.errors import UsageError
from scaler.ids import ID_BYTES, owner_of
from scaler.policy.view import ScalingPolicy
from scaler.protocol.messages import (
    AcknowledgeResults,
    Cancel,
    Clear,
    ClientDetails,
    Done,
    Drain,
    Explain,
    Explained,
    Goodbye,
    Heartbeat,
    HeartbeatEcho,
    Hello,
    ManagerDetails,
    ManagerStatus,
    Message,
    Output,
    Pin,
    Printed,
    ReadLog,
    RefusalReason,
    Refused,
    RelayClosed,
    Release,
    Returned,
    Shutdown,
    ShutdownCluster,
    ShutdownReply,
    Started,
    Submit,
    Suspended,
    TaskLog,
    WorkerDetails,
    WorkerHeartbeat,
)
from scaler.scheduler.core import inputs as events
from scaler.scheduler.core.balance import Balance
from scaler.scheduler.core.commands import Command, Expel, ForgetOwned, Stop
from scaler.scheduler.core.elastic import Elastic
from scaler.scheduler.core.explain import explain
from scaler.scheduler.core.facts import Facts, PeerJoined, PeerLost, PeerProtocolError, WorkerQuarantined
from scaler.scheduler.core.groups import Groups
from scaler.scheduler.core.history import History
from scaler.scheduler.core.logs import Logs
from scaler.scheduler.core.objects import ObjectTable
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.ready import ReadyQueues
from scaler.scheduler.core.state import Client, ManagerRecord, Worker
from scaler.scheduler.core.submission import Submission
from scaler.scheduler.core.tasks import Tasks

BREAK_GRACE_SECONDS = 3.0
"""How long a worker whose connection was seen to break may take to come back before its tasks go to others."""
QUARANTINE_FAILURES = 5
"""Infrastructure failures in a row after which a worker gets nothing more."""
TICK_SECONDS = 0.25
"""The shell steps at least this often; a longer gap was a stall of ours, and is added to every peer's deadline."""
EXPIRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What of the scheduler's configuration the core needs."""

    protected: bool = True
    max_tasks_waiting: int = -1
    client_timeout_seconds: float = 60.0
    worker_timeout_seconds: float = 60.0
    object_retention_seconds: float = 60.0
    load_balance_seconds: float = 1.0
    load_balance_trigger_times: int = 2


class SchedulerCore:
    """All of the scheduler's state, and its one door `step`."""

    def __init__(self, settings: CoreSettings, policy: ScalingPolicy, now: float) -> None:
        self.settings = settings
        self.facts = Facts()
        self.clients: dict[bytes, Client] = {}
        self.workers: dict[bytes, Worker] = {}
        self.objects = ObjectTable()
        self.ready = ReadyQueues()
        self.history = History(now)
        self.logs = Logs()
        self.outbox = Outbox(self.objects, self.facts, self.history)
        self.groups = Groups(self.objects)
        self.tasks = Tasks(self.groups, self.objects, self.ready, self.outbox, self.facts)
        self.submission = Submission(self.tasks, self.groups, self.objects, self.ready, settings.max_tasks_waiting)
        self.placement = Placement(self.ready, self.tasks, self.outbox, policy.allocation)
        self.balance = Balance(
            self.placement, self.outbox, settings.load_balance_seconds, settings.load_balance_trigger_times, now
        )
        self.elastic = Elastic(policy, self.placement, self.outbox, self.facts, now)
        self._last_step = now
        self._stalled_seconds = 0.0
        self._next_expiry = now
        self._more = False
        self._retained: dict[bytes, float] = {}
        self._touched: dict[Worker, None] = {}

    # -- the door

    def step(self, inputs: Sequence[events.Input], now: float) -> list[Command]:
        """Apply a batch of inputs at monotonic time `now` (seconds) and return what is to be done, in order."""
        time = self._advance(now)
        self.history.now = now
        for item in inputs:
            match item:
                case events.Said(peer, message):
                    self._said(peer, message, time)
                case events.Joined(peer, hello):
                    self._joined(peer, hello, time)
                case events.NestedJoined(peer, via):
                    self._nested_joined(peer, via, time)
                case events.Broke(peer):
                    self._broke(peer, time)
                case events.Returned(peer):
                    self._came_back(peer, time)
                case events.Left(peer, text):
                    self._left(peer, text, time)
                case _:
                    assert_never(item)
        if time >= self._next_expiry:
            self._next_expiry = time + EXPIRY_SECONDS
            self._expire(time)
        self.tasks.wake(time)
        for worker in self._touched:
            self._settle(worker, time)
        self._touched.clear()
        self.outbox.undefine(self.workers)
        self._more = self.placement.place(time)
        self.balance.step(time)
        self.elastic.step(self.clients.values(), self.workers, self.ready.any, time)
        return self.outbox.flush(self.workers)

    def next_step_at(self, now: float) -> float:
        """Return the time at which the core wants its next step even if nothing happens (same clock as `step`)."""
        if self._more:
            return now
        look_at = self.balance.next_check if self.placement.overloaded else None
        wishes = (self.tasks.next_wake(), self.balance.poll_again_at, look_at, self.elastic.next_plan)
        soonest = min((at for at in wishes if at is not None), default=now + TICK_SECONDS)
        return max(now, min(now + TICK_SECONDS, soonest + self._stalled_seconds))

    def own_time(self, now: float) -> float:
        """Return what the core's records mean by this time: the clock's, without the times when nobody stepped it."""
        return now - self._stalled_seconds

    def _advance(self, now: float) -> float:
        """Return the core's own time: the clock's, without the times when the shell did not step."""
        gap = now - self._last_step
        self._last_step = now
        if gap > 2 * TICK_SECONDS:
            self._stalled_seconds += gap - TICK_SECONDS
        return now - self._stalled_seconds

    # -- who is here

    def _joined(self, peer: bytes, hello: Hello, now: float) -> None:
        self._forget_peer(peer, "opened a new session", now, retain=True)
        details = hello.details
        match details:
            case WorkerDetails():
                self._worker_joined(peer, hello, details, now)
            case ManagerDetails():
                self._manager_joined(peer, details, now)
            case ClientDetails() | None:
                name = details.name if details is not None else ""
                self._retained.pop(peer, None)
                self.clients[peer] = Client(peer, name or f"{hello.hostname}|{hello.pid}", None, now)
                self.facts.add(PeerJoined("client", peer, self.clients[peer].name))
            case _:
                assert_never(details)

    def _worker_joined(self, peer: bytes, hello: Hello, details: WorkerDetails, now: float) -> None:
        if details.slots < 1 or details.queue_size < 0:
            self._expel(peer, f"a worker with {details.slots} slots and queue size {details.queue_size}")
            return
        try:
            worker = Worker(peer, details, hello.hostname, hello.pid, now)
        except UsageError as error:
            self._expel(peer, str(error))
            return
        self.workers[peer] = worker
        self.placement.add(worker)
        self.elastic.worker_joined(worker, now)
        self.facts.add(PeerJoined("worker", peer, worker.name))

    def _manager_joined(self, peer: bytes, details: ManagerDetails, now: float) -> None:
        if details.unit_slots < 1:
            self._expel(peer, f"a worker manager whose units have {details.unit_slots} slots")
            return
        earlier = self.elastic.by_name(details.manager_id)
        if earlier is not None:
            # The shell admits a second one only while the first is out of contact: it was restarted.
            self._give_up(earlier.id, f"another worker manager came as {details.manager_id}", now)
        try:
            self.elastic.join(peer, details, self.workers.values(), now)
        except UsageError as error:
            self._expel(peer, str(error))
            return
        self.facts.add(PeerJoined("manager", peer, details.manager_id))

    def _nested_joined(self, peer: bytes, via: bytes, now: float) -> None:
        worker = self.workers.get(via)
        if worker is None or self._record(peer) is not None:
            return
        worker.nested.add(peer)
        self.clients[peer] = Client(peer, f"in a task on {worker.name}", worker, now)

    def _broke(self, peer: bytes, now: float) -> None:
        record = self._record(peer)
        if record is None or record.broken_at is not None:
            return
        record.broken_at = now
        if isinstance(record, Worker):
            self.placement.update(record)

    def _came_back(self, peer: bytes, now: float) -> None:
        record = self._record(peer)
        if record is None:
            return
        record.broken_at = None
        record.last_message_at = now
        if isinstance(record, Worker):
            self.placement.update(record)

    def _left(self, peer: bytes, text: str, now: float) -> None:
        self._forget_peer(peer, text or "said goodbye", now, retain=False)

    def _record(self, peer: bytes) -> Client | Worker | ManagerRecord | None:
        return self.clients.get(peer) or self.workers.get(peer) or self.elastic.managers.get(peer)

    def _give_up(self, peer: bytes, why: str, now: float) -> None:
        """End the session of a peer that was out of contact for too long."""
        worker = self.workers.get(peer)
        if worker is not None:
            self.elastic.worker_given_up(worker)
        self._expel(peer, why)
        self._forget_peer(peer, why, now, retain=True)

    def _forget_peer(self, peer: bytes, why: str, now: float, retain: bool) -> None:
        client = self.clients.get(peer)
        if client is not None:
            self._client_gone(client, why, now, retain)
        worker = self.workers.get(peer)
        if worker is not None:
            self._worker_gone(worker, why, not worker.draining, now)
        record = self.elastic.managers.get(peer)
        if record is not None:
            self.elastic.leave(peer)
            self.facts.add(PeerLost("manager", peer, record.details.manager_id, why))

    def _client_gone(self, client: Client, why: str, now: float, retain: bool = False) -> None:
        """Forget a client; with retain, its stored objects stay for a while, should it come back."""
        del self.clients[client.id]
        if client.via is not None:
            client.via.nested.discard(client.id)
        self.tasks.client_gone(client)
        self.objects.client_gone(client.id, retain)
        if retain:
            self._retained[client.id] = now + self.settings.object_retention_seconds
        else:
            self.outbox.add(ForgetOwned(client.id))
        self.facts.add(PeerLost("client", client.id, client.name, why))

    def _worker_gone(self, worker: Worker, why: str, charged: bool, now: float) -> None:
        del self.workers[worker.id]
        self._touched.pop(worker, None)
        self.placement.remove(worker)
        self.elastic.worker_left(worker)
        self.objects.worker_gone(worker.id, worker.known)
        for nested in list(worker.nested):
            self._client_gone(self.clients[nested], f"its worker {worker.name} {why}", now)
        self.tasks.worker_lost(worker, why, charged, now)
        self.outbox.discard(worker)
        self.facts.add(PeerLost("worker", worker.id, worker.name, why))

    def _expel(self, peer: bytes, why: str) -> None:
        self.outbox.add(Expel(peer, Refused(RefusalReason.EXPIRED, why)))

    def _expire(self, now: float) -> None:
        """End the sessions of peers that were silent, or whose connection was gone, for too long."""
        settings = self.settings
        for worker in list(self.workers.values()):
            if worker.broken_at is not None and now - worker.broken_at > BREAK_GRACE_SECONDS:
                self._give_up(worker.id, f"was gone for {now - worker.broken_at:.1f} s", now)
            elif now - worker.last_message_at > settings.worker_timeout_seconds:
                self._give_up(worker.id, f"was silent for {now - worker.last_message_at:.0f} s", now)
        for client in list(self.clients.values()):
            if client.via is None and now - client.last_message_at > settings.client_timeout_seconds:
                self._give_up(client.id, f"was silent for {now - client.last_message_at:.0f} s", now)
        for record in list(self.elastic.managers.values()):
            broken = record.broken_at is not None and now - record.broken_at > BREAK_GRACE_SECONDS
            if broken or now - record.last_message_at > settings.worker_timeout_seconds:
                self._give_up(record.id, "was gone for too long", now)
        for owner in [owner for owner, until in self._retained.items() if until <= now]:
            del self._retained[owner]
            self.outbox.add(ForgetOwned(owner))
        self.ready.drop_empty()

    # -- what they say

    def _said(self, peer: bytes, message: Message, now: float) -> None:
        worker = self.workers.get(peer)
        if worker is not None:
            worker.last_message_at = now
            self._worker_said(worker, message, now)
            return
        client = self.clients.get(peer)
        if client is not None:
            client.last_message_at = now
            self._client_said(client, message)
            return
        record = self.elastic.managers.get(peer)
        if record is not None:
            record.last_message_at = now
            if isinstance(message, ManagerStatus):
                self.elastic.status(record, message, now)
                self.outbox.send(peer, HeartbeatEcho(message.sent_at))
            else:
                self._protocol_error(peer, message)
            return
        self._protocol_error(peer, message)

    def _client_said(self, client: Client, message: Message) -> None:
        match message:
            case Submit():
                for text in self.submission.submit(client, message):
                    self.facts.add(PeerProtocolError(client.id, text))
            case AcknowledgeResults(number):
                self.tasks.acknowledge(client, number)
            case Cancel(ids):
                self.tasks.cancel(client, ids)
            case Release(ids):
                for identifier in ids:
                    self.objects.release(identifier, client.id)
            case Pin(ids):
                for identifier in ids:
                    if len(identifier) == ID_BYTES and identifier.startswith(client.id):
                        self.objects.hold(identifier)
            case Clear():
                self.tasks.cancel(client, list(client.tasks))
                for identifier in self.objects.held_by(client.id):
                    self.objects.release(identifier, client.id)
            case Explain(task):
                self.outbox.send_to_client(client, Explained(task, self._explain(client, task)))
            case ReadLog(task):
                own = task.startswith(client.id)
                self.outbox.send_to_client(client, self.logs.read(task) if own else TaskLog(task, b"", b"", 0))
            case Heartbeat():
                pass  # that it was heard is all; the listener has answered
            case ShutdownCluster():
                self._shutdown(client)
            case _:
                self._protocol_error(client.id, message)

    def _explain(self, client: Client, task: bytes) -> str:
        if not task.startswith(client.id):
            return "it is a task of another client, which may ask for itself; monitors may ask for all"
        return explain(self, task, self.history.now)

    def _shutdown(self, client: Client) -> None:
        if self.settings.protected:
            text = "the scheduler is protected: start it with protected=False to allow clients to shut it down"
            self.outbox.send_to_client(client, ShutdownReply(False, text))
            return
        text = f"client {client.name} shut the cluster down"
        self.outbox.send_to_client(client, ShutdownReply(True, text))
        for peer in [*self.workers, *self.elastic.managers]:
            self.outbox.send(peer, Shutdown(text))
        self.outbox.add(Stop(text))

    def _worker_said(self, worker: Worker, message: Message, now: float) -> None:
        match message:
            case Done():
                self.tasks.done(worker, message, now)
                self._touched[worker] = None
                if worker.failures_in_row >= QUARANTINE_FAILURES and not worker.draining and self._others_do_well():
                    self._quarantine(worker)
            case Returned():
                self.tasks.returned(worker, message, now)
                self._touched[worker] = None
            case Suspended():
                self.tasks.suspended(worker, message)
                self._touched[worker] = None
            case WorkerHeartbeat():
                worker.heartbeat = message
                worker.heartbeat_at = now
            case RelayClosed(nested):
                client = self.clients.get(nested)
                if client is not None and client.via is worker:
                    self._client_gone(client, "its task's process ended", now)
            case Output():
                self._output(message)
            case Printed():
                self._printed(message)
            case Started(ids):
                self.tasks.started(worker, ids)
            case Drain(text):
                # It leaves by somebody else's wish, and waits to hear that nothing more comes.
                self.elastic.drain(worker, text)
            case Goodbye(text):
                self._forget_peer(worker.id, text, now, retain=False)
            case _:
                self._protocol_error(worker.id, message)

    def _output(self, message: Output) -> None:
        """Keep what a task wrote, and pass it on to the client that owns it."""
        client = self.clients.get(owner_of(message.task))
        if client is not None:
            self.logs.add(message.task, message.is_stderr, message.text)
            self.outbox.send_to_client(client, message)

    def _printed(self, message: Printed) -> None:
        """Keep what tasks printed."""
        columns = zip(message.ids, message.are_stderr, message.truncated_bytes, message.texts, strict=True)
        for task, is_stderr, lost, text in columns:
            if owner_of(task) in self.clients:
                self.logs.add(task, is_stderr, text, lost)

    def _others_do_well(self) -> bool:
        """Tell whether a worker is without failures: where all fail, or there is only one, the tasks are at fault."""
        return any(not worker.failures_in_row and not worker.draining for worker in self.workers.values())

    def _quarantine(self, worker: Worker) -> None:
        why = f"{worker.failures_in_row} tasks in a row ended in a failure of the worker"
        worker.draining = worker.quarantined = True
        self.outbox.send(worker.id, Drain(f"quarantined: {why}"))
        self.facts.add(WorkerQuarantined(worker.id, worker.name, why))

    def _settle(self, worker: Worker, now: float) -> None:
        """After a batch from a worker: bring its credit up to date."""
        if not worker.tasks:
            worker.idle_since = now
        self.placement.update(worker)

    def _protocol_error(self, peer: bytes, message: Message) -> None:
        self.facts.add(PeerProtocolError(peer, f"said {type(message).__name__}, which it may not"))
