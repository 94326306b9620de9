"""What tasks with `stream_output` write: read from their pipes as it comes, within limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial

from scaler.worker.capture import MAX_OUTPUT_BYTES

MAX_STREAMS = 256
"""Pipes that are read at the same time. A child process of a task may hold its pipe for long: the oldest are closed."""
PIECE_BYTES = 32 * 1024
_READS_PER_TURN = 16


class _Stream:
    __slots__ = ("is_stderr", "passed", "rest", "task")

    def __init__(self, task: bytes, is_stderr: bool) -> None:
        self.task = task
        self.is_stderr = is_stderr
        self.passed = 0
        self.rest = b""
        """The beginning of a character whose end has not been read yet."""


class Outputs:
    """The pipes of all tasks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_output: Callable[[bytes, bool, bytes], None]) -> None:
        """on_output: called with the task's id, whether it is stderr, and what was written."""
        self._loop = loop
        self._on_output = on_output
        self._streams: dict[int, _Stream] = {}

    def open(self, task: bytes, descriptors: tuple[int, ...]) -> None:
        """Take over the two pipes of a task: stdout, stderr."""
        for is_stderr, descriptor in enumerate(descriptors):
            if len(self._streams) >= MAX_STREAMS:
                self._close(next(iter(self._streams)))
            os.set_blocking(descriptor, False)
            self._streams[descriptor] = _Stream(task, bool(is_stderr))
            self._loop.add_reader(descriptor, partial(self._read, descriptor))

    def drain(self, task: bytes) -> None:
        """Read what a task that has ended left in its pipes."""
        for descriptor, stream in list(self._streams.items()):
            if stream.task == task:
                self._read(descriptor)

    @property
    def is_open(self) -> bool:
        return bool(self._streams)

    def close(self) -> None:
        for descriptor in list(self._streams):
            self._close(descriptor)

    def _read(self, descriptor: int) -> None:
        for _ in range(_READS_PER_TURN):
            stream = self._streams.get(descriptor)
            if stream is None:
                return
            try:
                piece = os.read(descriptor, PIECE_BYTES)
            except BlockingIOError:
                return
            if not piece:
                if stream.rest:
                    self._on_output(stream.task, stream.is_stderr, stream.rest)
                self._close(descriptor)
                return
            room = MAX_OUTPUT_BYTES - stream.passed
            if room >= 0:  # at 0 nothing was left out yet; below it that has been said
                stream.passed += len(piece)
                piece = stream.rest + piece
                end = whole_characters(piece)
                piece, stream.rest = piece[:end], piece[end:]
                text = piece[:room] if len(piece) <= room else piece[:room] + b"\n... more is left out ...\n"
                if text:
                    self._on_output(stream.task, stream.is_stderr, text)

    def _close(self, descriptor: int) -> None:
        del self._streams[descriptor]
        self._loop.remove_reader(descriptor)
        with contextlib.suppress(OSError):
            os.close(descriptor)


def whole_characters(text: bytes) -> int:
    """Return where a last UTF-8 character begins that is not complete, or else the length of the text."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0xC0:  # the first byte of a character, whose leading ones tell its length
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if length > back else len(text)
        if byte < 0x80:
            break
    return len(text)
