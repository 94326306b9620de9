"""One side of a session: retained, resent, and dropped messages, and due acknowledgements."""

from __future__ import annotations

import math
import sys

import pytest

from scaler.errors import LimitError, ProtocolError
from scaler.protocol.codec import encode
from scaler.protocol.messages import MAX_ATTACHED_BYTES, PROTOCOL_VERSION, Acknowledge, Clear
from scaler.protocol.session import (
    ACKNOWLEDGE_BYTES,
    ACKNOWLEDGE_MESSAGES,
    ACKNOWLEDGE_SECONDS,
    ENVELOPE_OVERHEAD_BYTES,
    MAX_ATTACHMENTS,
    MAX_DESCRIPTORS,
    Header,
    OutboxLimits,
    Session,
    UnreadableError,
    check_attachments,
)

SESSION_ID = b"peer-id." + b"nonce..."


def session(max_messages: int = 1000, max_bytes: int = 10_000_000) -> Session:
    return Session(SESSION_ID, OutboxLimits(max_messages, max_bytes))


def header(sequence: int, acknowledged: int = 0) -> bytes:
    return Header(PROTOCOL_VERSION, 0, SESSION_ID, sequence, acknowledged).pack()


def send_all(sender: Session) -> list[tuple[int, bytes]]:
    return [(Header.read(envelope.header).sequence, envelope.body) for envelope in sender.take()]


def test_header_of_another_length_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="40 bytes, not 39"):
        Header.read(bytes(39))
    with pytest.raises(ProtocolError, match="40 bytes, not 39"):
        session().receive(bytes(39), 0, 0.0)


@pytest.mark.parametrize(
    ("foreign", "why"),
    [
        (Header(PROTOCOL_VERSION + 1, 0, SESSION_ID, 1, 0), "an envelope of protocol"),
        (Header(PROTOCOL_VERSION, 1, SESSION_ID, 1, 0), "with flags 0x1"),
        (Header(PROTOCOL_VERSION, 0, bytes(16), 1, 0), "an envelope of session"),
    ],
)
def test_envelope_of_another_session_changes_nothing(foreign: Header, why: str) -> None:
    receiver = session()
    with pytest.raises(ProtocolError, match=why):
        receiver.receive(foreign.pack(), 0, 0.0)
    assert receiver.received == 0


def test_only_unacknowledged_messages_are_resent_after_a_break() -> None:
    sender = session()
    for body in (b"a", b"b", b"c"):
        sender.keep(body)
    send_all(sender)
    sender.keep(b"d")
    sender.disconnect()
    sender.resume(1)
    assert send_all(sender) == [(2, b"b"), (3, b"c"), (4, b"d")]


def test_session_with_missing_or_unknown_messages_cannot_resume() -> None:
    sender = session()
    for body in (b"a", b"b", b"c"):
        sender.keep(body)
    send_all(sender)
    sender.receive(header(0, acknowledged=2), 0, 0.0)
    assert [number for number in range(6) if sender.can_resume(number)] == [2, 3]
    with pytest.raises(ProtocolError):
        sender.resume(1)


def test_full_outbox_raises_and_names_the_limit() -> None:
    by_count = session(max_messages=2)
    by_count.keep(b"a")
    by_count.keep(b"b")
    with pytest.raises(LimitError, match="unacknowledged messages: 2"):
        by_count.keep(b"c")
    by_bytes = session(max_bytes=2 * (ENVELOPE_OVERHEAD_BYTES + 400))
    by_bytes.keep(b"a" * 300, [memoryview(bytes(100))])
    with pytest.raises(LimitError, match="1312"):
        by_bytes.keep(b"a" * 100, [bytearray(301)])
    assert by_bytes.outbox_messages == 1
    by_bytes.keep(b"a" * 100, [bytearray(300)])
    assert by_bytes.sent_bytes == by_bytes.outbox_bytes == 1312


