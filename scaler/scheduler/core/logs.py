"""What tasks printed, for who asks later. Bounded per task and in all; costs nothing for tasks that print nothing.

Of each stream of a task the beginning and the end are kept. When all of it is too much, the tasks that have printed
nothing for longest are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict

from scaler.head_tail import HeadTailBuffer
from scaler.protocol.messages import TaskLog

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 16 * 1024
"""Of stdout and of stderr, each: 64 KiB per task."""
MAX_LOG_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES = 512
"""What a task's entry takes beside its text."""


class Logs:
    """What tasks printed, by their ids."""

    __slots__ = ("_size_bytes", "_tasks")

    def __init__(self) -> None:
        self._tasks: OrderedDict[bytes, tuple[HeadTailBuffer, HeadTailBuffer]] = OrderedDict()
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Roughly what it keeps in memory."""
        return self._size_bytes

    def add(self, task: bytes, is_stderr: bool, text: bytes, lost: int = 0) -> None:
        """Keep what a task wrote. lost: bytes that are missing before it."""
        streams = self._tasks.get(task)
        if streams is None:
            streams = self._tasks[task] = (
                HeadTailBuffer(HEAD_BYTES, TAIL_BYTES),
                HeadTailBuffer(HEAD_BYTES, TAIL_BYTES),
            )
            self._size_bytes += _ENTRY_BYTES
        else:
            self._tasks.move_to_end(task)
        stream = streams[is_stderr]
        self._size_bytes -= len(stream)
        stream.add(text, lost)
        self._size_bytes += len(stream)
        while self._size_bytes > MAX_LOG_BYTES:
            _, oldest = self._tasks.popitem(last=False)
            self._size_bytes -= _ENTRY_BYTES + sum(map(len, oldest))

    def read(self, task: bytes) -> TaskLog:
        """Return what a task wrote; nothing when it wrote nothing, or so long ago that it was forgotten."""
        streams = self._tasks.get(task)
        if streams is None:
            return TaskLog(task, b"", b"", 0)
        stdout, stderr = streams
        return TaskLog(task, stdout.text(), stderr.text(), stdout.truncated + stderr.truncated)
