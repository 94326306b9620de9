"""Protocol between agent and processor: datagrams on three socket pairs, and a shared memory page.

Tasks have a separate socket, so that the agent can reclaim them. Specs, definitions, and storage addresses are
announced on another socket before the tasks that need them.

The agent writes tuples of a kind and values. A processor runs user code, so its datagrams are
untrusted: structs with checked lengths (ProtocolError). Results are rows of `RESULT` followed by all payloads, so that
a processor can send the page's bytes unchanged. All other datagrams are a `Note`.

The page shows the running task and contains unsent results, so that the agent can read results delayed by a long task
or left by a dead processor. Its words (u64, little endian): tasks begun, start of the last one (monotonic nanoseconds),
tasks finished, number of the current batch of results, rows in it. Rows and payloads of the batch follow. Only the
processor writes. Each word is written atomically, after the data that it announces.
"""

from __future__ import annotations

import array
import fcntl
import marshal
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from scaler.errors import ProtocolError

if TYPE_CHECKING:  # saves 7 MB in processors
    import asyncio

DATAGRAM_BYTES = 60 * 1024
"""Larger datagrams are sent as memory files, so a buffer of this size holds any datagram."""
MAX_FILE_BYTES = 1024 * 1024 * 1024
_ANCILLARY_BYTES = socket.CMSG_SPACE(2 * array.array("i").itemsize)
LARGE = b"\0"
"""Placeholder of a datagram sent as a memory file, whose descriptor is attached. Never sent alone."""
GRANT = b"G"
"""Agent to processor, on the result socket: grants the requested slot."""


class Descriptors(NamedTuple):
    """Inherited by a processor: three sockets, the status page, and a file for the text of its crash."""

    tasks: int
    definitions: int
    results: int
    page: int
    crash_text: int


class ToProcessor:
    """Kinds on the task socket (TASK, GPU_TASK) and the definition socket (the rest), with their values. Plain
    integers, which marshal handles fastest. Closing the task socket ends the processor."""

    TASK = 1
    """attempt, spec number, id, payload, inputs"""
    SPEC = 3
    """number; ids of function, serializer, and uploaded code (the last two may be empty); retry_on, name, profiling,
    stream_output; once: the task may not run twice, so earlier results are sent before it starts, and its own result
    immediately; packages imported by the function, with the client's versions; context of `Spec`"""
    DEFINITION = 4
    """id, payload"""
    FORGET = 5
    """function ids, spec numbers"""
    STORAGE = 6
    """addresses of the host's store and the object storage"""
    GPU_TASK = 7
    """Values of TASK, then CUDA_VISIBLE_DEVICES for the task."""


class ToAgent(IntEnum):
    RESULTS = 1
    READY = 2
    BLOCKED = 4
    UNBLOCKED = 5
    CHANNEL = 6
    """identifier: id of a nested client, whose socket is attached"""
    OUTPUT = 7
    """identifier: id of the task whose stdout and stderr pipes are attached"""
    PRINTED = 8
    """identifier: id of the task; text; is_stderr; truncated: bytes omitted before the text"""
    WORN = 9
    """The processor must be replaced after its tasks. text: reason"""
    WAITS = 10
    """text: what the running task waits for other than nested tasks; empty: the wait is over"""
    PROFILED = 11
    """identifier: id of a task; text: document of TasksProfiled"""
    PACKAGES_DIFFER = 12
    """identifier: id of a task; text: function name, then one difference per line"""
    LOGGED = 13
    """A log record outside tasks. text: level, logger, and message on separate lines"""


MARSHAL_VERSION = 2
"""The last version for which equal values yield equal bytes."""


def pack(*kind_and_values: Any) -> bytes:
    """Return a datagram for a processor."""
    return marshal.dumps(kind_and_values, MARSHAL_VERSION)


unpack: Callable[[bytes], tuple[Any, ...]] = marshal.loads
"""Parses the datagrams of `pack`. Needs no checks, since only the agent writes them."""


_NOTE = struct.Struct("<B?Q16s")


class Note(NamedTuple):
    """A processor's datagram other than results; see `ToAgent`."""

    kind: ToAgent
    text: bytes = b""
    identifier: bytes = b""
    is_stderr: bool = False
    truncated: int = 0


def pack_note(note: Note) -> bytes:
    return _NOTE.pack(note.kind, note.is_stderr, note.truncated, note.identifier) + note.text


def unpack_note(datagram: bytes) -> Note:
    """Parse a note; short identifiers are padded with zeros. Raises ProtocolError."""
    if len(datagram) < _NOTE.size:
        raise ProtocolError("a datagram is too short for its head")
    number, is_stderr, truncated, identifier = _NOTE.unpack_from(datagram)
    try:
        kind = ToAgent(number)
    except ValueError as error:
        raise ProtocolError(f"a datagram has an unknown kind: {error}") from None
    return Note(kind, datagram[_NOTE.size :], identifier, is_stderr, truncated)


