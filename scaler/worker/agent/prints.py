"""What tasks print without `stream_output`: gathered for a moment, so that many lines travel as one message.

It is on its way before the results of the same tasks are. Of what a task prints within a moment the beginning and the
end are passed on, so that a task that prints without end costs its cluster no more than one that prints much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from scaler.head_tail import HeadTailBuffer
from scaler.protocol.messages import Printed
from scaler.worker.printing import HEAD_BYTES, TAIL_BYTES

GATHER_SECONDS = 0.1
"""What a task prints waits at most so long, or until it has ended."""
MESSAGE_BYTES = 256 * 1024


class Prints:
    """What was printed and not passed on yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, say: Callable[[Printed], None]) -> None:
        self._loop = loop
        self._say = say
        self._gathered: dict[bytes, tuple[HeadTailBuffer, HeadTailBuffer]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """True when there is something to pass on."""
        return bool(self._gathered)

    def add(self, task: bytes, is_stderr: bool, lost: int, text: bytes) -> None:
        """Take in what a task printed. lost: bytes that are missing before it."""
        streams = self._gathered.get(task)
        if streams is None:
            streams = self._gathered[task] = (
                HeadTailBuffer(HEAD_BYTES, TAIL_BYTES),
                HeadTailBuffer(HEAD_BYTES, TAIL_BYTES),
            )
        streams[is_stderr].add(text, lost)
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._due)

    def tell(self, tasks: Iterable[bytes]) -> None:
        """Pass on what these tasks printed: they have ended."""
        self._pass_on([task for task in tasks if task in self._gathered])

    def close(self) -> None:
        """Pass on everything, and take in nothing more."""
        self._pass_on(list(self._gathered))
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        self._pass_on(list(self._gathered))

    def _pass_on(self, tasks: list[bytes]) -> None:
        message, size = Printed([], [], [], []), 0
        for task in tasks:
            for is_stderr, buffer in enumerate(self._gathered.pop(task)):
                for lost, text in buffer.segments():
                    message.ids.append(task)
                    message.are_stderr.append(bool(is_stderr))
                    message.truncated_bytes.append(lost)
                    message.texts.append(text)
                    size += len(text)
            if size >= MESSAGE_BYTES:
                self._say(message)
                message, size = Printed([], [], [], []), 0
        if message.ids:
            self._say(message)
