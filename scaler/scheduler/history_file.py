"""The history in `state_directory`.

Restarts append to the same file while there is room in it, so that any number of them pushes no older day out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from scaler.scheduler.files import FileWriter, append
from scaler.scheduler.history import Row, lines_of, lines_with, rows_of, within

FOLDER = "history"
MAX_FILE_BYTES = 4 * 1024 * 1024
FILE_SECONDS = 86_400.0
"""A file has the records of a day at most: what is too old is removed by files."""
DISORDER_SECONDS = 3_600.0
"""How much older than its file a record may be: it is written when its time is over, and clocks are set."""
_NANOSECONDS = 1_000_000_000


class HistoryFiles:
    """Files of one directory, each with the nanoseconds of its first record as its name. Belongs to one process."""

    def __init__(self, directory: Path, retention_seconds: float, limit_bytes: int, writer: FileWriter) -> None:
        """limit_bytes: of all files, -1 for no limit."""
        self.directory = directory
        self._retention_seconds = retention_seconds
        self._limit_bytes = limit_bytes
        self._file_bytes = min(MAX_FILE_BYTES, limit_bytes // 4) if limit_bytes >= 0 else MAX_FILE_BYTES
        self._is_torn = True
        """The file may end in the middle of a line, as a crash or a full disk leaves it."""
        self._file = writer.file("state_directory", directory, self._write)

    def write(self, rows: Sequence[Row]) -> None:
        """Have records written soon. Never waits and never fails."""
        self._file.put(rows, len(rows))

    def _write(self, rows: Sequence[Row], _lost: int) -> None:
        # An empty line ends what an earlier write may have left torn.
        text = (b"\n" if self._is_torn else b"") + b"".join(lines_of(rows))
        self._is_torn = True
        self._append(text)
        self._is_torn = False

    def _append(self, text: bytes) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = _files(self.directory)
        now = time.time()
        if not files or now - _began_at(files[-1]) > FILE_SECONDS or _size_of(files[-1]) + len(text) > self._file_bytes:
            self._forget(files, now)
            files.append(self.directory / f"{time.time_ns():020d}.log")
        append(files[-1], text)

    def _forget(self, files: Sequence[Path], now: float) -> None:
        """Remove the files whose records are all too old, and the oldest ones beyond the limit."""
        room = self._limit_bytes - self._file_bytes if self._limit_bytes >= 0 else math.inf
        for path, ended_at in reversed(_with_ends(files)):
            room -= _size_of(path)
            if room < 0 or now - ended_at > self._retention_seconds:
                path.unlink(missing_ok=True)


def read(directory: Path, since: float, until: float, kinds: Collection[str] = ()) -> Iterator[Row]:
    """Yield the records of a time, in the order they were written. kinds: names of their classes, all without any.

    Raises OSError.
    """
    files = _files(directory)
    for path, ended_at in _with_ends(files):
        if _began_at(path) - DISORDER_SECONDS > until or ended_at + DISORDER_SECONDS < since:
            continue
        with path.open("rb") as file:
            yield from within(rows_of(lines_with(file, kinds) if kinds else file), since, until)


def oldest(directory: Path) -> float | None:
    """Return when the first file was begun, in unix seconds; None when there is none."""
    files = _files(directory)
    return _began_at(files[0]) if files else None


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.log") if path.stem.isdecimal())


def _with_ends(files: Sequence[Path]) -> list[tuple[Path, float]]:
    """Return files with the time up to which their records may be."""
    following = [*map(_began_at, files[1:]), math.inf]
    return [
        (path, min(_began_at(path) + FILE_SECONDS, next_at)) for path, next_at in zip(files, following, strict=False)
    ]


def _began_at(path: Path) -> float:
    return int(path.stem) / _NANOSECONDS


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it may be moved away at any time
        return 0
