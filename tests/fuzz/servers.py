"""A scheduler and a storage in memory, with a hostile peer and well-behaved peers. No sockets.

The hostile peer sends a conversation's messages, over as many connections as necessary. For any messages, the other
peers' tasks and objects end correctly, and the cores' invariants hold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from scaler.config.servers import scheduler_model
from scaler.errors import ProtocolError
from scaler.extensions.explain.core import explain
from scaler.extensions.history.core import find
from scaler.ids import IdFactory, content_id
from scaler.monitor.cluster_rows import SchedulerRow, StorageRow
from scaler.monitor.reports.events import Events
from scaler.monitor.reports.status import ServerStatus, status
from scaler.net.connection import ConnectorEvent, Identity, ListenerEvent, Received
from scaler.net.versions import check_versions, own_hello
from scaler.object_storage.commands import SendToPeer
from scaler.object_storage.core import StorageCore
from scaler.object_storage.messages import GetObject, PutObject, StorageReply, StorageResult, StorageStatus
from scaler.object_storage.spilling import StorageLimits
from scaler.policy.load import GuardedPolicy
from scaler.policy.view import Allocation, ClusterView, Wanted
from scaler.protocol import messages as m
from scaler.protocol.codec import decode
from scaler.protocol.messages import Role, Server
from scaler.protocol.session import Envelope
from scaler.scheduler.core.commands import AskPolicy, Expel, Input, MonitoringChanged, PolicyAnswered, Publish, Send
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.rooms import make_scaling
from scaler.scheduler.server import unwrapped
from scaler.testing.invariants import check
from scaler.testing.simulation.stepping import built_in
from scaler.testing.storage_invariants import check_storage
from tests.contracts.memory_network import MemoryNetwork, Wire
from tests.fuzz.conversations import Spoken

ADDRESS = "tcp://127.0.0.1:1"
MAX_CONNECTIONS = 50
"""Maximum number of connections that the hostile peer opens for one conversation."""
GOOD_TASKS = 4
LEASE_SECONDS = 1.0
AT_ONCE = 4
"""Number of envelopes from the hostile peer per iteration of the server."""
FUNCTION = b"\x80good function"
GOOD: m.Needs = (("good", 0.0),)


class HostilePeer:
    """Sends a conversation's envelopes. After a cut, it reconnects, repeats its Hello, and continues.

    Envelopes in the conversation's session get the expected session id and sequence numbers, and the ids of tasks that
    this peer received. Envelopes of other sessions are unchanged.
    """

    def __init__(self, network: MemoryNetwork, conversation: Sequence[Spoken]) -> None:
        self._network = network
        self._hello = conversation[0]
        messages = [decode_or_none(each.body) for each in conversation]
        recorded = {each for found in messages if isinstance(found, m.Done | m.Suspended) for each in found.ids[:8]}
        self._recorded = sorted(recorded)
        self._tasks: list[bytes] = []
        self._wire: Wire | None = None
        self._connections = 0
        self._session = b""
        """The session id in the last Welcome, or empty before it."""
        self._last = self._base = 0
        """The conversation's last sequence number, and the last one before the current session."""

    def say(self, envelopes: Sequence[Spoken]) -> None:
        if self._wire is None or self._wire.broken:
            if self._connections >= MAX_CONNECTIONS:
                return
            self._connections += 1
            self._wire = self._network.wire(ADDRESS)
            assert self._wire is not None, "a server keeps listening"
            self._session, self._base = b"", self._last
            self._send(self._hello)
        for each in envelopes:
            if each is not self._hello:
                self._send(each)
        self._run()

    def _send(self, spoken: Spoken) -> None:
        assert self._wire is not None
        header = spoken.header
        if spoken is not self._hello and header[8:24] == self._hello.header[8:24] and self._session:
            number = int.from_bytes(header[24:32], "little")
            if number:
                self._last = max(self._last, min(number, self._last + 1))
                number = max(1, number - self._base)
            header = header[:8] + self._session + number.to_bytes(8, "little") + header[32:]
        body = spoken.body
        for old, new in zip(self._recorded, self._tasks, strict=False):
            body = body.replace(old, new)
        attachments = tuple(memoryview(each) for each in spoken.attachments)
        self._wire.at_listener.inbox.append(Envelope(header, body, attachments))
        if spoken is self._hello:
            self._run()

    def _run(self) -> None:
        assert self._wire is not None
        self._network.run()
        inbox = self._wire.at_connector.inbox
        if inbox and not self._session and decode_or_none(inbox[0].body).__class__ is m.Welcome:
            self._session = inbox[0].header[8:24]
        for envelope in inbox:
            message = decode_or_none(envelope.body)
            if isinstance(message, m.Run):
                self._tasks[:0] = [each for group in message.groups for each in group.ids]
        inbox.clear()

    def leave(self) -> None:
        if self._wire is not None:
            self._wire.broken = True


