"""The history files in `state_directory`.

A restarted scheduler appends to the newest file while it has room, so frequent restarts do not evict older days."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from scaler.extensions.history import HistorySettings
from scaler.extensions.history.answer import answer
from scaler.extensions.history.core import Asked
from scaler.extensions.history.minutes import Before, Document, Row, lines_of, lines_with, rows_of, within
from scaler.extensions.interface import Performer
from scaler.journal.files import append
from scaler.monitor.history_rows import EventRow, FunctionTimesRow
from scaler.monitor.messages import FindHistory, HistoryFound
from scaler.protocol.messages import Reply, Unanswered
from scaler.scheduler.rooms import Surroundings

FOLDER = "history"
LIMIT_BYTES = 256 * 1024 * 1024
"""Maximum disk space of all files. The oldest files are deleted first."""
MAX_FILE_BYTES = 4 * 1024 * 1024
FILE_SECONDS = 86_400.0
"""Maximum time that a file covers. Files are deleted as a whole by age."""
DISORDER_SECONDS = 3_600.0
"""Tolerated disorder (seconds): records are written at the end of their interval, and clocks are adjusted."""
MAX_READERS = 16
"""Maximum number of questions waiting for the disk."""
BEFORE_SECONDS = 8 * 86_400.0
"""Maximum age of an earlier run whose function durations are compared with this run's."""
_NANOSECONDS = 1_000_000_000
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class HistoryFiles(Performer):
    """The files of one directory, each named after its first record's time in nanoseconds. Owned by one process."""

    def __init__(
        self, directory: Path, config: HistorySettings, around: Surroundings, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self.directory = directory
        self._retention_seconds = config.history_retention_seconds
        self._limit_bytes = limit_bytes
        self._file_bytes = min(MAX_FILE_BYTES, limit_bytes // 4)
        self._is_torn = True
        """The file may end in the middle of a line after a crash or on a full disk."""
        self._file = around.files.file("state_directory", directory, self._write)
        self._loop = around.loop
        self._reader = ThreadPoolExecutor(1, "history-reader")
        self._reading = 0
        self._in_thread(self._before, around.tell)

    def perform(self, work: Sequence[Row]) -> None:
        self._file.put(work, len(work))

    def answer(self, work: Asked, send: Callable[[Reply], None]) -> None:
        if self._reading < MAX_READERS:
            self._in_thread(lambda: self._found(*work), send)
        else:
            send(Unanswered("too many history queries are waiting for the disk: retry later"))

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _in_thread(self, work: Callable[[], _T], take: Callable[[_T], None]) -> None:
        def done(future: asyncio.Future[_T]) -> None:
            self._reading -= 1
            if not future.cancelled():
                take(future.result())

        self._reading += 1
        self._loop.run_in_executor(self._reader, work).add_done_callback(done)

    def _found(self, question: FindHistory, recent: list[Row], first: float) -> HistoryFound:
        since, until, begun, rows = question.since, question.until, first, recent
        try:
            earlier = read(self.directory, since, min(until, first)) if since < first else ()
            rows = [*(row for row in earlier if row.at < first), *recent]
            begun = min(first, oldest(self.directory) or first)
        except OSError as error:
            _log.warning("cannot read the history in %s: %s", self.directory, error)
        return HistoryFound(since, until, answer(rows, since, until, begun))

    def _before(self) -> Document:
        before, now, kinds = Before(), time.time(), {FunctionTimesRow.__name__, EventRow.__name__}
        try:
            before.load(read(self.directory, now - BEFORE_SECONDS, now, kinds))
        except OSError as error:
            _log.warning("cannot read the history in %s: %s", self.directory, error)
        return before.document(now)

    def _write(self, rows: Sequence[Row], _lost: int) -> None:
        # Terminate a line that an earlier write may have torn.
        text = (b"\n" if self._is_torn else b"") + b"".join(lines_of(rows))
        self._is_torn = True
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = _files(self.directory)
        now = time.time()
        if not files or now - _began_at(files[-1]) > FILE_SECONDS or _size_of(files[-1]) + len(text) > self._file_bytes:
            self._forget(files, now)
            files.append(self.directory / f"{time.time_ns():020d}.log")
        append(files[-1], text)
        self._is_torn = False

    def _forget(self, files: Sequence[Path], now: float) -> None:
        """Remove files whose records have all expired, and the oldest files beyond the size limit."""
        room = self._limit_bytes - self._file_bytes
        for path, ended_at in reversed(_with_ends(files)):
            room -= _size_of(path)
            if room < 0 or now - ended_at > self._retention_seconds:
                path.unlink(missing_ok=True)


def read(directory: Path, since: float, until: float, kinds: Collection[str] = ()) -> Iterator[Row]:
    """Yield the records of a time range in write order. kinds: class names, empty for all. Raises OSError."""
    files = _files(directory)
    for path, ended_at in _with_ends(files):
        if _began_at(path) - DISORDER_SECONDS > until or ended_at + DISORDER_SECONDS < since:
            continue
        with path.open("rb") as file:
            yield from within(rows_of(lines_with(file, kinds) if kinds else file), since, until)


def oldest(directory: Path) -> float | None:
    files = _files(directory)
    return _began_at(files[0]) if files else None


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.log") if path.stem.isdecimal())


def _with_ends(files: Sequence[Path]) -> list[tuple[Path, float]]:
    following = [*map(_began_at, files[1:]), math.inf]
    return [(path, min(_began_at(path) + FILE_SECONDS, end)) for path, end in zip(files, following, strict=False)]


def _began_at(path: Path) -> float:
    return int(path.stem) / _NANOSECONDS


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the file may be moved at any time
        return 0


def history_files(config: HistorySettings, around: Surroundings) -> HistoryFiles | None:
    directory = around.state_directory
    return HistoryFiles(directory / FOLDER, config, around) if directory is not None else None
