"""Output of tasks. Pure."""

from __future__ import annotations

from collections import OrderedDict

from scaler.head_tail import HeadTailBuffer
from scaler.protocol.messages import TaskLog

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 16 * 1024
"""Bytes per stream: 64 KiB per task."""
MAX_LOG_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES = 512


class Logs:
    """Beginning and end of each task's output. When the total exceeds its limit, the least recent tasks are dropped."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[bytes, tuple[HeadTailBuffer, HeadTailBuffer]] = OrderedDict()
        self.size_bytes = 0

    def add(self, task: bytes, is_stderr: bool, text: bytes, lost: int = 0) -> None:
        streams = self._tasks.get(task)
        if streams is None:
            streams = HeadTailBuffer(HEAD_BYTES, TAIL_BYTES), HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
            self._tasks[task] = streams
            self.size_bytes += _ENTRY_BYTES
        else:
            self._tasks.move_to_end(task)
        stream = streams[is_stderr]
        self.size_bytes -= len(stream)
        stream.add(text, lost)
        self.size_bytes += len(stream)
        while self.size_bytes > MAX_LOG_BYTES:
            self.drop(next(iter(self._tasks)))

    def move(self, task: bytes, to: Logs) -> None:
        streams = self._tasks.get(task)
        if streams is not None:
            self.drop(task)
            to._tasks[task] = streams
            to.size_bytes += _ENTRY_BYTES + sum(map(len, streams))

    def drop(self, task: bytes) -> None:
        streams = self._tasks.pop(task, None)
        if streams is not None:
            self.size_bytes -= _ENTRY_BYTES + sum(map(len, streams))

    def read(self, task: bytes) -> TaskLog:
        streams = self._tasks.get(task)
        if streams is None:
            return TaskLog(task, b"", b"", 0)
        stdout, stderr = streams
        return TaskLog(task, stdout.text(), stderr.text(), stdout.truncated + stderr.truncated)
