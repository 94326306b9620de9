"""Keeps the last records of the workers' own logs. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import count, islice

from scaler.config.setting import SettingsModel
from scaler.extensions.interface import SchedulerPart
from scaler.extensions.logs.rows import LogRow
from scaler.protocol.messages import FindWorkerLogs, WorkerLogged, WorkerLogsFound
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command
from scaler.scheduler.core.state import ClientRecord, PeerRecord
from scaler.scheduler.status import fitting

MAX_LINES = 1_000
MAX_LINES_OF_WORKER = 200
"""Limit per worker, so that one failing worker does not evict the records of all other workers."""
MAX_LINES_OF_MESSAGE = 200
MAX_TEXT = 1_000
MAX_NAME = 100
MAX_ANSWER_BYTES = 512 * 1024


class WorkerLogs(SchedulerPart):
    """Log records in arrival order."""

    messages = (WorkerLogged,)
    questions = (FindWorkerLogs,)

    def __init__(self, _config: SettingsModel | None = None) -> None:
        self._lines: deque[LogRow] = deque()
        self._of_worker: Counter[str] = Counter()
        self._numbers = count(1)

    def on_message(self, peer: PeerRecord, message: WorkerLogged, _state: ClusterState) -> Iterable[Command]:
        owner, name = peer.id.hex(), peer.title
        for line in message.lines[:MAX_LINES_OF_MESSAGE]:
            texts = line.level[:MAX_NAME], name, owner, line.text[:MAX_TEXT], line.logger[:MAX_NAME], line.task.hex()
            self._lines.append(LogRow(next(self._numbers), line.unix_seconds, *texts))
            self._of_worker[owner] += 1
            if self._of_worker[owner] > MAX_LINES_OF_WORKER:
                self._forget(next(place for place, row in enumerate(self._lines) if row.worker_id == owner))
            elif len(self._lines) > MAX_LINES:
                self._forget(0)
        return ()

    def _forget(self, place: int) -> None:
        owner = self._lines[place].worker_id
        del self._lines[place]
        self._of_worker[owner] -= 1
        if not self._of_worker[owner]:
            del self._of_worker[owner]

    def on_question(self, question: FindWorkerLogs, client: ClientRecord, state: ClusterState) -> WorkerLogsFound:
        """Return the newest records of a worker, or of all workers, that fit into one message."""
        wanted = question.search
        rows = (
            row
            for row in reversed(self._lines)
            if (not wanted or wanted in (row.worker, row.worker_id))
            and (not row.task or state.may_see(client, bytes.fromhex(row.task)))
        )
        texts = fitting(islice(rows, question.most), MAX_ANSWER_BYTES)
        return WorkerLogsFound(wanted, question.most, f"[{', '.join(texts)}]".encode(), question.number)
