"""Forwards task output to the scheduler. `OutputPipes` reads the pipes of tasks with `stream_output`. `PrintBuffer`
batches all other output, keeping head and tail of a long batch, and flushes it before the task's result."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scaler.head_tail import HeadTailBuffer
from scaler.protocol.messages import Output, Printed
from scaler.worker.processor.capture import HEAD_BYTES, MAX_OUTPUT_BYTES, OMITTED_TEXT, TAIL_BYTES

MAX_PIPES = 256
"""Maximum number of open pipes. Child processes may hold pipes open for long, so the oldest are closed."""
CHUNK_BYTES = 32 * 1024
GATHER_SECONDS = 0.1
"""Maximum seconds that printed output waits while its task runs."""
MESSAGE_BYTES = 256 * 1024
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


class PrintBuffer:
    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[Printed], None]) -> None:
        self._loop = loop
        self._send = send
        self.gathered: dict[tuple[bytes, bool], HeadTailBuffer] = {}
        """By task and is_stderr."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, task: bytes, is_stderr: bool, truncated: int, text: bytes) -> None:
        """Add printed text. truncated: bytes omitted before it."""
        buffer = self.gathered.get((task, is_stderr))
        if buffer is None:
            buffer = self.gathered[task, is_stderr] = HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
        buffer.add(text, truncated)
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._on_timer)

    def flush(self, tasks: Iterable[bytes]) -> None:
        self._flush((task, is_stderr) for task in tasks for is_stderr in (False, True))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._on_timer()

    def _on_timer(self) -> None:
        self._timer = None
        self._flush(list(self.gathered))

    def _flush(self, streams: Iterable[tuple[bytes, bool]]) -> None:
        message, size = Printed([], [], [], []), 0
        for task, is_stderr in [stream for stream in streams if stream in self.gathered]:
            for truncated, text in self.gathered.pop((task, is_stderr)).segments():
                message.ids.append(task)
                message.are_stderr.append(is_stderr)
                message.truncated_bytes.append(truncated)
                message.texts.append(text)
                size += len(text)
            if size >= MESSAGE_BYTES:
                self._send(message)
                message, size = Printed([], [], [], []), 0
        if message.ids:
            self._send(message)
