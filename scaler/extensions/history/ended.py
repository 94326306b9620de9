"""The tasks that ended last, in the batches in which they ended: the cost is per batch. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from scaler.scheduler.core.changes import TasksEnded

MAX_REMEMBERED = 4096
"""Ended tasks."""
MAX_FAILURE_BYTES = 8 * 1024 * 1024
"""Size of what is remembered of failures."""
_RECORD_BYTES = 128


class EndedTasks:
    """The last batches. Beyond `MAX_REMEMBERED` and `MAX_FAILURE_BYTES`, the oldest batch is dropped.

    A batch is never larger than one message to a client.
    """

    def __init__(self) -> None:
        self._batches: deque[TasksEnded] = deque()
        self._rows = 0
        self._failure_bytes = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, ended: TasksEnded) -> None:
        """Remember a batch, which must not change any more."""
        batches = self._batches
        batches.append(ended)
        self._rows += len(ended.ids)
        if ended.failure_records:
            self._failure_bytes += _failure_bytes(ended)
        while self._rows - len(batches[0].ids) >= MAX_REMEMBERED or (
            self._failure_bytes > MAX_FAILURE_BYTES and len(batches) > 1
        ):
            oldest = batches.popleft()
            self._rows -= len(oldest.ids)
            if oldest.failure_records:
                self._failure_bytes -= _failure_bytes(oldest)

    def find(self, task: bytes) -> tuple[TasksEnded, int] | None:
        """Return the batch with the last end of this task, and its index there."""
        for ended in reversed(self._batches):
            if task in ended.ids:
                return ended, len(ended) - 1 - ended.ids[::-1].index(task)
        return None

    def latest(self, limit: int) -> Iterator[tuple[TasksEnded, int]]:
        """Yield the last ends, up to limit, the oldest of them first."""
        left = min(limit, self._rows)
        chosen: list[tuple[TasksEnded, int]] = []
        for ended in reversed(self._batches):
            first = max(0, len(ended) - left)
            left -= len(ended) - first
            chosen.append((ended, first))
            if not left:
                break
        for ended, first in reversed(chosen):
            for index in range(first, len(ended)):
                yield ended, index


def _failure_bytes(ended: TasksEnded) -> int:
    return sum(_RECORD_BYTES + len(record.payload) for record in ended.failure_records.values())
