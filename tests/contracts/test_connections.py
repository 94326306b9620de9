"""Behavior of every listener and connector, over ZeroMQ (tcp, ipc) and in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from scaler.errors import LimitError
from scaler.net.connection import (
    Broken,
    Closed,
    ConnectionRefused,
    ConnectorEvent,
    Identity,
    ListenerEvent,
    Opened,
    Received,
    Resumed,
    Welcomed,
)
from scaler.net.transport import MAX_MALFORMED_IN_A_ROW
from scaler.object_storage.messages import GetObject, PutObject, StatStorage, StorageReply, StorageResult
from scaler.protocol.messages import (
    MAX_ATTACHED_BYTES,
    Buffer,
    Cancel,
    ForgetOwner,
    Goodbye,
    Hello,
    RefusalReason,
    Refused,
    Role,
    Welcome,
)
from scaler.protocol.session import OutboxLimits
from tests.contracts.networks import Network, Peer, Server, make_network

ALL = ["memory", "tcp", "compressed", "ipc", "local", "tcp-uvloop", "local-uvloop"]
on_all = pytest.mark.parametrize("network", ALL, indirect=True)
"""Compression, ipc sockets, and the other event loop only change the transport of bytes."""


@pytest.fixture(params=["memory", "tcp", "local"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Network]:
    kind, _, loop_kind = request.param.partition("-")
    loop = uvloop.new_event_loop() if loop_kind else asyncio.new_event_loop()
    made = make_network(kind, tmp_path, loop)
    try:
        yield made
    finally:
        made.close()
        loop.close()


def met(network: Network, kind: str = "object_storage", role: Role = Role.CLIENT) -> tuple[Server, Peer]:
    server, peer = network.serve(kind), network.connect(role)
    network.until(lambda: peer.connector.connected)
    return server, peer


def asked(server: Server) -> list[int]:
    """Return the numbers of the received requests, in order."""
    return [
        event.message.request
        for event in server.events
        if isinstance(event, Received) and isinstance(event.message, StatStorage | GetObject)
    ]


def answered(peer: Peer) -> list[int]:
    return [
        event.message.request
        for event in peer.events
        if isinstance(event, Received) and isinstance(event.message, StorageReply)
    ]


def kinds(events: list[ListenerEvent] | list[ConnectorEvent]) -> list[type]:
    return [type(event) for event in events]


def reply(request: int) -> StorageReply:
    return StorageReply(request, StorageResult.OK)


# -- handshake ------------------------------------------------------------------------------------------------------


def test_welcomes_a_peer_and_notifies_both_sides(network: Network) -> None:
    server, peer = met(network)
    (opened,) = server.events
    assert isinstance(opened, Opened)
    assert opened.peer == peer.connector.peer
    assert opened.hello.role is Role.CLIENT
    assert not opened.hello.resume
    (welcomed,) = peer.events
    assert isinstance(welcomed, Welcomed)
    assert replace(welcomed.welcome, compression="") == Welcome(False, 1, 60.0, 2.0)


def test_peer_may_connect_and_queue_messages_before_its_server_starts(network: Network) -> None:
    peer = network.connect()
    peer.connector.send(StatStorage(1))
    assert not peer.connector.connected
    server = network.serve()
    network.until(lambda: asked(server) == [1])


def test_refused_peer_gets_the_reason_and_stops_trying(network: Network) -> None:
    hellos = []

    def admit(_peer: bytes, hello: Hello, _identity: Identity) -> Welcome | Refused:
        hellos.append(hello)
        return Refused(RefusalReason.VERSION, "too old")

    network.serve(admit=admit)
    peer = network.connect()
    network.until(lambda: bool(peer.events))
    assert peer.events == [ConnectionRefused(Refused(RefusalReason.VERSION, "too old"))]
    assert not peer.connector.connected
    assert len(hellos) == 1
    peer.connector.send(StatStorage(1))
    assert peer.connector.outbox_bytes() == 0


def test_second_process_with_the_same_peer_id_is_refused(network: Network) -> None:
    server, first = met(network)
    second = network.connect(peer=first.connector.peer)
    network.until(lambda: bool(second.events))
    (turned,) = second.events
    assert isinstance(turned, ConnectionRefused)
    assert turned.refused.reason is RefusalReason.DUPLICATE
    first.connector.send(StatStorage(1))
    network.until(lambda: asked(server) == [1])


# -- delivery -------------------------------------------------------------------------------------------------------


@on_all
def test_messages_and_attachments_travel_both_ways(network: Network) -> None:
    server, peer = met(network)
    large = bytes(range(256)) * 4096
    attachments: list[Buffer] = [memoryview(large), b"small", bytearray(b"changing"), b""]
    peer.connector.send(PutObject(1, b"i" * 16, [len(large), 5, 8, 0], 0), attachments)
    network.until(lambda: len(server.events) == 2)
    received = server.events[1]
    assert isinstance(received, Received)
    assert received.peer == peer.connector.peer
    assert [bytes(attachment) for attachment in received.attachments] == [large, b"small", b"changing", b""]
    assert all(attachment.readonly for attachment in received.attachments)
    # Received messages are forwarded unchanged.
    server.listener.send(received.peer, StorageReply(1, StorageResult.OK), received.attachments)
    network.until(lambda: len(peer.events) == 2)
    answer = peer.events[1]
    assert isinstance(answer, Received)
    assert answer.message == StorageReply(1, StorageResult.OK)
    assert [bytes(attachment) for attachment in answer.attachments] == [large, b"small", b"changing", b""]


@on_all
def test_everything_arrives_once_and_in_order_over_breaking_connections(network: Network) -> None:
    server, peer = met(network)

    def answer(events: list[ListenerEvent]) -> None:
        for event in events:
            if isinstance(event, Received) and isinstance(event.message, StatStorage):
                server.listener.send(event.peer, reply(event.message.request))

    server.react = answer
    total = 0
    for _ in range(6):
        for _ in range(700):
            total += 1
            peer.connector.send(StatStorage(total))
        # In the middle of a message.
        target = total - 350
        network.until(lambda target=target: len(answered(peer)) >= target)  # type: ignore[misc]
        network.break_connections()
    network.until(lambda: len(answered(peer)) == total)
    assert asked(server) == list(range(1, total + 1))
    assert answered(peer) == list(range(1, total + 1))
    assert Resumed in kinds(server.events)
    assert Resumed in kinds(peer.events)
    assert kinds(server.events).count(Opened) == 1
    network.until(lambda: peer.connector.outbox_bytes() == 0)
    network.until(lambda: server.listener.outbox_bytes(peer.connector.peer) == 0)


def test_reports_a_break_and_delivers_queued_messages_later(network: Network) -> None:
    server, peer = met(network)
    network.set_reachable(False)
    network.break_connections()
    network.until(lambda: Broken in kinds(server.events) and Broken in kinds(peer.events))
    assert not peer.connector.connected
    peer.connector.send(StatStorage(7))
    server.listener.send(peer.connector.peer, reply(8))
    network.set_reachable(True)
    network.until(lambda: asked(server) == [7] and answered(peer) == [8])
    assert kinds(peer.events) == [Welcomed, Broken, Resumed, Received]
    assert kinds(server.events) == [Opened, Broken, Resumed, Received]


# -- end of sessions ------------------------------------------------------------------------------------------------


def test_goodbye_ends_the_session_after_queued_messages(network: Network) -> None:
    server, peer = met(network)
    for number in range(60):
        peer.connector.send(StatStorage(number))
    peer.connector.close("done here")
    peer.connector.close()
    network.until(lambda: Closed in kinds(server.events))
    assert server.events[-1] == Closed(peer.connector.peer, "done here")
    assert asked(server) == list(range(60))
    server.listener.send(peer.connector.peer, reply(1))
    assert server.listener.outbox_bytes(peer.connector.peer) == 0


def test_restarted_server_opens_a_new_session_that_voids_old_messages(network: Network) -> None:
    first, peer = met(network)
    peer.connector.send(StatStorage(1))
    network.until(lambda: asked(first) == [1])
    first.listener.close()
    first.listener.close()
    network.until(lambda: Broken in kinds(peer.events))
    peer.connector.send(StatStorage(2))
    second = network.serve()
    network.until(lambda: peer.connector.connected)
    assert peer.connector.outbox_bytes() == 0
    peer.connector.send(StatStorage(3))
    network.until(lambda: asked(second) == [3])
    second.listener.send(peer.connector.peer, reply(3))
    network.until(lambda: answered(peer) == [3])
    assert kinds(peer.events) == [Welcomed, Broken, Welcomed, Received]
    opened = second.events[0]
    assert isinstance(opened, Opened)
    assert opened.hello.resume


@on_all
def test_closing_server_delivers_queued_messages(network: Network) -> None:
    server, peer = met(network)
    for number in range(60):
        server.listener.send(peer.connector.peer, reply(number))
    server.listener.close()
    network.until(lambda: Broken in kinds(peer.events))
    assert answered(peer) == list(range(60))


def test_forgotten_peer_starts_over_when_it_returns(network: Network) -> None:
    server, peer = met(network)
    network.set_reachable(False)
    network.break_connections()
    network.until(lambda: Broken in kinds(server.events) and Broken in kinds(peer.events))
    peer.connector.send(StatStorage(1))
    server.listener.forget(peer.connector.peer, Goodbye("the lease is over"))
    network.set_reachable(True)
    network.until(lambda: peer.connector.connected)
    peer.connector.send(StatStorage(2))
    network.until(lambda: asked(server) == [2])
    assert kinds(peer.events) == [Welcomed, Broken, Welcomed]


def test_goodbye_with_a_refusal_stops_the_peer_permanently(network: Network) -> None:
    server, peer = met(network)
    refused = Refused(RefusalReason.EXPIRED, "you were away for too long")
    server.listener.forget(peer.connector.peer, refused)
    network.until(lambda: ConnectionRefused in kinds(peer.events))
    assert peer.events[-1] == ConnectionRefused(refused)


# -- limits and invalid messages ------------------------------------------------------------------------------------


def test_forbidden_messages_are_dropped_and_finally_cut_the_connection(network: Network) -> None:
    server, peer = met(network, role=Role.CLIENT)
    for _ in range(MAX_MALFORMED_IN_A_ROW - 1):
        peer.connector.send(ForgetOwner(bytes(8)))
    peer.connector.send(StatStorage(1))
    network.until(lambda: asked(server) == [1])
    assert Closed not in kinds(server.events)
    for _ in range(MAX_MALFORMED_IN_A_ROW):
        peer.connector.send(ForgetOwner(bytes(8)))
    peer.connector.send(StatStorage(2))
    network.until(lambda: ConnectionRefused in kinds(peer.events) and Closed in kinds(server.events))
    turned = peer.events[-1]
    assert isinstance(turned, ConnectionRefused)
    assert turned.refused.reason is RefusalReason.MALFORMED
    assert "ForgetOwner" in turned.refused.text
    assert asked(server) == [1]


def test_oversized_message_is_refused_before_sending(network: Network) -> None:
    server, peer = met(network, kind="scheduler")
    with pytest.raises(LimitError, match="MAX_ATTACHED_BYTES"):
        peer.connector.send(PutObject(1, bytes(16), [], 0), [bytes(MAX_ATTACHED_BYTES), b"x"])
    with pytest.raises(LimitError, match="MAX_CONTROL_BYTES"):
        peer.connector.send(Cancel([bytes(16)] * 70_000))
    with pytest.raises(ValueError, match="contiguous"):
        peer.connector.send(PutObject(1, bytes(16), [], 0), [memoryview(bytes(10))[::2]])
    peer.connector.send(Cancel([bytes(16)]))
    network.until(lambda: len(server.events) == 2)
    assert isinstance(server.events[1], Received)
    assert server.events[1].message == Cancel([bytes(16)])


def test_peer_that_never_reads_is_dropped_when_its_outbox_is_full(network: Network) -> None:
    server = network.serve(outbox=OutboxLimits(messages=10_000, size_bytes=100_000))
    peer = network.connect()
    network.until(lambda: peer.connector.connected)
    network.set_reachable(False)
    network.break_connections()
    network.until(lambda: Broken in kinds(server.events) and Broken in kinds(peer.events))
    for number in range(1000):
        server.listener.send(peer.connector.peer, reply(number))
    network.until(lambda: Closed in kinds(server.events))
    closed = server.events[-1]
    assert isinstance(closed, Closed)
    assert "100000" in closed.text
    assert server.listener.outbox_bytes(peer.connector.peer) == 0
    network.set_reachable(True)
    network.until(lambda: peer.connector.connected)
    assert kinds(peer.events) == [Welcomed, Broken, Welcomed]


# -- heartbeats -----------------------------------------------------------------------------------------------------


def quick(_peer: bytes, _hello: Hello, _identity: Identity) -> Welcome | Refused:
    return Welcome(False, 1, lease_seconds=0.4, heartbeat_seconds=0.05)


@on_all
def test_silent_connection_is_replaced(network: Network) -> None:
    server = network.serve(admit=quick)
    peer = network.connect(Role.CLIENT)
    network.until(lambda: peer.connector.connected)
    network.swallow()
    peer.connector.send(StatStorage(1))
    server.listener.send(peer.connector.peer, reply(2))
    network.until(lambda: asked(server) == [1] and answered(peer) == [2])
    assert kinds(peer.events) == [Welcomed, Broken, Resumed, Received]
    # The server did not notice the break: the new connection ends the old one.
    seen = [kind for kind in kinds(server.events) if kind in {Opened, Broken, Resumed}]
    assert seen == [Opened, Broken, Resumed]
