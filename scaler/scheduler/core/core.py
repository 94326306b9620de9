"""The scheduler core: one batch of inputs in, one batch of commands out. Pure.

`SchedulerCore.step(inputs, now)` applies the inputs in order, runs timers, places ready tasks, balances, asks the
scaling policy, and returns commands. Peers cannot make `step` raise: invalid messages are dropped and published as
incidents. An AssertionError is a bug in the scheduler; the shell then writes the black box and stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from typing import assert_never

from scaler.errors import ProtocolError, UsageError
from scaler.grammar import counted
from scaler.ids import ID_BYTES, owner_of
from scaler.net.connection import LOCAL, NOBODY, Broken, Closed, Identity, Opened, Received, Resumed, TryAgain
from scaler.protocol import messages
from scaler.protocol.messages import ClientDetails, ManagerDetails, Message, Refused, StoreDetails, WorkerDetails
from scaler.scheduler.core import commands
from scaler.scheduler.core.accounts import ENTRY_BYTES, KeyAccount, KeyAccounts, Rules
from scaler.scheduler.core.changes import Action, ClientJoined, ClientLeft, Incident, Submitted, peer_incident
from scaler.scheduler.core.cluster import MAX_LABEL, ClusterState, Scaling
from scaler.scheduler.core.commands import Command, Input, Relayed, Send, ShellInput
from scaler.scheduler.core.outbox import Outbox
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.core.state import ClientRecord, ManagerRecord, PeerRecord, Worker
from scaler.scheduler.core.submission import Submission
from scaler.scheduler.core.tasks import Tasks

BREAK_GRACE_SECONDS = 3.0
"""Seconds that a disconnected worker has to reconnect before its tasks are rescheduled."""
QUARANTINE_FAILURES = 5
"""Consecutive infrastructure failures after which a worker is quarantined."""
TICK_SECONDS = 0.25
"""Maximum seconds between steps. A longer gap is a stall of the scheduler, and extends every peer's deadline."""
EXPIRY_SECONDS = 0.5
MAX_NESTED_CLIENTS = 100_000
INSIDE_TASK = "a client inside a task can query only tasks: pass the scheduler's address"
MAX_GONE = 1_000
"""Maximum number of departed clients remembered, so that a reconnected storage can be told to drop their objects."""
MAX_NUMBERS = 100_000
MAX_RELEASING = 500
"""Maximum workers that get ReleaseResults in one expiry pass. In a large cluster, the rest wait for the next pass."""
REPEAT_SECONDS = 60.0
"""Minimum seconds between two incidents about one peer's mistakes. Mistakes in between are counted."""