def decode_or_none(body: bytes) -> m.Message | None:
    try:
        return decode(body)
    except ProtocolError:
        return None


def strictly(document: bytes) -> None:
    """Parse JSON as strictly as browsers, which reject infinite numbers."""

    def refuse(text: str) -> None:
        raise AssertionError(f"browsers cannot parse {text}")

    json.loads(document, parse_constant=refuse)


class _NoScaling:
    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {manager.manager_id: Wanted(1, "fuzzing") for manager in view.managers}


class SchedulerWorld:
    """One scheduler in memory."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        policy = _NoScaling()
        self._policy = GuardedPolicy(policy)
        config = scheduler_model()(
            bind_address=ADDRESS, worker_timeout_seconds=LEASE_SECONDS, client_timeout_seconds=LEASE_SECONDS
        )
        rooms = Rooms(built_in("data_plane", "durability", "sharing"))
        self.core = SchedulerCore(config, self.network.now, make_scaling(), rooms)
        self._listener = self.network.listener(
            ADDRESS, server_kind=Server.SCHEDULER, admit=self._admit, on_events=self._step
        )
        self._waiting: list[Input] = []
        self._events = Events()
        self._step([MonitoringChanged(True)])
        self.client = GoodClient(self.network)
        self.worker = GoodWorker(self.network)
        self.network.run()

    def play(self, conversation: Sequence[Spoken]) -> None:
        """Send a conversation from a hostile peer while good peers work. Raises AssertionError if it harms them."""
        if not conversation:
            return
        self.client.submit(GOOD_TASKS // 2)
        hostile = HostilePeer(self.network, conversation)
        for at in range(0, len(conversation), AT_ONCE):
            hostile.say(conversation[at : at + AT_ONCE])
            if at % 16 == 8:
                self.tick(0.1)
        self.client.submit(GOOD_TASKS // 2)
        self.tick(0.3)
        check(self.core.state)
        self._show()
        hostile.leave()
        self.tick(2 * LEASE_SECONDS)
        self.client.check()
        check(self.core.state)

    def tick(self, seconds: float) -> None:
        until = self.network.now + seconds
        while self.network.now < until:
            self.network.advance(0.4)
            self.worker.heartbeat()
            self._step([])
            self.network.run()

    def _show(self) -> None:
        """Render the documents for monitors, and answer possible questions."""
        state, now = self.core.state, self.network.now
        row = ServerStatus(0.0, 1, SchedulerRow(0.0, 0, 0.0, 0.0), StorageRow(ADDRESS), Counter[str](), Counter[str]())
        strictly(status(state, row))
        report = self._events.report(now)
        if report is not None:
            strictly(report.document())
        for client in list(state.clients.values()):
            strictly(find(state, client.name[:8], now, now))
            for task in list(client.tasks)[:3]:
                explain(state, task, now)

    def _admit(self, peer: bytes, hello: m.Hello, _identity: Identity) -> m.Welcome | m.Refused:
        refused = check_versions(hello)
        if refused is not None:
            return refused
        if hello.role not in (Role.CLIENT, Role.WORKER, Role.MANAGER):
            return m.Refused(m.RefusalReason.ROLE, f"{hello.role}s do not connect here")
        return m.Welcome(False, 1, lease_seconds=LEASE_SECONDS, heartbeat_seconds=0.5)

    def _step(self, events: Sequence[Input]) -> None:
        inputs: Sequence[Input] | None = [
            unwrapped(each.peer, each.message)
            if isinstance(each, Received) and isinstance(each.message, m.Relay)
            else each
            for each in events
        ]
        while inputs is not None:
            waiting: list[Input] = []
            for command in self.core.step(inputs, self.network.now):
                match command:
                    case Send(peer, message):
                        self._listener.send(peer, message)
                    case Expel(peer, reason):
                        self._listener.forget(peer, reason)
                    case AskPolicy(view):
                        waiting.append(PolicyAnswered(*self._policy.plan(view)))
                    case Publish(facts):
                        self._events.add(facts, self.network.now)
                    case _:
                        pass
            inputs = waiting or None


class GoodClient:
    """Submits tasks that only the good worker can run, and collects their outcomes."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.results: dict[bytes, bytes] = {}
        self.expected: dict[bytes, bytes] = {}
        self._ids = IdFactory(b"goodclie")
        self._connector = network.connector(
            ADDRESS, peer=b"goodclie", hello=own_hello(Role.CLIENT, m.ClientDetails("good")), on_events=self._on_events
        )

    def submit(self, count: int) -> None:
        """Submit tasks for the good worker, and as many that a hostile worker may fail but not lose."""
        for needs in (GOOD, ()):
            ids = [self._ids.task() for _ in range(count)]
            payloads = [b"\x80argument %d" % (len(self.expected) + number) for number in range(count)]
            values = [b"\x80" + payload[::-1] if needs else b"" for payload in payloads]
            self.expected |= dict(zip(ids, values, strict=True))
            spec = m.Spec(content_id(FUNCTION), needs=needs, name="good")
            self._connector.send(m.Submit([(spec.function, FUNCTION)], [m.TaskGroup(spec, ids, payloads)]))

    def check(self) -> None:
        assert self.results.keys() == self.expected.keys(), "a task of a good client has not ended"
        wrong = [each for each, value in self.expected.items() if value and self.results[each] != value]
        assert not wrong, "a good client's task has another task's value"

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            if isinstance(event, Received) and isinstance(event.message, m.Finished):
                for identifier, outcome, payload in zip(
                    event.message.ids, event.message.outcomes, event.message.payloads, strict=True
                ):
                    is_right = outcome == m.Outcome.SUCCESS or not self.expected[identifier]
                    assert is_right, f"a good task ended as {outcome}: {payload!r}"
                    assert identifier not in self.results, "a task ends once"
                    self.results[identifier] = payload


