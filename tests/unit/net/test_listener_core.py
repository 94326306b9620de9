"""A listener's reports about connections: refused peers, and peers that never identified themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scaler.net.connection import LOCAL, Closed, Identity, Received
from scaler.net.listener_core import MAX_UNIDENTIFIED, ListenerCore
from scaler.net.transport import (
    CLOSE_SECONDS,
    IDENTIFY_SECONDS,
    MAX_MALFORMED_IN_A_ROW,
    AccessEnded,
    Command,
    Cut,
    Deliver,
    EnvelopeReceived,
    Input,
    LinkLost,
    LinkOpened,
    MalformedReceived,
    Report,
    StartSession,
    Transmit,
)
from scaler.net.versions import own_hello
from scaler.object_storage.messages import StatStorage, StorageStatus
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    Acknowledge,
    ClientDetails,
    Details,
    Goodbye,
    Hello,
    ManagerDetails,
    Message,
    RefusalReason,
    Refused,
    Role,
    Server,
    Welcome,
    WorkerDetails,
)
from scaler.protocol.session import ACKNOWLEDGE_SECONDS, Envelope, Header, OutboxLimits

SESSION_ID = bytes(range(16))


class Link:
    passes_descriptors = False
    identity = LOCAL
    is_blocked = False

    def transmit(self, envelopes: Sequence[Envelope]) -> None: ...

    def start_session(self, *, compresses: bool) -> None: ...

    def cut(self) -> None: ...


def answer(_peer: bytes, hello: Hello, _identity: Identity) -> Welcome | Refused:
    if hello.role is Role.WORKER:
        return Refused(RefusalReason.VERSION, "too old")
    return Welcome(False, 1, lease_seconds=60.0, heartbeat_seconds=2.0)


def performed(core: ListenerCore, inputs: list[Input]) -> list[Command]:
    """The commands of all steps until nothing is left to do."""
    commands: list[Command] = []
    while True:
        step = core.step(inputs, 0.0)
        commands += step
        inputs = []
        if not any(isinstance(command, Deliver) for command in step):
            return commands


class LinkOf(Link):
    def __init__(self, identity: Identity) -> None:
        self.identity = identity


@pytest.fixture
def core() -> ListenerCore:
    return ListenerCore(Server.OBJECT_STORAGE, OutboxLimits(), answer)


def cuts(commands: Sequence[Command]) -> list[object]:
    return [command.link for command in commands if isinstance(command, Cut)]


def envelope(link: Link, message: Message, session: bytes = SESSION_ID, sequence: int = 0) -> EnvelopeReceived:
    header = Header(PROTOCOL_VERSION, 0, session, sequence, 0).pack()
    return EnvelopeReceived(link, header, encode(message))


def sent(commands: Sequence[Command]) -> list[tuple[bytes, Message]]:
    """Transmitted messages with their sessions."""
    return [
        (Header.read(each.header).session, decode(each.body))
        for command in commands
        if isinstance(command, Transmit)
        for each in command.envelopes
    ]


def received(commands: Sequence[Command]) -> list[Message]:
    """The events received by the component."""
    events = [event for command in commands if isinstance(command, Deliver) for event in command.events]
    return [event.message for event in events if isinstance(event, Received)]


def reports(commands: Sequence[Command]) -> list[Command]:
    return [command for command in commands if isinstance(command, Report)]


def test_reports_the_origin_of_a_connection_without_envelopes(core: ListenerCore) -> None:
    link = Link()
    assert not reports(core.step([LinkOpened(link, "10.0.0.7 port 99")], 0.0))
    (report,) = reports(core.step([LinkLost(link)], 1.0))
    text = "a connection from 10.0.0.7 port 99 closed before it sent a message"
    assert report == Report(text, is_refusal=False, origin="10.0.0.7 port 99")


# -- limits of unidentified peers --------------------------------------------------------------------------------------


def test_too_many_connections_close_the_oldest_unidentified_ones(core: ListenerCore) -> None:
    first, second, *others = (Link() for _ in range(MAX_UNIDENTIFIED + 2))
    opened = [LinkOpened(link) for link in (first, second, *others)]
    assert cuts(core.step(opened[:-2], 1.0)) == []
    assert cuts(core.step(opened[-2:], 2.0)) == [first, second]


def test_lack_of_descriptors_closes_the_oldest_unidentified_and_the_new_connection(core: ListenerCore) -> None:
    member, silent, new = Link(), Link(), Link()
    performed(core, [LinkOpened(member), envelope(member, own_hello(Role.CLIENT)), LinkOpened(silent)])
    assert cuts(core.step([LinkOpened(new, is_scarce=True)], 0.0)) == [silent, new]
    assert cuts(core.step([LinkOpened(new, is_scarce=True)], 0.0)) == [new]


def test_connection_accepts_other_messages_only_after_the_welcome(core: ListenerCore) -> None:
    member, refused = Link(), Link()
    commands = performed(core, [LinkOpened(member), envelope(member, own_hello(Role.CLIENT))])
    assert StartSession(member, compresses=False) in commands
    commands = performed(core, [LinkOpened(refused), envelope(refused, own_hello(Role.WORKER))])
    assert StartSession(refused, compresses=False) not in commands


def test_recorded_messages_cannot_be_replayed_in_another_session() -> None:
    for server in (ListenerCore(Server.OBJECT_STORAGE, OutboxLimits(), answer, first_session=7), None):
        core = server or ListenerCore(Server.OBJECT_STORAGE, OutboxLimits(), answer, first_session=2**40)
        link = Link()
        hello = envelope(link, own_hello(Role.CLIENT))
        ((session, _),) = sent(performed(core, [LinkOpened(link), hello]))
        recorded: list[EnvelopeReceived] = [
            hello,
            envelope(link, StatStorage(1), session, 1),
            envelope(link, Goodbye(""), session, 0),
        ]
        assert received(performed(core, [*recorded[1:]])) == [StatStorage(1)]
        copies = Link()
        again: list[Input] = [LinkOpened(copies), *(each._replace(link=copies) for each in recorded)]
        assert received(performed(core, again)) == []


def test_replayed_hello_cannot_steal_an_active_session(core: ListenerCore) -> None:
    link, copy = Link(), Link()
    ((session, _),) = sent(performed(core, [LinkOpened(link), envelope(link, own_hello(Role.CLIENT))]))
    assert received(performed(core, [envelope(link, StatStorage(1), session, 1)])) == [StatStorage(1)]
    ((_, refused),) = sent(performed(core, [LinkOpened(copy), envelope(copy, own_hello(Role.CLIENT))]))
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.DUPLICATE
    assert received(performed(core, [envelope(link, StatStorage(2), session, 2)])) == [StatStorage(2)]


ALICE, MALLORY = (Identity(name, frozenset({Role.CLIENT})) for name in ("alice", "mallory"))


def came_back(core: ListenerCore, first: Identity, then: Identity) -> list[Command]:
    """Return the commands after a peer returns as another identity with its old session."""
    link, other = LinkOf(first), LinkOf(then)
    ((session, _),) = sent(performed(core, [LinkOpened(link), envelope(link, own_hello(Role.CLIENT))]))
    performed(core, [envelope(link, StatStorage(1), session, 1), LinkLost(link)])
    hello = replace(own_hello(Role.CLIENT), resume=True)
    return performed(core, [LinkOpened(other), envelope(other, hello, session)])


def test_local_process_resumes_its_session_opened_with_a_key(core: ListenerCore) -> None:
    ((_, welcome),) = sent(came_back(core, ALICE, LOCAL))
    assert isinstance(welcome, Welcome)
    assert welcome.resumed
    ((_, refused),) = sent(performed(core, [AccessEnded({ALICE: "the key alice was revoked"})]))
    assert refused == Refused(RefusalReason.CREDENTIAL, "the key alice was revoked")


def test_key_cannot_take_over_a_session_of_another_key(core: ListenerCore) -> None:
    ((_, refused),) = sent(came_back(core, ALICE, MALLORY))
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.DUPLICATE


@pytest.mark.parametrize("count", [1, 3])
def test_each_silent_connection_is_closed_at_its_own_deadline(core: ListenerCore, count: int) -> None:
    links = [Link() for _ in range(count)]
    for at, link in enumerate(links):
        core.step([LinkOpened(link)], float(at))
    for at, link in enumerate(links):
        assert core.wake_at == at + IDENTIFY_SECONDS
        assert cuts(core.step([], at + IDENTIFY_SECONDS)) == [link]
    assert core.wake_at == math.inf


WORKER, MANAGER = (
    WorkerDetails("m", "u", 1, 1, {}),
    ManagerDetails("m", "test", capabilities={}, max_slots=1, unit_slots=1),
)


@pytest.mark.parametrize(
    ("server", "role", "details"),
    [
        (Server.SCHEDULER, Role.CLIENT, WORKER),
        (Server.SCHEDULER, Role.ADMIN, MANAGER),
        (Server.SCHEDULER, Role.WORKER, None),
        (Server.SCHEDULER, Role.WORKER, MANAGER),
        (Server.SCHEDULER, Role.MANAGER, WORKER),
        (Server.SCHEDULER, Role.MANAGER, ClientDetails()),
        (Server.SCHEDULER, Role.MONITOR, WORKER),
        (Server.OBJECT_STORAGE, Role.CLIENT, WORKER),
        (Server.OBJECT_STORAGE, Role.SCHEDULER, MANAGER),
    ],
)
def test_rejects_a_role_with_details_of_another(server: Server, role: Role, details: Details) -> None:
    link = Link()
    greeting = envelope(link, own_hello(role, details))
    ((_, refused),) = sent(performed(ListenerCore(server, OutboxLimits(), answer), [LinkOpened(link), greeting]))
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.ROLE
    assert f"a Hello with role {role} needs" in refused.text


# -- sessions ----------------------------------------------------------------------------------------------------------


def joined(core: ListenerCore, link: Link) -> bytes:
    """Open a link and greet like a client; return the id of its session."""
    ((session, _),) = sent(performed(core, [LinkOpened(link), envelope(link, own_hello(Role.CLIENT))]))
    performed(core, [envelope(link, StatStorage(1), session, 1)])
    return session


def test_reports_a_refusal_by_the_transport(core: ListenerCore) -> None:
    report = Report("why", True, "key", "origin")
    assert core.step([report], 0.0) == [report]


def test_worker_key_names_its_role(core: ListenerCore) -> None:
    link = LinkOf(Identity("farm", frozenset({Role.WORKER, Role.STORE})))
    ((_, refused),) = sent(performed(core, [LinkOpened(link), envelope(link, own_hello(Role.CLIENT))]))
    assert refused == Refused(RefusalReason.CREDENTIAL, "the key farm is for the role worker, not client")


def test_repeated_forbidden_messages_end_a_peers_session(core: ListenerCore) -> None:
    link = Link()
    session = joined(core, link)
    wrong = [envelope(link, Welcome(False, 1, 1.0, 1.0), session, 2 + number) for number in range(5)]
    assert sent(performed(core, [*wrong[: MAX_MALFORMED_IN_A_ROW - 1]])) == []
    ((_, refused),) = sent(performed(core, [*wrong[MAX_MALFORMED_IN_A_ROW - 1 :]]))
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.MALFORMED
    assert cuts(core.step([], CLOSE_SECONDS - 0.1)) == []
    assert cuts(core.step([], CLOSE_SECONDS)) == [link]


def test_unreadable_envelope_closes_the_connection_so_that_it_is_resent(core: ListenerCore) -> None:
    link = Link()
    joined(core, link)
    commands = performed(core, [MalformedReceived(link, "no header")])
    assert (cuts(commands), sent(commands)) == ([link], [])


def test_peer_with_a_full_outbox_is_reported_as_not_closed_orderly() -> None:
    core = ListenerCore(Server.OBJECT_STORAGE, OutboxLimits(messages=1), answer)
    joined(core, Link())
    for _ in range(2):
        core.send(SESSION_ID[:8], StorageStatus(1, 0, 0, 0, 0))
    events = [event for command in performed(core, []) if isinstance(command, Deliver) for event in command.events]
    assert events == [Closed(SESSION_ID[:8], "the outbox is full: unacknowledged messages: 1", is_orderly=False)]


def test_peer_in_a_new_session_gets_acknowledgements_in_that_session(core: ListenerCore) -> None:
    link, again = Link(), Link()
    session = joined(core, link)
    performed(core, [envelope(link, Goodbye("done"), session)])
    hello = envelope(again, own_hello(Role.CLIENT), session)
    ((session, _),) = sent(performed(core, [LinkOpened(again), hello]))
    performed(core, [envelope(again, StatStorage(1), session, 1)])
    assert core.wake_at == ACKNOWLEDGE_SECONDS
    assert sent(core.step([], ACKNOWLEDGE_SECONDS)) == [(session, Acknowledge())]


def test_broken_connection_does_not_delay_other_acknowledgements(core: ListenerCore) -> None:
    broken, link = Link(), Link()
    joined(core, broken)
    other = bytes(range(100, 116))
    ((session, _),) = sent(performed(core, [LinkOpened(link), envelope(link, own_hello(Role.CLIENT), other)]))
    performed(core, [envelope(link, StatStorage(1), session, 1), LinkLost(broken)])
    assert core.wake_at == ACKNOWLEDGE_SECONDS