class SchedulerCore:
    """Applies the rules to `state`, which is read-only for callers."""

    def __init__(self, config: Rules, now: float, scaling: Scaling, rooms: Rooms | None = None) -> None:
        rooms = rooms or Rooms()
        self._scaling, self._stores, self._timer = scaling, rooms.stores, rooms.stores.timer
        rooms.scaling = scaling
        self.state = ClusterState(now, KeyAccounts(config), rooms)
        self.config = config
        rooms.bind(self.state)
        self.outbox = Outbox(self.state, rooms)
        self.tasks = Tasks(self.state, self.outbox)
        self.placement = Placement(self.state, self.tasks, self.outbox)
        self.submission = Submission(self.state, self.tasks, config.max_number_of_tasks_waiting)
        self.durability = rooms.durability
        self.durability.bound(self)
        self._stores.bound(self.state, self.outbox, config)
        scaling.bound(self.state, self.placement, self.outbox)
        self._resources = rooms.resources
        self._worker_numbers = Counter[str]()
        self._next_expiry = now
        self._has_more = False
        self._wrong: dict[bytes, tuple[float, int, str]] = {}
        """By peer with recent mistakes: end of the counting interval, number of mistakes, and last text."""
        self._retained_until: dict[bytes, float] = {}
        """Times at which the objects of dropped clients expire."""
        self._gone: dict[bytes, None] = {}
        """Recently departed clients, whose objects may still be in a store that was out of contact."""

    def step(self, inputs: Sequence[Input], now: float) -> list[Command]:
        """Apply inputs at monotonic time `now` (seconds). Returns the commands to perform, in order."""
        state = self.state
        gap = now - state.now
        state.now = now
        if gap > 2 * TICK_SECONDS:
            state.stalled_seconds += gap - TICK_SECONDS
        time = now - state.stalled_seconds
        self._timer.now = time
        for item in inputs:
            if type(item) is Received:
                self._received(item.peer, item.message, time)
            else:
                self._changed(item, time)
        if time >= self._next_expiry:
            self._next_expiry = time + EXPIRY_SECONDS
            self._expire(time)
        if time >= self.durability.next_at:
            self.durability.tick(time)
        if time >= self._timer.next_at:
            self._stores.tick(time)
        if time >= self.tasks.next_wake:
            self.tasks.wake(time)
        if state.objects.withdrawn:
            self.outbox.withdraw_functions()
        if self._scaling.limited:
            self._scaling.limit_workers()
        had_backlog = self.placement.has_backlog
        self._has_more = self.placement.place(time)
        if self.placement.has_backlog and not had_backlog:
            self._scaling.hurry()
        if state.pools.overloaded or time >= self.placement.next_check:
            self.placement.balance(time)
        if self.placement.has_backlog and time >= self.state.ready.turns.preempt_at:
            for worker, task, ahead in self.state.ready.turns.to_preempt(time):
                self.tasks.preempt(worker, task, ahead)
        if time >= self._scaling.next_at:
            self._scaling.plan(time)
        return self.outbox.flush()

    def next_step_at(self, now: float) -> float:
        """Return when the core needs its next step if no input arrives, on the clock of `step`."""
        if self._has_more:
            return now
        placement, scaling_at, durability_at = self.placement, self._scaling.next_at, self.durability.next_at
        stores_at, near_at = self._stores.again_at, self.state.rooms.near.again_at
        at = min(self.tasks.next_wake, scaling_at, durability_at, stores_at, near_at)
        if placement.has_backlog:
            at = min(at, self.state.ready.turns.preempt_at)
        if self.state.pools.overloaded:
            at = min(at, placement.next_check, placement.poll_again_at)
        return max(now, min(now + TICK_SECONDS, at + self.state.stalled_seconds))

    # -- connections

    def refusal(self, peer: bytes, hello: messages.Hello, identity: Identity, now: float) -> Refused | TryAgain | None:
        """Return why this peer is not admitted, or None. now: as in `step`."""
        here = self.state.peer(peer)
        owner = self.state.accounts.owners.get(peer, identity.key)
        if owner != identity.key and LOCAL.key in (owner, identity.key):
            return TryAgain(f"{identity.key} cannot continue a session of {owner}")
        is_new = here is None or (isinstance(here, ClientRecord) and here.is_absent and not here.is_durable)
        text = self.state.accounts.refusal(peer, identity, self.state.own_time(now)) if is_new else ""
        if text:
            return Refused(messages.RefusalReason.LIMIT, text)
        if isinstance(hello.details, ClientDetails) and hello.details.session:
            now, name = self.state.own_time(now), hello.details.session
            return self.durability.refusal(peer, name, identity, now, hello.resume)
        if isinstance(hello.details, StoreDetails) and self._stores.refusal:
            return Refused(messages.RefusalReason.ROLE, self._stores.refusal)
        if isinstance(hello.details, ManagerDetails):
            record = self.state.manager_named(hello.details.manager_id)
            is_other = record is not None and not identity.may_see(self.state.accounts.owners.get(record.id, ""))
            if record is not None and record.id != peer and (record.broken_at is None or is_other):
                text = f"worker manager id {hello.details.manager_id!r} is in use by another worker manager"
                if is_other or record.defends_its_name(self.state.own_time(now)):
                    text = f"{text} of this scheduler: give this manager another worker_manager_id"
                    return Refused(messages.RefusalReason.DUPLICATE, text)
                return TryAgain(f"{text}, until the lease of that manager expires")
        return None

    def _changed(self, item: Input, now: float) -> None:
        match item:
            case Opened(peer, hello, identity):
                self.state.changes.pass_on(item)
                self._opened(peer, hello, identity, now)
            case Broken(peer) | Resumed(peer):
                record = self.state.peer(peer)
                if record is not None:
                    record.note_connection(now, is_broken=isinstance(item, Broken))
                if isinstance(record, Worker):
                    self.placement.update(record)
            case Closed(peer, text, is_orderly):
                kind = "left" if is_orderly else "lost"
                self._forget_peer(peer, text or "closed its connection", now, kind, retain=False)
                self.state.changes.pass_on(item)
            case Received():
                raise AssertionError("messages are applied by _received")
            case _:
                self._shell_said(item, now)

    def _shell_said(self, item: ShellInput, now: float) -> None:
        match item:
            case commands.PolicyAnswered(wanted, complaint):
                self._scaling.answered(wanted, complaint)
            case commands.StorageConnected():
                self._stores.storage_connected(self._gone_for_good())
            case commands.StorageSaid(message):
                self._stores.storage_said(message)
            case commands.DurabilitySaid():
                self.durability.said(item.item, now)
            case commands.MonitoringChanged(is_watched):
                self.outbox.rooms.watch(is_watched)
            case commands.ClockRead(unix_at_zero):
                self.state.rooms.unix_at_zero = unix_at_zero
            case commands.ShellObserved(observed):
                for each in observed:
                    self.state.changes.pass_on(each)
            case Relayed(sender):
                worker = self.state.workers.get(sender)
                if worker is None:
                    self.protocol_error(sender, "sent Relay, which is not allowed")
                else:
                    worker.last_message_at = now
                    self.relayed(worker, item, now)
            case _:
                assert_never(item)

    def _opened(self, peer: bytes, hello: messages.Hello, identity: Identity, now: float) -> None:
        if self.durability.returned(peer, hello, identity, now):
            return
        self._forget_peer(peer, "opened a new session", now, "lost", retain=True)
        account = self.state.accounts.opened(peer, identity, now)
        self.state.has_returned |= hello.resume
        details, name = hello.details, f"{hello.hostname[:MAX_LABEL]}|{hello.pid}"
        record: PeerRecord
        try:
            match details:
                case WorkerDetails():
                    label = details.manager_id[:MAX_LABEL] or "worker"
                    self._worker_numbers[label] += 1
                    called = f"{label}-{self._worker_numbers[label]}"
                    host = hello.hostname[:MAX_LABEL]
                    record = Worker(peer, called, now, details, host, hello.pid)
                    record.claims = self._resources.joined(record)
                    record.reports.is_awaited = hello.resume
                    self.state.workers[peer] = record
                    self.outbox.send(peer, messages.Named(called))
                    self.placement.add(record)
                    self._scaling.worker_joined(record, now)
                case ManagerDetails():
                    record = self.state.managers[peer] = self._manager_joined(peer, details, now)
                case ClientDetails() | None:
                    self._retained_until.pop(peer, None)
                    title = details.name if details is not None else ""
                    if hello.role is messages.Role.ADMIN:
                        identity = identity._replace(is_admin=True)
                    record = ClientRecord(peer, title or name, now, None, identity, is_back=hello.resume)
                    if details is not None and details.session:
                        record = self.durability.attach(record, details.session, name, identity, now)
                        self.came_back(record)
                    is_new = peer not in self.state.clients
                    self.client_joined(record, account)
                    if is_new:
                        self.state.changes.add(ClientJoined, peer, hello, identity)
                case StoreDetails():
                    gone = self._gone_for_good()
                    record = self._stores.joined(peer, name, details, now, gone, is_back=hello.resume)
                case _:
                    assert_never(details)
            self.state.changes.pass_on(peer_incident("joined", record))
        except UsageError as error:
            self.state.accounts.closed(peer)
            self.expel(peer, str(error))

    def _manager_joined(self, peer: bytes, details: ManagerDetails, now: float) -> ManagerRecord:
        if details.unit_slots < 1:
            raise UsageError(f"a worker manager with unit_slots={details.unit_slots}")
        earlier = self.state.manager_named(details.manager_id)
        if earlier is not None:
            # The shell admits a second manager with the same name only while the first is out of contact: it was
            # restarted.
            self._give_up(earlier.id, f"another worker manager joined as {details.manager_id}", now)
        return self._scaling.manager_joined(peer, details, now)

    def came_back(self, client: ClientRecord) -> None:
        for identifier in self.state.objects.missing:
            if owner_of(identifier) == client.id:
                self.outbox.ask_for(client, identifier)

    def client_joined(self, client: ClientRecord, account: KeyAccount) -> None:
        client.account = self.state.objects.accounts[client.id] = account
        self.state.clients[client.id] = client

    def _give_up(self, peer: bytes, why: str, now: float) -> None:
        worker = self.state.workers.get(peer)
        if worker is not None:
            self._scaling.worker_given_up(worker)
        if peer in self.state.clients:  # the client may return and query the state of its tasks
            self.outbox.expel(peer, messages.Goodbye(why))
        else:
            self.expel(peer, why)
        self._forget_peer(peer, why, now, "lost", retain=True)

    def _forget_peer(self, peer: bytes, why: str, now: float, kind: str, retain: bool) -> None:
        self.state.accounts.closed(peer)
        match self.state.peer(peer):
            case ClientRecord() as client:
                self.client_left(client, why, now, kind, retain)
            case Worker() as worker:
                self._worker_left(worker, why, now, kind)
            case ManagerRecord() as record:
                del self.state.managers[peer]
                self._scaling.manager_left(record, now)
                self.state.changes.pass_on(peer_incident(kind, record, why))
            case PeerRecord() as store:
                self._stores.left(store)
                self.state.changes.pass_on(peer_incident(kind, store, why))

    def client_left(self, client: ClientRecord, why: str, now: float, kind: str = "left", retain: bool = False) -> None:
        """Remove a client, but keep a durable session. retain: keep its stored objects in case it returns."""
        self._tell_submitted()
        if client.is_durable:
            if not client.is_absent:
                self.state.changes.pass_on(peer_incident(kind, client, why))
                self.durability.detach(client, now)
            return
        del self.state.clients[client.id]
        if retain:
            self.durability.client_given_up(client, why)
        else:
            self.durability.client_left(client.id)
        self.tasks.client_left(client)
        if client.via is None:
            self.state.changes.add(ClientLeft, client.id)
        self.state.objects.client_left(client.id, retain)
        if retain:
            self._retained_until[client.id] = now + self.config.object_retention_seconds
        else:
            self.forget_owner(client.id)
        self.state.changes.pass_on(peer_incident(kind, client, why))

    def forget_owner(self, client: bytes) -> None:
        self._gone[client] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        self._stores.forget_owner(client)

    def _gone_for_good(self) -> list[bytes]:
        """Return the departed clients whose objects a reconnected store must drop."""
        returned = self.state.clients.keys() | self._retained_until.keys()
        return [gone for gone in self._gone if gone not in returned]

    def _worker_left(self, worker: Worker, why: str, now: float, kind: str) -> None:
        del self.state.workers[worker.id]
        self.placement.remove(worker)
        self._resources.left(worker)
        self.state.rooms.paces.left(worker.id)
        limit_seconds = self._scaling.worker_left(worker, now)
        self.state.objects.worker_left(worker.id)
        for nested in [client for client in self.state.clients.values() if client.via is worker]:
            self.client_left(nested, f"its worker {worker.title} {why}", now)
        self.durability.worker_left(worker, why)
        self.tasks.worker_lost(worker, why, not worker.draining, limit_seconds, now)
        self._stores.forget_worker(worker)
        self.outbox.discard(worker)
        self.state.changes.pass_on(peer_incident(kind, worker, why))

    def expel(self, peer: bytes, why: str, reason: messages.RefusalReason = messages.RefusalReason.EXPIRED) -> None:
        self.outbox.expel(peer, Refused(reason, why))

    def _expire(self, now: float) -> None:
        """End sessions of peers that were silent or disconnected for too long, and run other periodic work."""
        state, config = self.state, self.config
        for record in [
            *state.workers.values(),
            *state.clients.values(),
            *state.managers.values(),
            *state.rooms.stores.records.values(),
        ]:
            silent = now - record.last_message_at
            if isinstance(record, ClientRecord):
                is_detached = record.is_absent and record.is_durable
                if record.via is None and not is_detached and silent > config.client_timeout_seconds:
                    self._give_up(record.id, f"was silent for {silent:.0f} s", now)
            elif record.broken_at is not None and now - record.broken_at > BREAK_GRACE_SECONDS:
                self._give_up(record.id, f"was gone for {now - record.broken_at:.1f} s", now)
            elif silent > config.worker_timeout_seconds:
                self._give_up(record.id, f"was silent for {silent:.0f} s", now)
        for owner in [owner for owner, until in self._retained_until.items() if until <= now]:
            del self._retained_until[owner]
            self.durability.client_left(owner)
            self.forget_owner(owner)
        releasing = [worker for worker in state.workers.values() if worker.results.released]
        if len(releasing) > MAX_RELEASING:
            releasing = nlargest(MAX_RELEASING, releasing, key=lambda worker: len(worker.results.released))
        for worker in releasing:
            released = worker.results.released.copy()
            worker.results.released.clear()
            for first in range(0, len(released), MAX_NUMBERS):
                self.outbox.send(worker.id, messages.ReleaseResults(released[first : first + MAX_NUMBERS]))
        self.tasks.end_idle()
        state.ready.drop_empty()
        self._publish_counted()
        state.accounts.expire(now)
        self._tell_submitted()

    # -- messages

    def _received(self, peer: bytes, message: Message, now: float) -> None:
        state = self.state
        record = (
            state.workers.get(peer)
            or state.clients.get(peer)
            or state.managers.get(peer)
            or state.rooms.stores.records.get(peer)
        )
        if record is None:
            self.not_allowed(peer, message)
            return
        record.last_message_at = now
        match record:
            case Worker():
                self._worker_sent(record, message, now)
            case ClientRecord():
                self._client_sent(record, message)
            case ManagerRecord():
                if isinstance(message, messages.ManagerStatus):
                    self._scaling.manager_reported(record, message, now)
                    self.outbox.send(peer, messages.HeartbeatEcho(message.sent_at))
                else:
                    self.not_allowed(peer, message)
            case _:
                if not self._stores.received(record, message):
                    self.not_allowed(peer, message)

    def _client_sent(self, client: ClientRecord, message: Message) -> None:
        match message:
            case messages.Submit():
                self._submit(client, message)
            case messages.AcknowledgeResults(number):
                self.tasks.acknowledge(client, number)
                if client.is_durable:
                    self.durability.send_owed(client)
            case messages.Cancel(ids):
                self._cancel(client, ids)
            case messages.Release() | messages.Pin() | messages.PersistResults():
                self._note_objects(client, message)
            case messages.CallsReported():
                self._give_to_room(client, message)
            case messages.ObjectsRestored():
                self.tasks.restored(client, message, self.state.own_time(self.state.now))
            case messages.Clear(other):
                self._clear(client, other)
            case messages.Heartbeat():
                pass  # its arrival extended the lease; the listener answers
            case messages.ShutdownCluster():
                self._shutdown(client, message)
            case messages.RestartWorkers():
                self.outbox.send_to_client(client, self._restart(client, message))
            case _ if type(message) in self.outbox.rooms.takers:
                self._give_to_room(client, message)
            case messages.Inquiry():
                # From a client inside a task. The shell answers clients with their own connection.
                self.outbox.answer(client, self._answer(client, message))
            case _:
                self.not_allowed(client.id, message)

    def _note_objects(
        self, client: ClientRecord, message: messages.Release | messages.Pin | messages.PersistResults
    ) -> None:
        """Release or pin objects. Objects to persist are pinned too, so that a restarted scheduler knows them."""
        objects = self.state.objects
        if isinstance(message, messages.Release):
            self.tasks.end_idle()
            for identifier in message.ids:
                objects.release(identifier, client.id)
            return
        left = self.state.accounts.bytes_left(client.account)
        for identifier in message.ids[: max(0, left // ENTRY_BYTES)]:
            if len(identifier) == ID_BYTES and identifier.startswith(client.id):
                objects.pin(identifier, client.id)
                if isinstance(message, messages.PersistResults):
                    self._stores.persist(identifier)

    def _submit(self, client: ClientRecord, message: messages.Submit) -> None:
        if client.is_durable and (wrong := self.durability.make_way(client, message)):
            self.protocol_error(client.id, wrong)
        # While the disk fails, tasks are rejected, and only functions are journaled.
        journaled = messages.Submit(message.functions, []) if self.durability.failure else message
        if client.via is None and (journaled.functions or journaled.groups):
            self.state.changes.add(Submitted, client.id, journaled)
        for text in self.submission.submit(client, message):
            self.protocol_error(client.id, text)
        if client.is_durable:
            self.durability.send_owed(client)
        # The client is so far beyond its limit that even rejecting its tasks takes too much memory.
        if client.via is None and 0 <= 2 * self.config.max_bytes_per_client < client.account.size_bytes:
            why = "it uses twice max_bytes_per_client and keeps submitting without reading its results"
            self.expel(client.id, why, messages.RefusalReason.LIMIT)
            self.client_left(client, why, self.state.own_time(self.state.now), "lost")
            self.state.accounts.closed(client.id)

    def _cancel(self, client: ClientRecord, ids: list[bytes]) -> None:
        is_admin, clients = client.identity.is_admin, self.state.clients
        known = [task for task in ids if task in (clients.get(owner_of(task), client) if is_admin else client).tasks]
        self.act("cancelled", client, "tasks", len(known))
        self.tasks.cancel(client, ids)
        self.durability.cancelled(client, ids)
        for task in ids if client.identity.is_admin else ():
            self.tasks.cancel(self.state.clients.get(owner_of(task), client), [task])

    def _clear(self, client: ClientRecord, other: bytes) -> None:
        """Clear a client. other: the client to clear (admins only); empty: the sender."""
        of = client if other in (b"", client.id) else self.state.clients.get(other)
        if of is client or (of is not None and client.identity.is_admin):
            self.act("cleared", client, f"{of.title} with {counted(len(of.tasks), 'unfinished task')}")
            self.tasks.cancel(of, list(of.tasks))
            objects = self.state.objects
            for identifier in [each for each in objects.pins.get(of.id, ()) if each in objects.stored]:
                objects.release(identifier, of.id)

    def act(self, kind: str, client: ClientRecord, text: str, count: int | None = None) -> None:
        """Record a client's action in the audit log, after its submissions. count: tasks (0 records nothing)."""
        if kind != "submitted":
            self._tell_submitted()
        if count != 0:
            if client.via is None:
                self.state.changes.add(Action, kind, client.id, text, count or 0)
            else:
                key = client.account.key
                self.state.changes.add(Action, kind, client.via.id, f"{text} (inside a task)", count or 0, key)

    def _tell_submitted(self) -> None:
        submitted = self.submission.submitted
        for (client, name), count in submitted.items():
            self.act("submitted", client, name, count)
        submitted.clear()

    def _shutdown(self, client: ClientRecord, asked: messages.ShutdownCluster) -> None:
        if self.config.protected and not client.identity.is_admin:
            text = (
                "the scheduler is protected: shutting it down requires an admin's credential, or a scheduler "
                "started with protected=False"
            )
            self.outbox.send_to_client(client, messages.ShutdownReply(False, text, number=asked.number))
            self.act("refused", client, "to shut down the cluster, which is protected")
            return
        text = f"client {client.name} shut the cluster down"
        self.act("shut down", client, "the cluster")
        self.outbox.send_to_client(client, messages.ShutdownReply(True, text, number=asked.number))
        for peer in [*self.state.workers, *self.state.managers]:
            self.outbox.send(peer, messages.Shutdown(text))
        self.outbox.extend([commands.Stop(text)])

    def _restart(self, client: ClientRecord, asked: messages.RestartWorkers) -> messages.WorkersRestarted:
        if client.identity.has_key and not client.identity.is_admin:
            self.act("refused", client, "to restart workers: requires an admin's credential")
            text = "workers are shared with other keys: restarting them requires an admin's credential"
            return messages.WorkersRestarted([], text, number=asked.number)
        text = f"client {client.name} restarts its worker"
        ending: list[bytes] = []
        for identifier in asked.workers or list(self.state.workers):
            worker = self.state.workers.get(identifier)
            if worker is None or (asked.graceful and worker.draining):
                continue
            ending.append(identifier)
            if not worker.draining:
                self.placement.drain(worker, text)
            if not asked.graceful:
                self.outbox.send(identifier, messages.Shutdown(text))
        return messages.WorkersRestarted(ending, "", number=asked.number)

    def _worker_sent(self, worker: Worker, message: Message, now: float) -> None:
        match message:
            case messages.Done():
                self.tasks.done(worker, message, now)
                self.placement.touched[worker] = None
                if worker.progress.failures_in_row:
                    self._quarantine(worker)
            case messages.WorkerReport() | messages.Returned() | messages.Suspended():
                self.placement.touched[worker] = None
                self.durability.take(worker, message, now)
            case messages.WorkerHeartbeat():
                self.state.counts.add(worker.reports.heartbeat, message)
                worker.keep_heartbeat(message, now)
                self._scaling.heartbeat(worker, message)
                self._give_to_room(worker, message)
            case messages.RelayClosed(nested):
                self.durability.relay_closed(nested)
                client = self.state.clients.get(nested)
                if client is not None and client.via is worker:
                    self.client_left(client, "its task's process ended", now)
            case messages.Output(task):
                client = self.state.clients.get(owner_of(task))
                if client is not None:
                    self.outbox.send_to_client(client, message)
                self._give_to_room(worker, message)
            case messages.Started():
                self.tasks.started(worker, message)
            case messages.Drain(reason):
                # The agent is about to exit, and waits for confirmation that it gets no more tasks.
                self.placement.drain(worker, reason, leaving=True)
            case messages.UseStore(store):
                self._stores.use(worker, store, now)
            case messages.Goodbye(reason):
                self._forget_peer(worker.id, reason, now, "left", retain=False)
            case _:
                self._give_to_room(worker, message)

    def _give_to_room(self, peer: PeerRecord, message: Message) -> None:
        for take in self.outbox.rooms.takers.get(type(message), ()):
            self.outbox.extend(take(peer, message, self.state))

    def _answer(self, client: ClientRecord, question: messages.Inquiry) -> messages.Reply:
        answerer = self.outbox.rooms.answerers.get(type(question))
        found = None if answerer is None else answerer(question, client, self.state)
        if not isinstance(found, messages.Reply):  # the shell answers from files, but not to clients inside tasks
            is_missing = answerer is None and question.extension
            text = f"this scheduler lacks the extension {question.extension!r}" if is_missing else INSIDE_TASK
            return messages.Unanswered(text, number=question.number)
        found.number = question.number
        return found

    def relayed(self, worker: Worker, relay: Relayed, now: float) -> None:
        """Apply a message from a client inside a task on this worker. The client joins with its first message."""
        client = self.state.peer(relay.client)
        if client is None and self.durability.relayed(worker, relay):
            return
        try:
            message = relay.message
            if message is None:
                raise ProtocolError(relay.problem)
            if type(message) not in messages.MAY_SEND[messages.Server.SCHEDULER][messages.Role.CLIENT]:
                raise ProtocolError(f"{type(message).__name__}, which clients may not send")
            if client is None:
                if len(self.state.clients) >= MAX_NESTED_CLIENTS:
                    raise ProtocolError(f"a nested client beyond MAX_NESTED_CLIENTS = {MAX_NESTED_CLIENTS}")
                parent = worker.tasks.get(relay.task)
                owner = None if parent is None else parent.group.owner
                key = NOBODY.key if owner is None else owner.account.key
                if self.state.accounts.owners.get(relay.client, key) != key:
                    raise ProtocolError("a message for a client whose task is not on this worker")
                client = ClientRecord(relay.client, f"in a task on {worker.name}", now, worker, owner=owner)
                self.client_joined(client, self.state.accounts.joined(relay.client, key))
            elif not isinstance(client, ClientRecord) or client.via is not worker:
                raise ProtocolError("a message for a client that belongs to another worker or process")
        except ProtocolError as error:
            self.protocol_error(worker.id, f"relayed {error}")
            self.outbox.extend(
                [Send(worker.id, messages.Goodbye(f"the scheduler refused {error}"), nested=relay.client)]
            )
            return
        client.last_message_at = now
        running = worker.tasks.get(relay.task)
        # Its process may run tasks of several keys in turn. Between tasks, the client sees only its own tasks.
        client.identity = NOBODY if running is None else Identity(running.group.client.account.key)
        self._client_sent(client, message)

    def _quarantine(self, worker: Worker) -> None:
        """Quarantine a failing worker, unless it is the only worker or all fail: then the tasks are at fault."""
        if worker.progress.failures_in_row < QUARANTINE_FAILURES or worker.draining:
            return
        if all(other.progress.failures_in_row or other.draining for other in self.state.workers.values()):
            return
        why = f"{counted(worker.progress.failures_in_row, 'task')} in a row failed because of the worker"
        self.placement.drain(worker, f"quarantined: {why}", quarantined=True)
        self.state.changes.pass_on(peer_incident("quarantined", worker, why))

    def not_allowed(self, peer: bytes, message: Message) -> None:
        self.protocol_error(peer, f"sent {type(message).__name__}, which is not allowed")

    def protocol_error(self, peer: bytes, text: str) -> None:
        """Publish a peer's mistakes: the first immediately, and the number of later mistakes every REPEAT_SECONDS."""
        until, count, _ = self._wrong.get(peer, (self.state.now, 0, ""))
        if self.state.now < until:
            self._wrong[peer] = until, count + 1, text
            return
        self._wrong[peer] = self.state.now + REPEAT_SECONDS, 0, text
        self.state.changes.add(Incident, "protocol_error", f"peer {peer.hex()}", text, {"peer": peer.hex()})

    def _publish_counted(self) -> None:
        for peer in [peer for peer, (until, _, _) in self._wrong.items() if until <= self.state.now]:
            _, count, text = self._wrong.pop(peer)
            if count:
                self.protocol_error(peer, f"{text} (and {count - 1} more like this)" if count > 1 else text)
