"""Sends a worker's warnings and errors, including its processors' records outside tasks."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial

from scaler.errors import ProtocolError
from scaler.extensions.logs.prints import send_prints
from scaler.logs import message_of
from scaler.protocol.messages import LogLine, WorkerHeartbeat, WorkerLogged
from scaler.texts import shortened
from scaler.worker.agent.shell import Agent
from scaler.worker.frames import Note, ToAgent

MAX_WAITING = 30
"""Maximum number of records per heartbeat. Older records are dropped."""
MAX_TEXT = 1_000
_LEVELS = {logging.getLevelName(level): level for level in (logging.WARNING, logging.ERROR, logging.CRITICAL)}


class OwnLog(logging.Handler):
    """Handler that collects records from any thread until `take` removes them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._waiting: deque[LogLine] = deque(maxlen=MAX_WAITING)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = message_of(record)
            task = bytes.fromhex(getattr(record, "ids", {}).get("task", ""))
            line = LogLine(record.created, record.levelname, record.name, shortened(text)[:MAX_TEXT], task)
        except Exception:  # noqa: BLE001 (arguments may be objects of users, whose texts raise anything)
            self.handleError(record)
            return
        self._waiting.append(line)

    def take(self) -> WorkerLogged | None:
        assert self.lock is not None, "a handler has a lock from the start"
        with self.lock:
            lines = list(self._waiting)
            self._waiting.clear()
        return WorkerLogged(lines) if lines else None


def send_logs(agent: Agent) -> None:
    """Send task output, and log records with the heartbeats."""
    own, root = OwnLog(), logging.getLogger()
    root.addHandler(own)

    def take(_number: int, note: Note, _descriptors: list[int]) -> None:
        level, _, rest = note.text.decode("utf-8", "replace").partition("\n")
        name, _, message = rest.partition("\n")
        if level not in _LEVELS:
            raise ProtocolError(f"a datagram contains a record of level {level!r}")
        own.handle(logging.LogRecord(name, _LEVELS[level], "", 0, message, None, None))

    def send(_heartbeat: WorkerHeartbeat | None = None) -> None:
        if (message := own.take()) is not None:
            agent.send(message)

    send_prints(agent)
    agent.on_note[ToAgent.LOGGED] = take
    agent.on_heartbeat.append(send)
    agent.on_close += [partial(root.removeHandler, own), send]
