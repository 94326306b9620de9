"""Envelopes on a unix socket: however the kernel cuts the stream, they come out as they went in."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from scaler.errors import ProtocolError
from scaler.net.envelopes import Taken
from scaler.net.local import READ_BYTES, Parts, Stream, door_of
from scaler.protocol.messages import MAX_BATCH_BYTES, MAX_CHUNK_BYTES
from scaler.protocol.session import MAX_ATTACHMENTS

HEADER = bytes(range(40))
Pair = tuple[Stream, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A stream, and the bare socket at its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.settimeout(4)
    yield Stream(ours), theirs
    ours.close()
    theirs.close()


def arrived(stream: Stream, count: int) -> list[Parts]:
    found: list[Parts] = []
    while len(found) < count:
        assert stream.receive(found)
    return found


def plain(parts: Parts) -> tuple[bytes, bytes, list[bytes]]:
    return parts.header, parts.body, [bytes(attachment) for attachment in parts.attachments]


def written(stream: Stream, theirs: socket.socket, body: bytes, attachments: list[bytes]) -> bytes:
    """What the stream puts on the wire for an envelope."""
    assert stream.transmit(HEADER, body, attachments) is Taken.SENT
    found = b""
    while stream.has_tail:
        found += theirs.recv(1 << 20)
        stream.push()
    theirs.setblocking(False)
    try:
        while True:
            found += theirs.recv(1 << 20)
    except BlockingIOError:
        theirs.settimeout(4)
        return found


ENVELOPES: list[tuple[bytes, list[bytes]]] = [
    (b"a body", []),
    (b"", []),
    (b"", [b""]),
    (b"body", [b"", b"x", b"", b"yz", b""]),
    (bytes(100_000), []),
    (bytes(100_000), [bytes(70_000), b"small", bytes(200_000)]),
    (b"body", [b"x"] * MAX_ATTACHMENTS),
]


@pytest.mark.parametrize("step", [1, 7, 47, 48, 4096, READ_BYTES, 10_000_000])
def test_envelopes_come_out_as_they_went_in_wherever_the_stream_is_cut(pair: Pair, step: int) -> None:
    stream, theirs = pair
    small = [envelope for envelope in ENVELOPES if step > 40 or sum(map(len, [envelope[0], *envelope[1]])) < 100]
    whole = b"".join(written(stream, theirs, *envelope) for envelope in small)
    found: list[Parts] = []
    theirs.setblocking(False)
    for start in range(0, len(whole), step):
        piece = whole[start : start + step]
        while piece:
            with contextlib.suppress(BlockingIOError):
                piece = piece[theirs.send(piece) :]
            assert stream.receive(found)
    found += arrived(stream, len(small) - len(found))
    assert [plain(parts) for parts in found] == [(HEADER, *envelope) for envelope in small]
    assert all(view.readonly for parts in found for view in parts.attachments)


def test_what_the_kernel_does_not_take_waits_and_the_next_envelope_is_not_taken_before_it_is_gone(pair: Pair) -> None:
    stream, theirs = pair
    body = bytes(range(256)) * 40_000
    assert stream.transmit(HEADER, body, ()) is Taken.SENT
    assert stream.has_tail
    assert stream.transmit(HEADER, b"next", ()) is Taken.BLOCKED
    other = Stream(theirs)
    found: list[Parts] = []
    while not found:
        assert other.receive(found)
        stream.push()
    assert stream.transmit(HEADER, b"next", ()) is Taken.SENT
    found += arrived(other, 1)
    assert [parts.body for parts in found] == [body, b"next"]


def test_a_full_connection_takes_no_part_of_an_envelope(pair: Pair) -> None:
    stream, theirs = pair
    count = 0
    while (taken := stream.transmit(HEADER, bytes(1000), ())) is Taken.SENT and not stream.has_tail:
        count += 1
    other = Stream(theirs)
    found: list[Parts] = []
    while len(found) < count + (taken is Taken.SENT):
        assert other.receive(found)
        stream.push()
    assert stream.transmit(HEADER, b"last", ()) is Taken.SENT
    assert arrived(other, 1)[0].body == b"last"


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("=II40s", MAX_BATCH_BYTES + 1, 0, HEADER),
        struct.pack("=II40s", 10, MAX_ATTACHMENTS + 1, HEADER),
        struct.pack("=II40sII", 10, 2, HEADER, 1, MAX_CHUNK_BYTES + 1),
        b"GET / HTTP/1.1\r\n" * 4,
    ],
    ids=["body", "attachments", "attachment", "http"],
)
def test_sizes_are_checked_before_anything_is_allocated(pair: Pair, head: bytes) -> None:
    stream, theirs = pair
    theirs.sendall(head)
    with pytest.raises(ProtocolError):
        stream.receive([])


def test_the_end_is_told_after_all_that_came_before_it(pair: Pair) -> None:
    stream, theirs = pair
    theirs.sendall(written(stream, theirs, b"the last words", []))
    theirs.close()
    found: list[Parts] = []
    assert stream.receive(found)
    assert found[0].body == b"the last words"
    assert not stream.receive(found)
    assert stream.transmit(HEADER, b"", ()) is Taken.GONE


@pytest.mark.skipif(sys.platform != "linux", reason="there are no doors here")
def test_an_address_has_one_door_however_it_is_written() -> None:
    door = door_of("tcp://127.0.0.1:2345")
    assert door is not None
    assert door[0] == "\0"
    assert door_of("tcp://localhost:2345") == door_of("tcp://*:2345") == door
    others = {door_of(address) for address in ("tcp://127.0.0.1:2346", "tcp://10.0.0.1:2345", "ipc:///tmp/x")}
    assert len(others | {door}) == 4
