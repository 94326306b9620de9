"""Forwards the output of tasks with `stream_output` from their pipes to the scheduler."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from scaler.protocol.messages import Output
from scaler.worker.processor.capture import MAX_OUTPUT_BYTES, OMITTED_TEXT

MAX_PIPES = 256
"""Maximum number of open pipes. Child processes may hold pipes open for a long time, so the oldest are closed."""
CHUNK_BYTES = 32 * 1024
_READS_PER_WAKEUP = 16


@dataclass(slots=True)
class _Pipe:
    task: bytes
    is_stderr: bool
    passed: int = 0


class OutputPipes:
    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[Output], None]) -> None:
        self._loop = loop
        self._send = send
        self.pipes: dict[int, _Pipe] = {}

    def open(self, task: bytes, descriptors: tuple[int, ...]) -> None:
        """Take ownership of a task's stdout and stderr pipes."""
        for is_stderr, descriptor in enumerate(descriptors):
            if len(self.pipes) >= MAX_PIPES:
                self._close(next(iter(self.pipes)))
            os.set_blocking(descriptor, False)
            self.pipes[descriptor] = _Pipe(task, bool(is_stderr))
            self._loop.add_reader(descriptor, self._read, descriptor)

    def drain(self, task: bytes) -> None:
        for descriptor, pipe in list(self.pipes.items()):
            if pipe.task == task:
                self._read(descriptor)

    def close(self) -> None:
        for descriptor in list(self.pipes):
            self._close(descriptor)

    def _read(self, descriptor: int) -> None:
        pipe = self.pipes[descriptor]
        for _ in range(_READS_PER_WAKEUP):
            try:
                text = os.read(descriptor, CHUNK_BYTES)
            except BlockingIOError:
                return
            if not text:
                self._close(descriptor)
                return
            left = MAX_OUTPUT_BYTES - pipe.passed
            if left >= 0:  # at 0, nothing has been omitted yet; below 0, the mark has been sent
                pipe.passed += len(text)
                text = text if len(text) <= left else text[:left] + OMITTED_TEXT
                self._send(Output(pipe.task, pipe.is_stderr, text))

    def _close(self, descriptor: int) -> None:
        del self.pipes[descriptor]
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
