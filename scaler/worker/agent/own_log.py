"""Warnings and errors of this process for monitors, including those of its processors outside of tasks."""

from __future__ import annotations

import logging
from collections import deque

from scaler.logs import message_of
from scaler.protocol.messages import LogLine, WorkerLogged
from scaler.texts import shortened

MAX_WAITING = 100
RECORDS_PER_SECOND = 5.0
"""Average rate limit, with a burst of MAX_SAVED records. Records beyond it are dropped."""
MAX_SAVED = 100.0
MAX_TEXT = 1_000


class OwnLog(logging.Handler):
    """Handler that collects records from any thread. The event loop sends the result of `take`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._waiting: deque[LogLine] = deque()
        self._dropped = 0
        self._left = MAX_SAVED
        self._refilled_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        passed = max(0.0, record.created - self._refilled_at)
        self._left = min(MAX_SAVED, self._left + passed * RECORDS_PER_SECOND)
        self._refilled_at = record.created
        if self._left < 1:
            self._dropped += 1
            return
        self._left -= 1
        try:
            text = message_of(record)
            task = bytes.fromhex(getattr(record, "ids", {}).get("task", ""))
            line = LogLine(record.created, record.levelname, record.name, shortened(text)[:MAX_TEXT], task)
        except Exception:  # noqa: BLE001 (arguments may be objects of users, whose texts raise anything)
            self.handleError(record)
            return
        self._waiting.append(line)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self._dropped += 1

    def take(self) -> WorkerLogged | None:
        assert self.lock is not None, "a handler has a lock from its start"
        with self.lock:
            if not (self._waiting or self._dropped):
                return None
            message = WorkerLogged(list(self._waiting), self._dropped)
            self._waiting.clear()
            self._dropped = 0
        return message
