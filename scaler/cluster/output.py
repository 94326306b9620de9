"""Output of this process that never waits long for its reader: a pager, a stopped terminal, a full disk.

A thread per stream writes. What it cannot write in time is dropped, and one line says how much that was.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Mapping

MAX_PENDING_BYTES = 4 * 1024 * 1024
"""What waits for the reader of a stream; more is dropped, until all of it is written."""
STALLED_SECONDS = 0.2
"""How long a caller of `write` waits for the reader of a full stream, once, until that takes something again."""
FLUSH_SECONDS = 1.0
"""How long `close` waits for each reader."""
STDOUT, STDERR = 1, 2
NAMES = {STDOUT: "stdout", STDERR: "stderr"}


class OutputStreams:
    """Stdout and stderr of this process, for any thread. After `close`, nothing is written."""

    def __init__(self, names: Mapping[int, str] = NAMES) -> None:
        """names: of the streams, by descriptor."""
        self._streams = {descriptor: _Stream(descriptor, name) for descriptor, name in names.items()}

    def write(self, descriptor: int, data: bytes) -> None:
        """Write to a stream, or drop the data when the stream's reader has stalled."""
        self._streams[descriptor].write(data)

    def close(self) -> None:
        """Write what waits, for FLUSH_SECONDS at most for each stream. Again: does nothing."""
        for stream in self._streams.values():
            stream.close()


class _Stream:
    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._changed = threading.Condition()
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        """With what the thread is writing."""
        self._dropped_lines = 0
        """Since the last line about it. While there are any, nothing new is taken."""
        self._ends_a_line = True
        self._is_stalled = False
        self._is_closed = False
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
        """Return what to write next; nothing at the end."""
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
        """Write all of it, however long that takes. Return False when there is no reader."""
        view = memoryview(data)
        while view:
            try:
                # Small pieces, so that a slow reader does not look like one that has stalled.
                count = os.write(self._descriptor, view[: select.PIPE_BUF])
            except BlockingIOError:  # another process has made the open file of both non-blocking
                waiting = select.poll()
                waiting.register(self._descriptor, select.POLLOUT)
                waiting.poll()
                continue
            except OSError:
                return False
            view = view[count:]
            with self._changed:
                self._pending_bytes -= count
                self._is_stalled = False
                self._changed.notify_all()
        return True