class GoodWorker:
    """Answers all requests immediately."""

    def __init__(self, network: MemoryNetwork) -> None:
        details = m.WorkerDetails("good", "unit", 2, 100, {"good": None})
        self._connector = network.connector(
            ADDRESS, peer=b"goodwork", hello=own_hello(Role.WORKER, details), on_events=self._on_events
        )
        self._network = network

    def heartbeat(self) -> None:
        self._connector.send(m.WorkerHeartbeat(self._network.now, 0.0, 0, 0, 0.0))

    def _on_events(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            match event:
                case Received(message=m.Run(groups=groups)):
                    for group in groups:
                        count = len(group.ids)
                        payloads = [b"\x80" + payload[::-1] for payload in group.payloads]
                        self._connector.send(m.Done(group.ids, group.attempts, [0] * count, payloads, [1] * count))
                case Received(message=m.Recall(ids, attempts)):
                    self._connector.send(m.Returned(ids, attempts, [True] * len(ids)))
                case _:
                    pass


class StorageWorld:
    """One object storage in memory, and a good client that puts and gets objects."""

    LIMIT_BYTES = 16 * 1024 * 1024

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self._listener = self.network.listener(
            ADDRESS, server_kind=Server.OBJECT_STORAGE, admit=self._admit, on_events=self._step
        )
        self.core = StorageCore(
            StorageLimits(self.LIMIT_BYTES),
            outbox_bytes=self._listener.outbox_bytes,
            lease_seconds=30.0,
            tick_seconds=2.0,
        )
        self._replies: list[tuple[m.Message, bytes]] = []
        self._ids = IdFactory(b"goodclie")
        self._good = self.network.connector(
            ADDRESS, peer=b"goodclie", hello=own_hello(Role.CLIENT), on_events=self._heard
        )
        self.network.run()

    def play(self, conversation: Sequence[Spoken]) -> None:
        if not conversation:
            return
        first, second = self._ids.object(), self._ids.object()
        self._put(1, first, b"first value")
        hostile = HostilePeer(self.network, conversation)
        for at in range(0, len(conversation), AT_ONCE):
            hostile.say(conversation[at : at + AT_ONCE])
        check_storage(self.core)
        self._put(2, second, b"second value")
        assert self._get(3, first) == b"first value"
        assert self._get(4, second) == b"second value"
        hostile.leave()
        self.network.advance(70.0)
        self._step([])
        check_storage(self.core)
        assert self.core.objects.used_bytes <= self.LIMIT_BYTES

    def _put(self, request: int, identifier: bytes, value: bytes) -> None:
        self._good.send(PutObject(request, identifier, [len(value)], 0), [value])
        self.network.run()
        reply, _ = self._replies.pop()
        assert isinstance(reply, StorageReply)
        assert (reply.request, reply.result) == (request, StorageResult.OK), reply

    def _get(self, request: int, identifier: bytes) -> bytes:
        self._good.send(GetObject(request, identifier, 0.0))
        self.network.run()
        reply, value = self._replies.pop()
        assert isinstance(reply, StorageReply)
        assert (reply.request, reply.result) == (request, StorageResult.OK), reply
        return value

    def _heard(self, events: list[ConnectorEvent]) -> None:
        for event in events:
            if isinstance(event, Received) and isinstance(event.message, StorageReply | StorageStatus):
                self._replies.append((event.message, b"".join(event.attachments)))

    def _admit(self, peer: bytes, hello: m.Hello, identity: Identity) -> m.Welcome | m.Refused:
        return check_versions(hello) or m.Welcome(False, 1, 30.0, 2.0)

    def _step(self, events: Sequence[ListenerEvent]) -> None:
        for command in self.core.step(events, self.network.now):
            if isinstance(command, SendToPeer):
                self._listener.send(command.peer, command.message, command.attachments)