def test_unsequenced_messages_go_first_and_are_dropped_at_a_break() -> None:
    sender = session()
    sender.send(Acknowledge(), (), (), is_connected=False)
    sender.keep(b"kept")
    sender.send(Acknowledge(), (), (), is_connected=True)
    assert [Header.read(envelope.header).sequence for envelope in sender.take(sequenced=False)] == [0]
    assert sender.take(sequenced=False) == []
    sender.post(b"loose")
    sender.disconnect()
    assert send_all(sender) == [(1, b"kept")]


def test_session_awaits_its_missing_messages() -> None:
    receiver = session()
    receiver.receive(header(1), 1, 0.0)
    other = Header(PROTOCOL_VERSION, 0, bytes(16), 2, 0).pack()
    assert [receiver.awaits(frame) for frame in (header(1), header(2), other, bytes(39))] == [False, True, False, False]


def test_duplicates_are_recognized_and_a_gap_changes_nothing() -> None:
    receiver = session()
    assert receiver.receive(header(1), 1, 0.0)
    assert not receiver.receive(header(1), 1, 0.0)
    with pytest.raises(UnreadableError):
        receiver.receive(header(3), 1, 0.0)
    assert receiver.received == 1
    assert receiver.receive(header(2), 1, 0.0)


def test_acknowledging_an_unsent_message_is_a_protocol_error_without_effect() -> None:
    receiver = session()
    with pytest.raises(ProtocolError, match="message 1 is acknowledged, but the last message sent is 0"):
        receiver.receive(header(1, acknowledged=1), 1, 0.0)
    assert receiver.received == 0


def test_acknowledgement_is_due_after_a_time_or_number_of_messages_or_bytes() -> None:
    by_time = session()
    assert by_time.acknowledge_at == math.inf
    by_time.receive(header(1), 1, 10.0)
    by_time.receive(header(2), 1, 10.01)
    assert by_time.acknowledge_at == 10.0 + ACKNOWLEDGE_SECONDS

    by_count = session()
    for number in range(1, ACKNOWLEDGE_MESSAGES):
        by_count.receive(header(number), 1, 0.0)
    assert by_count.acknowledge_at == ACKNOWLEDGE_SECONDS
    by_count.receive(header(ACKNOWLEDGE_MESSAGES), 1, 0.01)
    assert by_count.acknowledge_at == 0.01

    by_bytes = session()
    by_bytes.receive(header(1), ACKNOWLEDGE_BYTES, 0.0)
    assert by_bytes.acknowledge_at == 0.0
    assert by_bytes.take(-0.01) == []
    assert send_all(by_bytes) == []
    (acknowledgement,) = by_bytes.take(0.0)
    assert (Header.read(acknowledgement.header).acknowledged, acknowledgement.body) == (1, encode(Acknowledge()))


def test_attachments_are_limited_in_number_and_size_and_contiguous() -> None:
    large = memoryview(bytearray(MAX_ATTACHED_BYTES + 1))
    check_attachments([b"", bytearray(1), large[2:]])
    check_attachments([b""] * MAX_ATTACHMENTS, [sys.stdin] * MAX_DESCRIPTORS)
    with pytest.raises(LimitError, match="MAX_ATTACHMENTS"):
        check_attachments([b""] * (MAX_ATTACHMENTS + 1))
    for too_large in ([large], [large[1:], memoryview(b"a")]):
        with pytest.raises(LimitError, match="MAX_ATTACHED_BYTES"):
            check_attachments(too_large)
    with pytest.raises(ValueError, match="contiguous"):
        check_attachments([memoryview(bytes(10))[::2]])
    with pytest.raises(ValueError, match="Acknowledge carries no attachments"):
        session().send(Acknowledge(), [b"x"], (), is_connected=True)
    with pytest.raises(LimitError, match="MAX_DESCRIPTORS"):
        session().send(Clear(), (), [sys.stdin] * (MAX_DESCRIPTORS + 1), is_connected=True)
