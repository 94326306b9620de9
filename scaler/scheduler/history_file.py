"""Keeps the history in `state_directory`, written by a thread: a slow or full disk never delays the scheduler."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from scaler.grammar import counted
from scaler.protocol.messages import Outcome
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.facts import Fact, Incident, TasksEnded
from scaler.scheduler.core.state import ScalingDecided
from scaler.scheduler.history import Figures, Minutes, Row, line_of, rows_of

FOLDER = "history"
SAMPLE_SECONDS = 1.0
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_FILES = 64
"""The oldest are removed: some 256 MiB, or the last 64 runs."""
MAX_WAITING = 1_000
"""Writes that wait for the disk; beyond it they are lost."""
CLOSE_SECONDS = 1.0
_FAILED = frozenset(Outcome) - {Outcome.SUCCESS, Outcome.CANCELLED, Outcome.EXCEPTION_TO_RETRY}
_log = logging.getLogger(__name__)


class HistoryFile:
    """The history of one scheduler: each run begins a file, whose name is when it began."""

    def __init__(
        self,
        directory: Path,
        state: ClusterState,
        loop: asyncio.AbstractEventLoop,
        lag_seconds: Callable[[], float],
    ) -> None:
        """lag_seconds: returns the longest lag of the loop since it was called last."""
        self._state = state
        self._loop = loop
        self._lag_seconds = lag_seconds
        state.is_recorded = True
        self._minutes = Minutes(time.time(), self._figures())
        self._minutes.event(time.time(), "started", "scheduler", "")
        self._writer = _Writer(directory)
        self._timer = loop.call_later(SAMPLE_SECONDS, self._tick)

    def add(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            match fact:
                case Incident(kind, subject, text):
                    self._minutes.event(time.time(), kind, subject, text)
                case ScalingDecided(manager_id, units, draining, reason):
                    text = f"{counted(units, 'unit')}, and {draining} draining: {reason}"
                    self._minutes.event(time.time(), "scaling", manager_id, text)
                case TasksEnded():
                    for index in fact.failure_records:
                        if fact.outcomes[index] in _FAILED:
                            self._minutes.failure(fact.run_of(index)[0].function.name, fact.failure(index).text)
                case _:
                    pass

    def close(self) -> None:
        self._timer.cancel()
        self._minutes.event(time.time(), "ended", "scheduler", "")
        self._writer.write(self._minutes.sample(time.time(), self._figures(), is_last=True))
        self._writer.close()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(SAMPLE_SECONDS, self._tick)
        rows = self._minutes.sample(time.time(), self._figures())
        if rows:
            self._writer.write(rows)

    def _figures(self) -> Figures:
        state = self._state
        ended = state.ended
        failed = sum(ended[outcome] for outcome in _FAILED)
        done, cancelled = ended[Outcome.SUCCESS], ended[Outcome.CANCELLED]
        peers = len(state.workers), len(state.managers)
        return Figures(
            done, failed, cancelled, state.living_tasks, *peers, float(state.ledger.run), self._lag_seconds()
        )


class _Writer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path: Path | None = None
        self._failure = ""
        self._waiting: queue.SimpleQueue[Sequence[Row] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def write(self, rows: Sequence[Row]) -> None:
        """Have records written soon. Never waits and never fails."""
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put(rows)

    def close(self) -> None:
        """Wait until everything is written, for a moment."""
        self._waiting.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (rows := self._waiting.get()) is not None:
            # The empty line ends what an earlier write may have left torn.
            text = (b"\n" if self._failure else b"") + b"".join(map(line_of, rows))
            try:
                self._append(text)
            except OSError as error:
                if not self._failure:
                    _log.warning("cannot write the history in %s, records are lost: %s", self._directory, error)
                self._failure = str(error)
            else:
                self._failure = ""

    def _append(self, text: bytes) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path is None or _size_of(self._path) + len(text) > MAX_FILE_BYTES:
            for path in _files(self._directory)[: -MAX_FILES + 1]:
                path.unlink(missing_ok=True)
            self._path = self._directory / f"{time.time_ns():020d}.log"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            if os.write(descriptor, text) < len(text):
                raise OSError("the disk is full")
        finally:
            os.close(descriptor)


def read(directory: Path, since: float, until: float) -> Iterator[Row]:
    """Yield the records of a time, in the order they were written. Raises OSError."""
    for path in _files(directory):
        with path.open("rb") as file:
            yield from (row for row in rows_of(file) if since <= row.at < until)


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it may be moved away at any time
        return 0
