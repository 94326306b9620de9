"""Batches task output, truncates long batches to head and tail, and sends each batch before its task's result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from scaler.head_tail import HeadTailBuffer
from scaler.protocol.messages import Printed
from scaler.worker.agent.shell import Agent
from scaler.worker.frames import Note, ToAgent
from scaler.worker.processor.capture import HEAD_BYTES, TAIL_BYTES

GATHER_SECONDS = 0.1
"""Maximum delay (seconds) of printed output while its task runs."""
MESSAGE_BYTES = 256 * 1024


def send_prints(agent: Agent) -> None:
    prints = PrintBuffer(asyncio.get_running_loop(), agent.send_output, agent.before_results)
    agent.on_note[ToAgent.PRINTED] = lambda _number, note, _descriptors: prints.add(note)
    agent.on_close.append(prints.close)


class PrintBuffer:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Printed], None],
        before_results: list[Callable[[Sequence[bytes]], object]],
    ) -> None:
        """before_results: contains `flush` while there is output."""
        self._loop = loop
        self._send = send
        self._before_results = before_results
        self._gathered: dict[tuple[bytes, bool], HeadTailBuffer] = {}
        """Buffers by task and is_stderr."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, note: Note) -> None:
        stream = note.identifier, note.is_stderr
        if not self._gathered:
            self._before_results.append(self.flush)
        buffer = self._gathered.get(stream)
        if buffer is None:
            buffer = self._gathered[stream] = HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
        buffer.add(note.text, note.truncated)
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
        self._flush(list(self._gathered))

    def _flush(self, streams: Iterable[tuple[bytes, bool]]) -> None:
        has_output = bool(self._gathered)
        message, size = Printed([], [], [], []), 0
        for task, is_stderr in [stream for stream in streams if stream in self._gathered]:
            for truncated, text in self._gathered.pop((task, is_stderr)).segments():
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
        if has_output and not self._gathered:
            self._before_results.remove(self.flush)
