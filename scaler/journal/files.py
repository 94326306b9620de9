"""The scheduler's small files, written by a thread, so that a slow, full, or missing disk never delays a step."""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from scaler.grammar import counted

MAX_WAITING = 1_000
"""Maximum queued writes per file. Records beyond this are counted as lost."""
CLOSE_SECONDS = 1.0
"""Seconds that an exiting scheduler waits for the disk."""
_FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)  # Windows has neither
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class FileWriter:
    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[WrittenFile[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def file(
        self, setting: str, path: Path, write: Callable[[_T, int], None], *, only_latest: bool = False
    ) -> WrittenFile[_T]:
        """Return a file that this writer writes.

        write: called in the thread with each item and the number of records lost before; raises OSError. only_latest: a
        new item replaces a queued item, which does not count as lost.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="small files", daemon=True)
            self._thread.start()
        return WrittenFile(self._queue, setting, path, write, only_latest)

    def close(self) -> None:
        """Wait at most `CLOSE_SECONDS` until everything is written. Idempotent."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                _log.warning("the disk took more than %g s: the last records of some files are lost", CLOSE_SECONDS)
            self._thread = None

    def _run(self) -> None:
        while (file := self._queue.get()) is not None:
            file.write_next()


@dataclass(slots=True, eq=False)
class WrittenFile(Generic[_T]):
    """A file of a `FileWriter`. Logs the first failure, and the first success after failures."""

    _turns: queue.SimpleQueue[WrittenFile[Any] | None]
    """Contains this file once for each item in `_waiting`."""
    _setting: str
    _path: Path
    _write: Callable[[_T, int], None]
    _only_latest: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: deque[tuple[_T, int, int]] = field(default_factory=deque)
    """Each item, its number of records, and the number of records lost just before."""
    _skipped: int = 0
    _lost: int = 0
    _has_failed: bool = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, item: _T, records: int = 1) -> None:
        """Queue an item. Never blocks or raises."""
        with self._lock:
            if self._only_latest and self._waiting:
                self._waiting[-1] = item, records, 0
            elif len(self._waiting) >= MAX_WAITING:
                self._skipped += records
            else:
                self._waiting.append((item, records, self._skipped))
                self._skipped = 0
                self._turns.put(self)

    def write_next(self) -> None:
        """Write the next item, in the writer's thread."""
        with self._lock:
            item, records, skipped = self._waiting.popleft()
        self._lost += skipped
        try:
            self._write(item, self._lost)
        except OSError as error:
            if not self._has_failed:
                outcome = "the next attempt follows" if self._only_latest else "records are lost"
                _log.error("%s: cannot write %s: %s; %s", self._setting, self._path, error.strerror or error, outcome)
            self._has_failed = True
            self._lost += 0 if self._only_latest else records
        else:
            if self._has_failed or self._lost:
                lost = f", lost {counted(self._lost, 'record')}" if self._lost else ""
                _log.warning("%s: %s is writable again%s", self._setting, self._path, lost)
            self._has_failed = False
            self._lost = 0


def append(path: Path, text: bytes) -> None:
    """Append a whole text, or nothing, to a file that only this user can read. Raises OSError."""
    descriptor = os.open(path, _FLAGS | os.O_APPEND, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        size = os.fstat(descriptor).st_size
        if os.write(descriptor, text) < len(text):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
