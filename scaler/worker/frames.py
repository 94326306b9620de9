"""How agent and processor write to each other: datagrams on three socket pairs. Pure.

Tasks come on a socket of their own, because the agent may take them back. What they refer to (specs, definitions, the
storage's address) is announced before, on another one: a processor reads there until it knows the spec of its task.

A datagram begins with its kind. One larger than `LARGE_DATAGRAM_BYTES` travels as a memory file whose descriptor is
attached to a LARGE datagram. Results are rows of `RESULT` followed by all their payloads, so that a processor can
write them straight into the page that it shares with its agent (see `page.py`) and send that page's bytes as they are.

A processor runs user code, so what it sends is not trusted: every length is checked, with ProtocolError if it is wrong.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from scaler.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

LARGE_DATAGRAM_BYTES = 60 * 1024
"""Larger ones go as a memory file, so a reader's buffer of this size holds any datagram."""
MAX_FRAME_BYTES = 1024 * 1024 * 1024
"""Largest memory file that a reader maps."""
MAX_ATTACHED_FDS = 2


class Descriptors(NamedTuple):
    """What a processor starts with: three sockets, the status page, and a file for the interpreter's crash text."""

    tasks: int
    definitions: int
    results: int
    page: int
    crash_text: int


class ToProcessor(IntEnum):
    """Kinds on the task socket (TASK, END), on the definition socket (all others), and on both (LARGE)."""

    TASK = 1
    END = 2
    SPEC = 3
    """number, function's id, serializer's id (may be empty), retry_on, name, profiling, stream_output, once: the task
    may not run twice, so results must be on their way before it starts, and its own at once."""
    DEFINITION = 4
    """id, payload"""
    FORGET = 5
    """ids of functions, numbers of specs"""
    STORAGE = 6
    """address"""
    LARGE = 7


class ToAgent(IntEnum):
    """Kinds on the result socket."""

    RESULTS = 1
    READY = 2
    FAILED = 3
    BLOCKED = 4
    UNBLOCKED = 5
    CHANNEL = 6
    OUTPUT = 7
    LARGE = 8
    PRINTED = 9


GRANT = b"G"
"""Agent to processor, on the result socket: the slot that it asked for is its own again."""

TASK = struct.Struct("<BxHI16sII")
"""kind, attempt, spec number, task id, payload length, number of inputs; then payload, input lengths, inputs."""
_LARGE = struct.Struct("<BQ")
_PRINTED = struct.Struct("<B?Q16s")
"""kind, whether to stderr, bytes that are missing before the text, task id; then the text."""

RESULT = struct.Struct("<16sHBBIQQI")
"""task id, attempt, outcome, 1 if profiled, wall microseconds, CPU microseconds, peak bytes, payload length."""
RESULTS = struct.Struct("<BxHII")
"""kind, rows, batch number, length of all payloads."""

