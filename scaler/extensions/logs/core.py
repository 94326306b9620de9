"""Keeps task output, and the last records of the workers' own logs. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import count, islice
from typing import Any

from scaler.extensions.interface import SchedulerPart
from scaler.extensions.logs.rows import LogRow
from scaler.head_tail import HeadTailBuffer
from scaler.ids import owner_of
from scaler.monitor.messages import ReadLog, TaskLog
from scaler.protocol.messages import Outcome, Output, Printed, WorkerLogged
from scaler.scheduler.core.changes import TaskFailed
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.rooms import Now
from scaler.scheduler.core.state import ClientRecord, PeerRecord

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 16 * 1024
"""Maximum bytes of each stream's head and tail: 64 KiB per task."""
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
        """Remove and return a task's output, or empty streams."""
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


MAX_LINES = 1_000
MAX_LINES_OF_WORKER = 200
"""Limit per worker: one failing worker must not evict the records of all other workers."""
MAX_LINES_OF_MESSAGE = 200
MAX_TEXT = 1_000
MAX_NAME = 100


class Logs(SchedulerPart):
    """Task output and log records, in arrival order."""

    changes = (TaskFailed,)
    messages = (WorkerLogged, Printed, Output)
    questions = (ReadLog,)

    def __init__(self, _config: object = None) -> None:
        self._output = KeptOutput()
        self._failed = KeptOutput()
        """Output of failed tasks, kept separately because other tasks' output would evict it."""
        self._lines: deque[LogRow] = deque()
        self._of_worker: Counter[str] = Counter()
        self._numbers = count(1)

    def on_changes(self, changes: Sequence[TaskFailed], _now: Now) -> Iterable[Command]:
        for change in changes:
            [task] = change.ended.ids
            self._failed.take(task)
            self._failed.put(task, self._output.take(task))
        return ()

    def on_message(
        self, peer: PeerRecord, message: WorkerLogged | Printed | Output, state: ClusterState
    ) -> Iterable[Command]:
        match message:
            case WorkerLogged():
                self._add_lines(peer, message)
            case Output(task, is_stderr, text):
                self._printed(state, task, is_stderr, text)
            case Printed(ids, are_stderr, truncated_bytes, texts):
                for row in zip(ids, are_stderr, texts, truncated_bytes, strict=True):
                    self._printed(state, *row)
        return ()

    def _printed(self, state: ClusterState, task: bytes, is_stderr: bool, text: bytes, lost: int = 0) -> None:
        if owner_of(task) in state.clients:
            (self._failed if task in self._failed else self._output).add(task, is_stderr, text, lost)

    def _add_lines(self, peer: PeerRecord, message: WorkerLogged) -> None:
        owner, name = peer.id.hex(), peer.title
        for line in message.lines[:MAX_LINES_OF_MESSAGE]:
            texts = line.level[:MAX_NAME], name, owner, line.text[:MAX_TEXT], line.logger[:MAX_NAME], line.task.hex()
            self._lines.append(LogRow(next(self._numbers), line.unix_seconds, *texts))
            self._of_worker[owner] += 1
            if self._of_worker[owner] > MAX_LINES_OF_WORKER:
                self._forget(next(place for place, row in enumerate(self._lines) if row.worker_id == owner))
            elif len(self._lines) > MAX_LINES:
                self._forget(0)

    def _forget(self, place: int) -> None:
        owner = self._lines[place].worker_id
        del self._lines[place]
        self._of_worker[owner] -= 1
        if not self._of_worker[owner]:
            del self._of_worker[owner]

    def on_question(self, question: ReadLog, client: ClientRecord, state: ClusterState) -> TaskLog:
        task = question.task
        if not state.may_see(client, task):
            return TaskLog(task, b"", b"", 0)
        log = (self._failed if task in self._failed else self._output).read(task)
        found = state.ended_task(task)
        if found is not None and found[0].outcomes[found[1]] not in (Outcome.SUCCESS, Outcome.CANCELLED):
            log.traceback = found[0].failure(found[1]).traceback.encode("utf-8", "replace")
        return log

    def rows(self, _table: str, worker: str, most: int, client: Any, state: Any) -> Iterable[LogRow]:
        """Return the newest records of a worker, by its name or id, or of all workers."""
        rows = (
            row
            for row in reversed(self._lines)
            if (not worker or worker in (row.worker, row.worker_id))
            and (not row.task or state.may_see(client, bytes.fromhex(row.task)))
        )
        return islice(rows, most)
