"""What agent and processor write to each other, and nonsense from a processor."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import ProtocolError
from scaler.worker.agent.pool import PooledProcessor
from scaler.worker.frames import (
    LARGE_DATAGRAM_BYTES,
    TASK,
    BodyReader,
    ResultRow,
    Results,
    ToProcessor,
    pack_announcement,
    pack_body_head,
    pack_results,
    pack_task,
    skip_rows,
    unpack_announcement,
    unpack_inputs,
    unpack_results,
)
from scaler.worker.page import (
    ANCILLARY_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_ROWS,
    PageReader,
    PageWriter,
    descriptors_of,
    make_page,
    read_file,
)

TASK_ID = b"t" * 16


def row(payload: bytes, task: bytes = TASK_ID) -> ResultRow:
    return (task, 1, 0, 0, 17, 0, 0, len(payload))


@given(st.binary(max_size=100), st.lists(st.binary(max_size=50), max_size=5))
def test_a_task_comes_out_as_it_went_in(payload: bytes, inputs: list[bytes]) -> None:
    datagram = pack_task(7, TASK_ID, 3, payload, inputs)
    _, attempt, spec, task, length, count = TASK.unpack_from(datagram)
    assert (attempt, spec, task) == (3, 7, TASK_ID)
    assert datagram[TASK.size : TASK.size + length] == payload
    assert [bytes(each) for each in unpack_inputs(datagram, TASK.size + length, count)] == inputs


@given(st.binary(max_size=40), st.text(max_size=20))
def test_an_announcement_comes_out_as_it_went_in(retry_on: bytes, name: str) -> None:
    spec = (9, b"f" * 16, b"", retry_on, name, True, False, True)
    datagram = pack_announcement(ToProcessor.SPEC, *spec)
    assert datagram[0] == ToProcessor.SPEC
    assert unpack_announcement(datagram) == spec
    forgotten = [b"a" * 16, b"b" * 16], [1, 70_000]
    assert unpack_announcement(pack_announcement(ToProcessor.FORGET, *forgotten)) == forgotten


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_results_come_out_as_they_went_in(payloads: list[bytes]) -> None:
    rows = [row(payload) for payload in payloads]
    results = unpack_results(pack_results(5, rows, payloads))
    assert (results.batch, results.rows, bytes(results.payloads)) == (5, rows, b"".join(payloads))


@given(st.binary(max_size=300))
def test_nonsense_is_an_error_and_nothing_else(datagram: bytes) -> None:
    try:
        unpack_results(datagram)
    except ProtocolError:
        return


@given(st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_a_broken_result_datagram_is_an_error_or_whole(place: int, change: bytes) -> None:
    datagram = bytearray(pack_results(1, [row(b"abc"), row(b"")], [b"abc", b""]))
    place %= len(datagram)
    datagram[place : place + len(change)] = change
    try:
        results = unpack_results(datagram)
    except ProtocolError:
        return
    assert sum(each[7] for each in results.rows) == len(results.payloads)


@given(st.lists(st.binary(max_size=100), max_size=10), st.integers(1, 50))
def test_bodies_come_out_of_a_stream_however_it_is_cut(bodies: list[bytes], step: int) -> None:
    stream = b"".join(pack_body_head(len(body)) + body for body in bodies)
    reader = BodyReader(1000)
    found = [body for at in range(0, len(stream), step) for body in reader.feed(stream[at : at + step])]
    assert found == bodies


def test_a_body_above_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="limit"):
        list(BodyReader(1000).feed(pack_body_head(1001)))


@pytest.fixture
def page() -> Iterator[tuple[PageWriter, PageReader, socket.socket]]:
    descriptor = make_page()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield PageWriter(descriptor, theirs), PageReader(descriptor), ours
    os.close(descriptor)


def received(end: socket.socket) -> Results:
    datagram, attached, _, _ = end.recvmsg(LARGE_DATAGRAM_BYTES, ANCILLARY_BYTES, socket.MSG_DONTWAIT)
    return unpack_results(read_file(datagram, descriptors_of(attached)) if attached else datagram)


def test_the_page_shows_what_runs_and_what_is_not_sent(page: tuple[PageWriter, PageReader, socket.socket]) -> None:
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


def test_what_does_not_fit_the_page_is_sent(page: tuple[PageWriter, PageReader, socket.socket]) -> None:
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


def test_results_read_from_the_page_are_not_taken_again_when_they_are_sent() -> None:
    processor = PooledProcessor(1, 0.0)
    rows = [row(b"", bytes([n]) * 16) for n in range(4)]
    early = processor.new_rows(Results(0, rows[:2], memoryview(b"")), sent=False)
    more = processor.new_rows(Results(0, rows[:3], memoryview(b"")), sent=False)
    whole = processor.new_rows(Results(0, rows, memoryview(b"")), sent=True)
    again = processor.new_rows(Results(0, rows, memoryview(b"")), sent=False)
    following = processor.new_rows(Results(1, rows[:1], memoryview(b"")), sent=False)
    found = [each.rows for each in (early, more, whole, again, following)]
    assert found == [rows[:2], rows[2:3], rows[3:], [], rows[:1]]


def test_skipping_rows_skips_their_payloads() -> None:
    results = unpack_results(pack_results(0, [row(b"ab"), row(b"c")], [b"ab", b"c"]))
    assert bytes(skip_rows(results, 1).payloads) == b"c"