ResultRow = tuple[bytes, int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Results:
    """A batch of finished tasks, oldest first, and where their payloads lie, one behind the other."""

    batch: int
    rows: list[ResultRow]
    payloads: memoryview


class Snapshot(NamedTuple):
    """What a processor has done since it started: tasks begun and finished, and when the last one began, in seconds of
    the monotonic clock."""

    begun: int
    begun_at: float
    finished: int


# -- agent to processor --------------------------------------------------------------------------------------------


def pack_task(spec: int, task: bytes, attempt: int, payload: bytes, inputs: Sequence[bytes]) -> bytes:
    head = TASK.pack(ToProcessor.TASK, attempt, spec, task, len(payload), len(inputs))
    if not inputs:
        return head + payload
    lengths = struct.pack(f"<{len(inputs)}I", *map(len, inputs))
    return b"".join((head, payload, lengths, *inputs))


def unpack_inputs(datagram: Buffer, offset: int, count: int) -> list[memoryview]:
    """Return the inputs of a TASK datagram as views; offset is where their lengths begin."""
    view = memoryview(datagram)
    lengths = struct.unpack_from(f"<{count}I", view, offset)
    offset += 4 * count
    inputs = []
    for length in lengths:
        inputs.append(view[offset : offset + length])
        offset += length
    return inputs


def pack_announcement(kind: ToProcessor, *values: Any) -> bytes:
    """Return a datagram of the definition socket. Equal values give equal bytes: marshal does so up to version 2."""
    return bytes((kind,)) + marshal.dumps(values, 2)


def unpack_announcement(datagram: bytes) -> tuple[Any, ...]:
    """Return the values of such a datagram. The agent makes them, so they need no checks."""
    values: tuple[Any, ...] = marshal.loads(memoryview(datagram)[1:])  # noqa: S302 (as above)
    return values


def pack_large(kind: int, size_bytes: int) -> bytes:
    """Return the datagram that announces an attached memory file; kind is the LARGE of either direction."""
    return _LARGE.pack(kind, size_bytes)


def unpack_large(datagram: Buffer) -> int:
    """Return the size of the attached memory file. Raises ProtocolError when it makes no sense."""
    if len(datagram) != _LARGE.size:
        raise ProtocolError("a LARGE datagram has the wrong length")
    size = int(_LARGE.unpack_from(datagram)[1])
    if not 0 < size <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a memory file of {size} bytes is not within 1..{MAX_FRAME_BYTES}")
    return size


# -- processor to agent --------------------------------------------------------------------------------------------


def unpack_results(datagram: Buffer) -> Results:
    """Read a RESULTS datagram; the payloads are a view into it. Raises ProtocolError."""
    view = memoryview(datagram)
    if len(view) < RESULTS.size:
        raise ProtocolError("a RESULTS datagram is too short for its head")
    _, count, batch, payload_bytes = RESULTS.unpack_from(view)
    rows_end = RESULTS.size + count * RESULT.size
    if len(view) != rows_end + payload_bytes:
        raise ProtocolError("the lengths of a RESULTS datagram do not add up")
    return results_of(batch, view[RESULTS.size : rows_end], view[rows_end:])


def results_of(batch: int, rows: memoryview, payloads: memoryview) -> Results:
    """Read packed rows and check them against their payloads' length. Raises ProtocolError."""
    unpacked: list[ResultRow] = list(RESULT.iter_unpack(rows))
    if sum(row[7] for row in unpacked) != len(payloads):
        raise ProtocolError("the payload lengths of results do not add up")
    return Results(batch, unpacked, payloads)


def pack_results(batch: int, rows: Sequence[ResultRow], payloads: Sequence[Buffer]) -> bytes:
    """Return a RESULTS datagram as one piece of bytes."""
    size = sum(map(len, payloads))
    head = RESULTS.pack(ToAgent.RESULTS, len(rows), batch, size)
    return b"".join((head, *(RESULT.pack(*row) for row in rows), *payloads))


def skip_rows(results: Results, count: int) -> Results:
    """Return the batch without its first rows and their payloads."""
    offset = sum(row[7] for row in results.rows[:count])
    return Results(results.batch, results.rows[count:], results.payloads[offset:])


def pack_id(kind: ToAgent, identifier: bytes) -> bytes:
    """Return a datagram that names what its attached descriptors are for: a nested client or a task."""
    return bytes((kind,)) + identifier


def unpack_id(datagram: Buffer, size_bytes: int) -> bytes:
    """Return the id in such a datagram. Raises ProtocolError."""
    if len(datagram) != 1 + size_bytes:
        raise ProtocolError(f"a datagram of kind {datagram[0]} has the wrong length")
    return bytes(datagram[1:])


def pack_printed(task: bytes, is_stderr: bool, truncated: int, text: bytes) -> bytes:
    return _PRINTED.pack(ToAgent.PRINTED, is_stderr, truncated, task) + text


def unpack_printed(datagram: bytes) -> tuple[bytes, bool, int, bytes]:
    """Return the id of the task that printed, whether to stderr, how much is missing before it, and what it printed.

    Raises ProtocolError.
    """
    if len(datagram) < _PRINTED.size:
        raise ProtocolError("a PRINTED datagram is too short")
    _, is_stderr, truncated, task = _PRINTED.unpack_from(datagram)
    return task, is_stderr, truncated, datagram[_PRINTED.size :]


# -- nested channels: a stream of bodies ---------------------------------------------------------------------------

_BODY = struct.Struct("<I")


def pack_body_head(size_bytes: int) -> bytes:
    """Return what precedes a body of this size on a nested channel."""
    return _BODY.pack(size_bytes)


class BodyReader:
    """Cuts a stream into bodies, each behind its length (u32, little endian)."""

    def __init__(self, limit_bytes: int) -> None:
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """Yield the bodies that are whole now. Raises ProtocolError when one would be above the limit."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _BODY.size:
            (size,) = _BODY.unpack_from(buffer, at)
            if size > self._limit_bytes:
                raise ProtocolError(f"a message of {size} bytes is above the limit of {self._limit_bytes}")
            end = at + _BODY.size + size
            if len(buffer) < end:
                break
            yield bytes(memoryview(buffer)[at + _BODY.size : end])
            at = end
        if at:
            del buffer[:at]
