"""How agent and processor write to each other: datagrams on three socket pairs. Pure.

Tasks come on a socket of their own, because the agent may take them back. What they refer to (specs, definitions, the
storage's address) is announced before, on another one: a processor reads there until it knows the spec of its task.

What the agent writes is a tuple of a kind and its values. A processor runs user code, so what it writes is not trusted:
it writes structs whose lengths are checked, with ProtocolError if one is wrong. Results are rows of `RESULT` followed
by all their payloads, so that a processor can write them straight into the page that it shares with its agent
(`page.py`) and send that page's bytes as they are. All else is a `Note`.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from scaler.errors import ProtocolError
from scaler.serialization import Buffer

LARGE = b"\0"
"""Stands for a datagram that is a memory file, whose descriptor is attached. No other datagram is equal to it."""
GRANT = b"G"
"""Agent to processor, on the result socket: the slot that it asked for is its own again."""


class Descriptors(NamedTuple):
    """What a processor starts with: three sockets, the status page, and a file for the interpreter's crash text."""

    tasks: int
    definitions: int
    results: int
    page: int
    crash_text: int


class ToProcessor:
    """Kinds on the task socket (TASK, END) and on the definition socket (all others), with the values behind them.

    Plain numbers, which marshal writes and reads fastest.
    """

    TASK = 1
    """attempt, number of the spec, id, payload, inputs"""
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


class ToAgent(IntEnum):
    """Kinds on the result socket."""

    RESULTS = 1
    READY = 2
    FAILED = 3
    """text: why"""
    BLOCKED = 4
    UNBLOCKED = 5
    CHANNEL = 6
    """identifier: of a nested client, whose socket is attached"""
    OUTPUT = 7
    """identifier: of the task whose stdout and stderr can be read from the attached pipes"""
    PRINTED = 8
    """identifier: of the task that printed; text, whether to stderr, and bytes that are missing before it"""


def pack(*kind_and_values: Any) -> bytes:
    """Return a datagram for a processor. Equal values give equal bytes: marshal does so up to version 2."""
    return marshal.dumps(kind_and_values, 2)


unpack: Callable[[bytes], tuple[Any, ...]] = marshal.loads
"""Returns kind and values of such a datagram. The agent makes them, so they need no checks."""


_NOTE = struct.Struct("<B?Q16s")


class Note(NamedTuple):
    """A datagram of a processor that holds no results: see `ToAgent`."""

    kind: ToAgent
    text: bytes = b""
    identifier: bytes = b""
    is_stderr: bool = False
    truncated: int = 0


def pack_note(note: Note) -> bytes:
    return _NOTE.pack(note.kind, note.is_stderr, note.truncated, note.identifier) + note.text


def unpack_note(datagram: bytes) -> Note:
    """Raises ProtocolError. A short identifier comes back with zeros behind it."""
    if len(datagram) < _NOTE.size:
        raise ProtocolError("a datagram is too short for its head")
    number, is_stderr, truncated, identifier = _NOTE.unpack_from(datagram)
    try:
        kind = ToAgent(number)
    except ValueError as error:
        raise ProtocolError(f"a datagram has an unknown kind: {error}") from None
    return Note(kind, datagram[_NOTE.size :], identifier, is_stderr, truncated)


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


def pack_results(batch: int, rows: Sequence[ResultRow], payloads: Sequence[Buffer]) -> bytes:
    head = RESULTS.pack(ToAgent.RESULTS, len(rows), batch, sum(map(len, payloads)))
    return b"".join((head, *(RESULT.pack(*row) for row in rows), *payloads))


def unpack_results(datagram: Buffer) -> Results:
    """Return what a RESULTS datagram holds; the payloads are a view into it. Raises ProtocolError."""
    view = memoryview(datagram)
    if len(view) < RESULTS.size:
        raise ProtocolError("a RESULTS datagram is too short for its head")
    _, count, batch, payload_bytes = RESULTS.unpack_from(view)
    rows_end = RESULTS.size + count * RESULT.size
    if len(view) != rows_end + payload_bytes:
        raise ProtocolError("the lengths of a RESULTS datagram do not add up")
    rows: list[ResultRow] = list(RESULT.iter_unpack(view[RESULTS.size : rows_end]))
    if sum(row[7] for row in rows) != payload_bytes:
        raise ProtocolError("the payload lengths of results do not add up")
    return Results(batch, rows, view[rows_end:])


def skip_rows(results: Results, count: int) -> Results:
    """Return the batch without its first rows and their payloads."""
    offset = sum(row[7] for row in results.rows[:count])
    return Results(results.batch, results.rows[count:], results.payloads[offset:])
