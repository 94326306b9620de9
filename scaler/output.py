"""Output that never blocks for long: data that a thread cannot write in time is dropped."""

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

MAX_PENDING_BYTES = 4 * 1024 * 1024  # maximum queue of a stream; above this, output is dropped until the queue is empty
STALLED_SECONDS = 0.2  # maximum time that `write` waits for a stalled reader
FLUSH_SECONDS = 1.0
STDOUT, STDERR = 1, 2
NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_READ_BYTES = 64 * 1024
PIECE_BYTES = 4096  # size of a write; small, so that a slow reader does not look stalled; fits into any writable pipe

WriteSome = Callable[[memoryview], int]  # returns the number of bytes written; raises OSError without a reader


class OutputStreams:
    """Stdout and stderr of this process. Thread-safe. After `close`, output is dropped."""

    def __init__(self, names: Mapping[int, str] = NAMES, *, as_text: bool = False) -> None:
        """names: stream names by descriptor. as_text: write to the current `sys.stdout` and `sys.stderr`."""
        self._streams = {
            descriptor: _Stream(name, _text_writer(name) if as_text else _writer(descriptor))
            for descriptor, name in names.items()
        }

    def write(self, descriptor: int, data: bytes) -> None:
        """Write to a stream; drop the data if its reader has stalled."""
        self._streams[descriptor].write(data)

    def flush(self) -> None:
        for stream in self._streams.values():
            stream.flush()

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


class _Stream:
    def __init__(self, name: str, write_some: WriteSome | None) -> None:
        self._write_some = write_some
        self._name = name
        self._changed = threading.Condition()
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0  # including the thread's current write
        self._dropped_lines = 0  # since the last notice; until the next one, new output is dropped
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
                # A daemon, so that a stalled reader does not keep the process from exiting.
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
                # The reader is gone (a closed pipe or terminal): components continue without output.
                with self._changed:
                    self._is_closed = True
                    self._pending.clear()
                    self._pending_bytes = self._dropped_lines = 0
                    self._changed.notify_all()

    def _next(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._dropped_lines or self._is_closed)
            if not self._pending and self._dropped_lines:
                text = f"scaler: output dropped: lines={self._dropped_lines} ({self._name} was not read)\n"
                self._add((text if self._ends_a_line else f"\n{text}").encode())
                self._dropped_lines = 0
            data = self._pending.popleft() if self._pending else b""
            self._ends_a_line = data.endswith(b"\n")
            return data

    def _put(self, data: bytes) -> bool:
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
    """Keeps a stalled reader of stdout or stderr from blocking this process and its children. The constructor redirects
    both streams into pipes. Inside the context, a thread forwards their output. At the end, the streams are restored.
    Streams to files are skipped. Does nothing if the process has a relay, or a Scaler parent that reads its output."""

    _exists = False
    leads_to_terminal = False  # a relay writes this process's output to a terminal

    def __init__(self) -> None:
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
            self._thread.join(2 * FLUSH_SECONDS)  # takes long only while a child process started here is still running

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
            except BlockingIOError:  # another process made the shared open file non-blocking
                _wait_until_writable(descriptor)

    return write_some


def _text_writer(name: str) -> WriteSome:
    """Return a writer of UTF-8 to the current stream of this name, without its lock. Never raises."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write_some(view: memoryview) -> int:
        text = decoder.decode(view[: PIECE_BYTES // 2])  # at most what a pipe accepts, even with a leftover character
        stream = getattr(sys, name)
        # The stream may be missing, closed, on a full disk, or of any class, as for print at exit.
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
    with contextlib.suppress(OSError):
        kind = os.fstat(descriptor).st_mode
        return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor)
    return False
