"""Keeps the output of tasks. Pure."""

from __future__ import annotations

from collections import OrderedDict

from scaler.head_tail import HeadTailBuffer
from scaler.protocol.messages import TaskLog

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 16 * 1024
"""Bytes per stream: 64 KiB per task."""
MAX_LOG_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES = 512

Streams = tuple[HeadTailBuffer, HeadTailBuffer]


class KeptOutput:
    """Beginning and end of each task's output. When the total exceeds its limit, the least recent tasks are dropped."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[bytes, Streams] = OrderedDict()
        self.size_bytes = 0

    def __contains__(self, task: bytes) -> bool:
        return task in self._tasks

    def add(self, task: bytes, is_stderr: bool, text: bytes, lost: int = 0) -> None:
        streams = self.take(task)
        streams[is_stderr].add(text, lost)
        self.put(task, streams)

    def take(self, task: bytes) -> Streams:
        """Remove and return the output of a task; new streams if it has none."""
        streams = self._tasks.pop(task, None)
        if streams is None:
            return HeadTailBuffer(HEAD_BYTES, TAIL_BYTES), HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
        self.size_bytes -= _size_of(streams)
        return streams

    def put(self, task: bytes, streams: Streams) -> None:
        self._tasks[task] = streams
        self.size_bytes += _size_of(streams)
        while self.size_bytes > MAX_LOG_BYTES:
            self.size_bytes -= _size_of(self._tasks.popitem(last=False)[1])

    def read(self, task: bytes) -> TaskLog:
        streams = self._tasks.get(task)
        if streams is None:
            return TaskLog(task, b"", b"", 0)
        stdout, stderr = streams
        return TaskLog(task, stdout.text(), stderr.text(), stdout.truncated + stderr.truncated)


def _size_of(streams: Streams) -> int:
    return _ENTRY_BYTES + sum(map(len, streams))
