"""Messages between agent and processor, and invalid data from a processor."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import ProtocolError
from scaler.worker.frames import (
    DATAGRAM_BYTES,
    LARGE,
    MAX_PAYLOAD_BYTES,
    MAX_ROWS,
    Note,
    PageReader,
    PageWriter,
    ResultRow,
    Results,
    ToAgent,
    ToProcessor,
    make_page,
    pack,
    pack_note,
    pack_results,
    receive,
    send,
    unpack,
    unpack_note,
    unpack_results,
)

TASK_ID = b"t" * 16


def row(payload: bytes, task: bytes = TASK_ID) -> ResultRow:
    return (task, 1, 0, 0, 12 * 86_400_000_000, 0, 0, 23, 4, 5, 6, 7, len(payload))


@given(st.binary(max_size=100), st.lists(st.binary(max_size=50), max_size=5), st.text(max_size=20))
def test_agent_messages_round_trip(payload: bytes, inputs: list[bytes], name: str) -> None:
    task = (3, 7, TASK_ID, payload, tuple(inputs))
    spec = (9, b"f" * 16, b"", payload, name, True, False, True)
    forgotten = [b"a" * 16, b"b" * 16], [1, 70_000]
    for kind, values in ((ToProcessor.TASK, task), (ToProcessor.SPEC, spec), (ToProcessor.FORGET, forgotten)):
        assert unpack(pack(kind, *values)) == (kind, *values)


@given(st.sampled_from(ToAgent), st.binary(max_size=30), st.binary(max_size=16), st.booleans(), st.integers(0, 2**60))
def test_note_round_trips(kind: ToAgent, text: bytes, identifier: bytes, is_stderr: bool, truncated: int) -> None:
    note = Note(kind, text, identifier.ljust(16, b"\0"), is_stderr, truncated)
    assert unpack_note(pack_note(note._replace(identifier=identifier))) == note


@given(st.binary(max_size=60))
def test_any_datagram_is_a_note_or_refused(data: bytes) -> None:
    try:
        note = unpack_note(data)
    except ProtocolError:
        return
    assert (len(note.identifier), data.endswith(note.text)) == (16, True)


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_results_round_trip(payloads: list[bytes]) -> None:
    rows = [row(payload) for payload in payloads]
    results = unpack_results(pack_results(5, rows, payloads))
    assert (results.batch, results.rows, bytes(results.payloads)) == (5, rows, b"".join(payloads))


@given(st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_malformed_result_datagram_raises_or_is_complete(place: int, change: bytes) -> None:
    datagram = bytearray(pack_results(1, [row(b"abc"), row(b"")], [b"abc", b""]))
    place %= len(datagram)
    datagram[place : place + len(change)] = change
    try:
        results = unpack_results(datagram)
    except ProtocolError:
        return
    assert sum(each[-1] for each in results.rows) == len(results.payloads)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [1, DATAGRAM_BYTES, DATAGRAM_BYTES + 1, 3_000_000])
def test_datagram_of_any_size_arrives_whole(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    datagram = b"\x07" + os.urandom(size - 1)
    send(pair[0], datagram)
    assert receive(pair[1]) == (datagram, [])


def test_invalid_memory_file_is_refused_and_closed(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    path = tmp_path / "written to only"
    path.write_bytes(b"text")
    reader, writer = os.pipe()
    only_written = os.open(path, os.O_WRONLY)
    before = set(Path("/proc/self/fd").iterdir())
    for bad, why in ((reader, "size 0 is not within"), (only_written, "size 4 cannot be read")):
        socket.send_fds(pair[0], [LARGE], [bad])
        with pytest.raises(ProtocolError, match=why):
            receive(pair[1])
    assert set(Path("/proc/self/fd").iterdir()) == before
    for descriptor in (reader, writer, only_written):
        os.close(descriptor)


@pytest.fixture
def page(pair: tuple[socket.socket, socket.socket]) -> Iterator[tuple[PageWriter, PageReader, socket.socket]]:
    ours, theirs = pair
    descriptor = make_page()
    yield PageWriter(descriptor, theirs), PageReader(descriptor), ours
    os.close(descriptor)


def received(end: socket.socket) -> Results:
    return unpack_results(receive(end, socket.MSG_DONTWAIT)[0])


def test_page_shows_running_tasks_and_unsent_items(page: tuple[PageWriter, PageReader, socket.socket]) -> None:
    writer, reader, end = page
    assert reader.unsent() is None
    writer.begin(5_000_000_000)
    assert reader.snapshot() == (1, 5.0, 0)
    writer.add(row(b"value"), b"value", 1)
    assert reader.snapshot() == (1, 5.0, 1)
    unsent = reader.unsent()
    assert unsent is not None
    assert unsent.rows == [row(b"value")]
    assert bytes(unsent.payloads) == b"value"
    writer.flush()
    sent = received(end)
    assert (sent.rows, sent.batch, bytes(sent.payloads)) == (unsent.rows, unsent.batch, b"value")
    assert reader.unsent() is None


def test_results_too_large_for_the_page_are_sent(page: tuple[PageWriter, PageReader, socket.socket]) -> None:
    writer, reader, end = page
    for _ in range(MAX_ROWS + 1):
        writer.add(row(b""), b"", 1)
    full = received(end)
    assert (full.batch, len(full.rows)) == (0, MAX_ROWS)
    large = bytes(MAX_PAYLOAD_BYTES + 20_000)
    writer.add(row(large), large, 1)
    rest, alone = received(end), received(end)
    assert (rest.batch, rest.rows) == (1, [row(b"")])
    assert (alone.batch, alone.rows, bytes(alone.payloads)) == (2, [row(large)], large)
    assert reader.snapshot().finished == MAX_ROWS + 2
    assert reader.unsent() is None


def test_rejects_a_large_datagram_without_its_file() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(LARGE)  # arrives like this if the receiver has no free descriptor
        with pytest.raises(ProtocolError, match="no descriptor is free"):
            receive(theirs)