def send(end: socket.socket, datagram: bytes, flags: int = 0) -> None:
    """Send a datagram of any size. Raises BlockingIOError if flags are non-blocking and the buffer is full."""
    if len(datagram) <= DATAGRAM_BYTES:
        end.send(datagram, flags)
        return
    with os.fdopen(os.memfd_create("scaler-datagram"), "wb") as file:
        file.write(datagram)
        file.flush()
        end.sendmsg([LARGE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))], flags)


def receive(end: socket.socket, flags: int = 0) -> tuple[bytes, list[int]]:
    """Return a datagram, empty at end of file, and its descriptors, now owned by the caller. Raises BlockingIOError
    if flags are non-blocking, and ProtocolError for an invalid memory file."""
    datagram, attached, _, _ = end.recvmsg(DATAGRAM_BYTES, _ANCILLARY_BYTES, flags)
    if not attached and datagram != LARGE:
        return datagram, []
    descriptors = array.array("i")
    for _, _, data in attached:
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if datagram != LARGE:
        return datagram, list(descriptors)
    if not descriptors:
        raise ProtocolError("a memory file did not arrive: no descriptor is free")
    try:
        return _read_file(descriptors[0]), []
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _read_file(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if not 0 < size <= MAX_FILE_BYTES:
        raise ProtocolError(f"a memory file of size {size} is not within 1..{MAX_FILE_BYTES}")
    try:
        # Not mapped: truncation by the sender would kill this process.
        return os.pread(descriptor, size, 0)
    except OSError as error:
        raise ProtocolError(f"a memory file of size {size} cannot be read: {error}") from error


class Sender:
    """Sending end of a socket to a processor. Queues datagrams while the socket's buffer is full."""

    def __init__(self, loop: asyncio.AbstractEventLoop, end: socket.socket) -> None:
        self._loop = loop
        self.end = end
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0

    def send(self, datagrams: Collection[bytes] = ()) -> None:
        """Send or queue datagrams. Without an argument, send queued datagrams once the socket is writable."""
        end, unsent, was_full = self.end, self.unsent, bool(self.unsent)
        unsent.extend(datagrams)
        self.unsent_bytes += sum(map(len, datagrams))
        if was_full and datagrams:
            return
        try:
            while unsent:
                if len(unsent[0]) <= DATAGRAM_BYTES:
                    end.send(unsent[0], socket.MSG_DONTWAIT)
                else:
                    send(end, unsent[0], socket.MSG_DONTWAIT)
                self.unsent_bytes -= len(unsent.popleft())
        except BlockingIOError:
            self._loop.add_writer(end, self.send)
            return
        except ConnectionError:
            pass  # the processor has exited, which will be reported
        if not datagrams:
            self._loop.remove_writer(end)

    def take_back(self) -> list[bytes]:
        taken, self.unsent, self.unsent_bytes = list(self.unsent), deque(), 0
        return taken

    def close(self) -> None:
        self._loop.remove_writer(self.end)
        self.end.close()


RESULT = struct.Struct("<16sHBBQQQQIQIII")
"""task id, attempt, outcome, 1 if profiled, wall and CPU microseconds, peak bytes, start (monotonic nanoseconds),
microseconds spent fetching stored inputs, bytes of these inputs, finished calls of a chunk (0: no chunk), failed
calls, payload length"""
RESULTS = struct.Struct("<BxHII")
"""kind, rows, batch number, total payload length"""

ResultRow = tuple[bytes, int, int, int, int, int, int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Results:
    """A batch of finished tasks, oldest first, with their concatenated payloads."""

    batch: int
    rows: list[ResultRow]
    payloads: memoryview


class Snapshot(NamedTuple):
    """Counts of tasks begun and finished. begun_at: start of the last task, in seconds of the monotonic clock."""

    begun: int
    begun_at: float
    finished: int


def pack_results(batch: int, rows: Sequence[ResultRow], payloads: Sequence[bytes | bytearray | memoryview]) -> bytes:
    head = RESULTS.pack(ToAgent.RESULTS, len(rows), batch, sum(map(len, payloads)))
    return b"".join((head, *(RESULT.pack(*row) for row in rows), *payloads))


def unpack_results(datagram: bytes | bytearray | memoryview) -> Results:
    """Parse a RESULTS datagram; payloads are a view. Raises ProtocolError."""
    view = memoryview(datagram)
    if len(view) < RESULTS.size:
        raise ProtocolError("a RESULTS datagram is too short for its head")
    _, count, batch, payload_bytes = RESULTS.unpack_from(view)
    rows_end = RESULTS.size + count * RESULT.size
    if len(view) != rows_end + payload_bytes:
        raise ProtocolError("the lengths of a RESULTS datagram do not add up")
    rows: list[ResultRow] = list(RESULT.iter_unpack(view[RESULTS.size : rows_end]))
    if sum([row[-1] for row in rows]) != payload_bytes:
        raise ProtocolError("the payload lengths of results do not add up")
    return Results(batch, rows, view[rows_end:])


def skip_rows(results: Results, count: int) -> Results:
    offset = sum(row[-1] for row in results.rows[:count])
    return Results(results.batch, results.rows[count:], results.payloads[offset:])


MAX_ROWS = 256
MAX_PAYLOAD_BYTES = 48 * 1024
_WORDS_BYTES = 64
_PAYLOADS_AT = _WORDS_BYTES + MAX_ROWS * RESULT.size
_PAGE_BYTES = _PAYLOADS_AT + MAX_PAYLOAD_BYTES

_BEGUN, _BEGUN_AT, _FINISHED, _BATCH, _ROWS = range(5)


def make_page() -> int:
    descriptor = os.memfd_create("scaler-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, _PAGE_BYTES)
    # User code has access to this page, and truncating it would crash the agent.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


class PageReader:
    def __init__(self, descriptor: int) -> None:
        self._view = memoryview(mmap.mmap(descriptor, _PAGE_BYTES, prot=mmap.PROT_READ))
        self._words = self._view[:_WORDS_BYTES].cast("Q")

    def snapshot(self) -> Snapshot:
        words = self._words
        return Snapshot(words[_BEGUN], words[_BEGUN_AT] / 1e9, words[_FINISHED])

    def unsent(self) -> Results | None:
        """Return a copy of unsent results; None if there are none or they are being sent. Raises ProtocolError."""
        words = self._words
        batch = words[_BATCH]
        rows = min(words[_ROWS], MAX_ROWS)
        if not rows:
            return None
        packed = bytes(self._view[_WORDS_BYTES : _WORDS_BYTES + rows * RESULT.size])
        payload_bytes = sum(row[-1] for row in RESULT.iter_unpack(packed))
        payloads = bytes(self._view[_PAYLOADS_AT : _PAYLOADS_AT + min(payload_bytes, MAX_PAYLOAD_BYTES)])
        if words[_BATCH] != batch or words[_ROWS] < rows:
            return None
        head = RESULTS.pack(ToAgent.RESULTS, rows, batch & 0xFFFFFFFF, len(payloads))
        return unpack_results(head + packed + payloads)


class PageWriter:
    """Collects results in the page and sends them. Belongs to a processor's main thread."""

    def __init__(self, descriptor: int, results: socket.socket) -> None:
        self._view = memoryview(mmap.mmap(descriptor, _PAGE_BYTES))
        self._words = self._view[:_WORDS_BYTES].cast("Q")
        self._socket = results
        self._begun = self._finished = self._rows = self._at = self._batch = 0
        self.oldest_ns = 0
        """Time at which the oldest unsent result was added; 0: none."""

    def begin(self, now_ns: int) -> None:
        self._words[_BEGUN_AT] = now_ns
        self._begun += 1
        self._words[_BEGUN] = self._begun

    def add(self, row: ResultRow, payload: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Add the result of the last task to the current batch. A result too large for the page is sent immediately."""
        end = self._at + len(payload)
        if self._rows == MAX_ROWS or end > MAX_PAYLOAD_BYTES:
            self.flush()
            end = len(payload)
        self._finished += 1
        words = self._words
        if end > MAX_PAYLOAD_BYTES:
            send(self._socket, pack_results(self._batch, [row], [payload]))
            self._batch = words[_BATCH] = (self._batch + 1) & 0xFFFFFFFF
        else:
            RESULT.pack_into(self._view, _WORDS_BYTES + self._rows * RESULT.size, *row)
            self._view[_PAYLOADS_AT + self._at : _PAYLOADS_AT + end] = payload
            self._at = end
            self._rows += 1
            words[_ROWS] = self._rows
            if not self.oldest_ns:
                self.oldest_ns = now_ns
        words[_FINISHED] = self._finished

    def flush(self) -> None:
        if self._rows:
            self._socket.sendmsg(
                [
                    RESULTS.pack(ToAgent.RESULTS, self._rows, self._batch, self._at),
                    self._view[_WORDS_BYTES : _WORDS_BYTES + self._rows * RESULT.size],
                    self._view[_PAYLOADS_AT : _PAYLOADS_AT + self._at],
                ]
            )
            self._words[_ROWS] = self._rows = self._at = self.oldest_ns = 0
            self._batch = self._words[_BATCH] = (self._batch + 1) & 0xFFFFFFFF
