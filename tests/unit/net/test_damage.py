"""Unreadable messages are resent without an acknowledgement, and permanently unreadable ones end the session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaler.net.connection import Broken, Closed, ConnectionRefused, Opened, Received, Resumed
from scaler.net.transport import MAX_MALFORMED_IN_A_ROW, EnvelopeReceived, MalformedReceived
from scaler.net.zmq_transport import checked, with_checksum
from scaler.object_storage.messages import StatStorage, StorageReply, StorageResult
from scaler.protocol.codec import encode
from scaler.protocol.messages import RefusalReason
from scaler.protocol.session import Envelope, Header
from tests.contracts.memory_network import MemoryNetwork, WireEnd
from tests.unit.net.test_memory_network import Pair

COUNT = 20
BAD = 7
LINK = WireEnd.__new__(WireEnd)


def conversation(to_server: bool, alter: Callable[[Envelope], Envelope]) -> tuple[MemoryNetwork, Pair]:
    """Send messages with the numbers 1 to COUNT in one direction, over a network that alters envelopes."""
    network = MemoryNetwork()
    pair = Pair(network)
    network.run()
    network.alter = alter
    for number in range(1, COUNT + 1):
        if to_server:
            pair.client.send(StatStorage(number))
        else:
            pair.server.send(pair.client.peer, StorageReply(number, StorageResult.OK))
    network.advance(20.0)
    return network, pair


def received(pair: Pair, to_server: bool) -> list[int]:
    if not to_server:
        return pair.heard()
    return [e.message.request for e in pair.at_server if isinstance(e, Received) and isinstance(e.message, StatStorage)]


def unreadable(envelope: Envelope) -> Envelope:
    return envelope._replace(body=b"\xff" * len(envelope.body))


@pytest.mark.parametrize("to_server", [True, False])
def test_damaged_messages_are_resent_in_order_and_once(to_server: bool) -> None:
    damages = 0

    def alter(envelope: Envelope) -> Envelope:
        nonlocal damages
        if Header.read(envelope.header).sequence % 5 != 4 or damages == 12:
            return envelope
        damages += 1
        return unreadable(envelope)

    _, pair = conversation(to_server, alter)
    assert damages == 12
    assert received(pair, to_server) == list(range(1, COUNT + 1))
    at_receiver = pair.at_server if to_server else pair.at_client
    kinds = [type(event) for event in at_receiver]
    assert kinds.count(Broken) == kinds.count(Resumed) >= 3
    assert not any(isinstance(event, Closed | ConnectionRefused) for event in at_receiver)
    assert sum(isinstance(event, Opened) for event in pair.at_server) == 1


@pytest.mark.parametrize("to_server", [True, False])
def test_unreadable_message_soon_ends_the_session_on_both_sides(to_server: bool) -> None:
    attempts = 0

    def alter(envelope: Envelope) -> Envelope:
        nonlocal attempts
        if envelope.body != encode(StatStorage(BAD) if to_server else StorageReply(BAD, StorageResult.OK)):
            return envelope
        attempts += 1
        return unreadable(envelope)

    network, pair = conversation(to_server, alter)
    assert attempts == MAX_MALFORMED_IN_A_ROW
    assert received(pair, to_server) == list(range(1, BAD))
    refusals = [event.refused for event in pair.at_client if isinstance(event, ConnectionRefused)]
    assert [refused.reason for refused in refusals] == [RefusalReason.MALFORMED]
    assert f"{MAX_MALFORMED_IN_A_ROW} malformed messages in a row" in refusals[0].text
    closed = [event for event in pair.at_server if isinstance(event, Closed)]
    assert len(closed) == 1
    assert "malformed" in closed[0].text
    network.advance(60.0)
    assert len([event for event in pair.at_server if isinstance(event, Opened)]) == 1


@pytest.mark.parametrize("bit", range(0, 8 * 60, 23))
def test_checksum_detects_every_flipped_bit_of_an_envelope(bit: int) -> None:
    header = Header(3, 0, bytes(range(16)), 5, 4).pack()
    sent = with_checksum(Envelope(header, b"ten bytes.", [b"attached:", b"x"]))
    assert checked(EnvelopeReceived(LINK, sent.header, sent.body)) != EnvelopeReceived(LINK, header, sent.body)
    attachments = [memoryview(bytes(each)) for each in sent.attachments]
    whole = checked(EnvelopeReceived(LINK, sent.header, sent.body, attachments))
    assert whole == EnvelopeReceived(LINK, header, sent.body, attachments)
    changed = bytearray(sent.header + sent.body + b"".join(attachments))
    changed[bit // 8] ^= 1 << bit % 8
    parts = [memoryview(bytes(changed[50:59])), memoryview(bytes(changed[59:]))]
    found = checked(EnvelopeReceived(LINK, bytes(changed[:40]), bytes(changed[40:50]), parts))
    assert isinstance(found, MalformedReceived)
    assert found.is_damaged
