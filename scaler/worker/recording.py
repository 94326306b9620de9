"""A task's stdout and stderr, kept in memory until the task has ended: for tasks whose results travel as one piece."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from types import TracebackType

from scaler.worker.capture import MAX_OUTPUT_BYTES, flush_streams

_PIECE_BYTES = 64 * 1024
_MORE = b"\n... more is left out ...\n"


class RecordedOutput:
    """While in this context, what the process writes to descriptors 1 and 2 is kept here, up to MAX_OUTPUT_BYTES each.

    The rest is read and dropped, so that the task never waits. What child processes write after the task is lost.
    """

    def __init__(self) -> None:
        self._texts = (bytearray(), bytearray())
        self._dropped = [False, False]
        self._kept: list[tuple[int, int]] = []

    @property
    def stdout(self) -> bytes:
        return self._text(0)

    @property
    def stderr(self) -> bytes:
        return self._text(1)

    def __enter__(self) -> RecordedOutput:
        flush_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        self._readers = tuple(reader for reader, _ in ends)
        self._wake_reader, self._wake = os.pipe2(os.O_CLOEXEC)
        for reader in self._readers:
            os.set_blocking(reader, False)
        self._thread = threading.Thread(target=self._read_all, name="recorded-output", daemon=True)
        self._thread.start()
        for descriptor, (_, writer) in zip((1, 2), ends, strict=True):
            self._kept.append((os.dup(descriptor), descriptor))
            os.dup2(writer, descriptor)
            os.close(writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        flush_streams()
        for kept, descriptor in self._kept:
            os.dup2(kept, descriptor)
            os.close(kept)
        os.close(self._wake)
        self._thread.join()
        for descriptor in (*self._readers, self._wake_reader):
            os.close(descriptor)

    def _read_all(self) -> None:
        """Read both pipes until they have ended, or the task has and they are empty."""
        poll = select.poll()
        for descriptor in (*self._readers, self._wake_reader):
            poll.register(descriptor, select.POLLIN)
        is_over = False
        open_readers = set(self._readers)
        while open_readers:
            events = poll.poll(0 if is_over else None)
            ready = [descriptor for descriptor, _ in events if descriptor != self._wake_reader]
            if is_over and not ready:
                return
            if not is_over and len(ready) < len(events):
                is_over = True
                poll.unregister(self._wake_reader)
            for descriptor in ready:
                if not self._read(descriptor):
                    poll.unregister(descriptor)
                    open_readers.discard(descriptor)

    def _read(self, descriptor: int) -> bool:
        """Read once. Returns False at the end of the pipe."""
        try:
            piece = os.read(descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return True
        index = self._readers.index(descriptor)
        room = MAX_OUTPUT_BYTES - len(self._texts[index])
        self._texts[index].extend(piece[:room])
        self._dropped[index] |= len(piece) > room
        return bool(piece)

    def _text(self, index: int) -> bytes:
        return bytes(self._texts[index]) + _MORE * self._dropped[index]
