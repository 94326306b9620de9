"""Envelopes on a unix socket round-trip however the kernel splits the stream."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import IO

import pytest

from scaler.net.local import READ_BYTES, LocalTransport
from scaler.net.transport import EnvelopeReceived, Input, LinkLost, MalformedReceived, Unblocked
from scaler.protocol.messages import MAX_ATTACHED_BYTES, MAX_BATCH_BYTES, MAX_CONTROL_BYTES
from scaler.protocol.session import MAX_ATTACHMENTS, MAX_DESCRIPTORS, Envelope

HEADER = bytes(range(40))
Pair = tuple[LocalTransport, socket.socket]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="there are no local listeners here")


class IdleWatcher:
    def watch(self, descriptor: int) -> None: ...

    def watch_writing(self, descriptor: int, is_wanted: bool) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A transport, and the bare socket at its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.settimeout(4)
    yield LocalTransport(ours, IdleWatcher()), theirs
    ours.close()
    theirs.close()


@pytest.fixture
def both() -> Iterator[tuple[LocalTransport, LocalTransport]]:
    ends = [LocalTransport(end, IdleWatcher()) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)]
    yield ends[0], ends[1]
    for end in ends:
        end.cut()


def envelopes_of(inputs: Sequence[Input]) -> list[EnvelopeReceived]:
    return [each for each in inputs if isinstance(each, EnvelopeReceived)]


def receive(transport: LocalTransport, count: int) -> list[EnvelopeReceived]:
    found: list[Input] = []
    while len(found) < count:
        transport.receive(found)
    assert all(isinstance(each, EnvelopeReceived) for each in found)
    return envelopes_of(found)


def plain(envelope: EnvelopeReceived) -> tuple[bytes, bytes, list[bytes]]:
    return envelope.header, envelope.body, [bytes(attachment) for attachment in envelope.attachments]


def written(transport: LocalTransport, theirs: socket.socket, envelopes: Sequence[Envelope]) -> bytes:
    """The bytes that the transport sends for these envelopes."""
    transport.transmit(envelopes)
    is_done = not transport.is_blocked
    found = b""
    while not is_done:
        found += theirs.recv(1 << 20)
        inputs: list[Input] = []
        transport.receive(inputs)
        is_done = any(isinstance(each, Unblocked) for each in inputs)
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
@pytest.mark.parametrize("at_once", [True, False])
def test_envelopes_round_trip_wherever_the_stream_is_split(pair: Pair, step: int, at_once: bool) -> None:
    transport, theirs = pair
    sent = [envelope for envelope in ENVELOPES if step > 40 or sum(map(len, [envelope[0], *envelope[1]])) < 100]
    envelopes = [Envelope(HEADER, *each) for each in sent]
    batches = [envelopes] if at_once else [[envelope] for envelope in envelopes]
    whole = b"".join(written(transport, theirs, batch) for batch in batches)
    found: list[Input] = []
    theirs.setblocking(False)
    for start in range(0, len(whole), step):
        piece = whole[start : start + step]
        while piece:
            with contextlib.suppress(BlockingIOError):
                piece = piece[theirs.send(piece) :]
            transport.receive(found)
    while len(found) < len(sent):
        transport.receive(found)
    assert [plain(envelope) for envelope in envelopes_of(found)] == [(HEADER, *each) for each in sent]
    assert all(view.readonly for envelope in envelopes_of(found) for view in envelope.attachments)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("=IHH40s", MAX_BATCH_BYTES + 1, 0, 0, HEADER),
        struct.pack("=IHH40s", 10, MAX_ATTACHMENTS + 1, 0, HEADER),
        struct.pack("=IHH40s", 10, 0, MAX_DESCRIPTORS + 1, HEADER),
        struct.pack("=IHH40sII", 10, 2, 0, HEADER, 1, MAX_ATTACHED_BYTES + 1),
        b"GET / HTTP/1.1\r\n" * 4,
    ],
    ids=["body", "attachments", "descriptors", "attachment", "http"],
)
def test_sizes_are_checked_before_allocation(pair: Pair, head: bytes) -> None:
    transport, theirs = pair
    theirs.sendall(head)
    found: list[Input] = []
    transport.receive(found)
    assert [type(each) for each in found] == [MalformedReceived, LinkLost]


def test_end_is_reported_after_all_earlier_events(pair: Pair) -> None:
    transport, theirs = pair
    theirs.sendall(written(transport, theirs, [Envelope(HEADER, b"the last words")]))
    theirs.close()
    found: list[Input] = []
    transport.receive(found)
    transport.receive(found)
    assert envelopes_of(found)[0].body == b"the last words"
    assert found[1:] == [LinkLost(transport)]


# -- descriptors -------------------------------------------------------------------------------------------------------


def pipe() -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return os.fdopen(reader, "rb"), os.fdopen(writer, "wb")


def is_same(one: int, other: int) -> bool:
    return os.path.sameopenfile(one, other)


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (the path's own descriptor is among them)


@on_linux
@pytest.mark.parametrize("size", [10, 100_000, MAX_CONTROL_BYTES])
def test_descriptors_arrive_with_their_envelope(both: tuple[LocalTransport, LocalTransport], size: int) -> None:
    ours, theirs = both
    before = open_descriptors()
    first, second = pipe(), pipe()
    sent = [
        Envelope(HEADER, b"before"),
        Envelope(HEADER, bytes(size), [b"x" * size], first),
        Envelope(HEADER, b"between"),
        Envelope(HEADER, b"second", (), second[:1]),
        Envelope(HEADER, b"third", (), second[1:]),
        Envelope(HEADER, b"after"),
    ]
    ours.transmit(sent)
    found: list[Input] = []
    while len(found) < len(sent):
        ours.receive([])
        theirs.receive(found)
    envelopes = envelopes_of(found)
    assert [len(envelope.descriptors) for envelope in envelopes] == [0, 2, 0, 1, 1, 0]
    passed = [descriptor for envelope in envelopes for descriptor in envelope.descriptors]
    for file, descriptor in zip([*first, *second], passed, strict=True):
        assert is_same(file.fileno(), descriptor.fileno())
        assert not os.get_inheritable(descriptor.fileno())
        file.close()
    del envelopes, passed, found, descriptor, sent
    assert open_descriptors() == before


@on_linux
def test_unclaimed_descriptors_end_the_connection_and_are_closed(pair: Pair) -> None:
    transport, theirs = pair
    before = open_descriptors()
    envelope = struct.pack("=IHH40s", 0, 0, 0, HEADER)
    for _ in range(3):
        theirs.sendmsg([envelope], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [0]))])
    found: list[Input] = []
    while not found or not isinstance(found[-1], LinkLost):
        transport.receive(found)
    assert [type(each) for each in found[-2:]] == [MalformedReceived, LinkLost]
    del found
    assert open_descriptors() == before - 1
