"""Output that never waits long for its reader: what a thread cannot write in time is dropped."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping

from scaler.processes import PARENT_PID_VARIABLE

MAX_PENDING_BYTES = 4 * 1024 * 1024  # Output waiting for a stream's reader. More is dropped until all of it is written.
STALLED_SECONDS = 0.2  # one wait of a caller of `write` for the reader of a full stream, until that reads again
FLUSH_SECONDS = 1.0
STDOUT, STDERR = 1, 2
NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_READ_BYTES = 64 * 1024
PIECE_BYTES = 4096  # Per write, so that a slow reader does not look stalled. A pipe that polls as writable takes it.

WriteSome = Callable[[memoryview], int]  # Returns how many bytes it wrote. Raises OSError without a reader.


class OutputStreams:
    """Stdout and stderr of this process, for any thread. After `close`, nothing is written."""

    def __init__(self, names: Mapping[int, str] = NAMES, *, as_text: bool = False) -> None:
        """names: of the streams by descriptor. as_text: write to the current `sys.stdout` and `sys.stderr`."""
        self._streams = {
            descriptor: _Stream(name, _text_writer(name) if as_text else _writer(descriptor))
            for descriptor, name in names.items()
        }

    def write(self, descriptor: int, data: bytes) -> None:
        """Write to a stream; drop the data if its reader has stalled."""
        self._streams[descriptor].write(data)

    def flush(self) -> None:
        """Wait until everything is written, unless a reader has stalled."""
        for stream in self._streams.values():
            stream.flush()

    def close(self) -> None:
        """Write what waits, up to FLUSH_SECONDS per stream. Idempotent."""
        for stream in self._streams.values():
            stream.close()


class _Stream:
    def __init__(self, name: str, write_some: WriteSome | None) -> None:
        """write_some: None for a closed stream."""
        self._write_some = write_some
        self._name = name
        self._changed = threading.Condition()
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0  # including what the thread is writing
        self._dropped_lines = 0  # Since the last line about it. Until the next, nothing new is taken.
        self._ends_a_line = True
        self._is_stalled = False
        self._is_closed = write_some is None
        self._thread: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        with self._changed:
            if not self._has_room() and not self._is_stalled:
                self._is_stalled = not self._changed.wait_for(self._has_room, STALLED_SECONDS)
            if self._is_closed:
                return
            if not self._has_room():
                self._dropped_lines += data.count(b"\n") or 1
                return
            self._add(data)
            if self._thread is None:
                # A daemon: a reader that never comes back does not keep the process from ending.
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            if self._pending_bytes and not self._is_stalled:
                self._is_stalled = not self._changed.wait_for(lambda: not self._pending_bytes, STALLED_SECONDS)

    def close(self) -> None:
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
            self._changed.notify_all()
        if self._thread is not None and not was_closed:
            self._thread.join(FLUSH_SECONDS)

    def _has_room(self) -> bool:
        return self._pending_bytes < MAX_PENDING_BYTES and not self._dropped_lines

    def _add(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)

    def _run(self) -> None:
        while data := self._next():
            if not self._put(data):
                # There is no reader any more (a closed pipe or terminal): the components go on without one.
                with self._changed:
                    self._is_closed = True
                    self._pending.clear()
                    self._pending_bytes = self._dropped_lines = 0
                    self._changed.notify_all()

    def _next(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._dropped_lines or self._is_closed)
            if not self._pending and self._dropped_lines:
                text = f"scaler: output was dropped: lines={self._dropped_lines} ({self._name} was not read)\n"
                self._add((text if self._ends_a_line else f"\n{text}").encode())
                self._dropped_lines = 0
            data = self._pending.popleft() if self._pending else b""
            self._ends_a_line = data.endswith(b"\n")
            return data

    def _put(self, data: bytes) -> bool:
        """Write everything, however long that takes. Returns False without a reader."""
        assert self._write_some is not None
        view = memoryview(data)
        while view:
            try:
                count = self._write_some(view)
            except OSError:
                return False
            view = view[count:]
            with self._changed:
                self._pending_bytes -= count
                self._is_stalled = False
                self._changed.notify_all()
        return True


class OutputRelay:
    """Keeps a stalled reader of stdout or stderr from blocking this process and its children.

    From the constructor on, both streams lead into pipes; in the context, a thread forwards what they get. After the
    context, the streams are what they were. It skips streams to files, and does nothing in a process with a relay, or
    with a parent of Scaler, which reads or relays its output.
    """

    _exists = False
    leads_to_terminal = False  # True while a relay writes this process's output to a terminal

    def __init__(self) -> None:
        """Make the pipes for this process and its children. Starts no thread yet."""
        self._originals: dict[int, int] = {}
        self._readers: dict[int, int] = {}
        is_needed = PARENT_PID_VARIABLE not in os.environ and not OutputRelay._exists
        for descriptor in NAMES:
            if is_needed and _may_stall(descriptor):
                OutputRelay._exists = True
                OutputRelay.leads_to_terminal |= descriptor == STDOUT and os.isatty(descriptor)
                original = self._originals[descriptor] = os.dup(descriptor)
                reader, writer = os.pipe()
                self._readers[reader] = original
                os.dup2(writer, descriptor)
                os.close(writer)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._readers:
            self._thread = threading.Thread(target=self._run, name="output relay", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        for descriptor, original in self._originals.items():
            os.dup2(original, descriptor)
            OutputRelay._exists = OutputRelay.leads_to_terminal = False
        if self._thread is not None:
            self._thread.join(2 * FLUSH_SECONDS)  # longer only while a process that was started here lives on

    def _run(self) -> None:
        output = OutputStreams({original: NAMES[stream] for stream, original in self._originals.items()})
        waiting = select.poll()
        for reader in self._readers:
            waiting.register(reader, select.POLLIN)
        while self._readers:
            for reader, _ in waiting.poll():
                data = os.read(reader, _READ_BYTES)
                if data:
                    output.write(self._readers[reader], data)
                else:
                    waiting.unregister(reader)
                    del self._readers[reader]
                    os.close(reader)
        output.close()


def _writer(descriptor: int) -> WriteSome | None:
    try:
        os.fstat(descriptor)
    except OSError:
        return None

    def write_some(view: memoryview) -> int:
        while True:
            try:
                return os.write(descriptor, view[:PIECE_BYTES])
            except BlockingIOError:  # another process has made the open file of both non-blocking
                _wait_until_writable(descriptor)

    return write_some


def _text_writer(name: str) -> WriteSome:
    """Return what writes UTF-8 to the current stream of this name without its lock. Raises nothing."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write_some(view: memoryview) -> int:
        text = decoder.decode(view[: PIECE_BYTES // 2])  # less than a pipe takes, with a character of the piece before
        stream = getattr(sys, name)
        # Not there, closed, on a full disk, or of any class: as print at the end of a program.
        with contextlib.suppress(Exception):
            with contextlib.suppress(OSError, AttributeError):
                _wait_until_writable(stream.fileno())
            stream.write(text)
            stream.flush()
        return min(len(view), PIECE_BYTES // 2)

    return write_some


def _wait_until_writable(descriptor: int) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    waiting.poll()


def _may_stall(descriptor: int) -> bool:
    """Return whether writing may block: to a pipe, a socket, a terminal. False for a closed one."""
    with contextlib.suppress(OSError):
        kind = os.fstat(descriptor).st_mode
        return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor)
    return False
