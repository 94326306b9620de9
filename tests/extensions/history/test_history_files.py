"""The history on disk: existing and removed files, and their content."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler.extensions.history import HistorySettings
from scaler.extensions.history.files import LIMIT_BYTES, HistoryFiles, oldest, read
from scaler.extensions.history.minutes import MinuteRow, Row, lines_of
from scaler.journal.files import FileWriter
from scaler.monitor.history_rows import EventRow
from scaler.scheduler.rooms import Surroundings

DAY = 86_400.0
NOW = time.time()


def event(at: float, text: str = "") -> EventRow:
    return EventRow(at, "lost", "worker", text)


def write(directory: Path, *rows: Row, retention_seconds: float = 30 * DAY, limit_bytes: int = LIMIT_BYTES) -> None:
    """Write records like one run of a scheduler."""
    with files_of(directory, retention_seconds, limit_bytes) as files:
        files.perform(rows)


@contextlib.contextmanager
def files_of(directory: Path, retention_seconds: float, limit_bytes: int) -> Iterator[HistoryFiles]:
    settings = HistorySettings(history_retention_seconds=retention_seconds)
    with contextlib.closing(FileWriter()) as writer, contextlib.closing(asyncio.new_event_loop()) as loop:
        files = HistoryFiles(directory, settings, Surroundings(loop, writer, lambda _document: None, None), limit_bytes)
        yield files
        files.close()


def begun(directory: Path, days_ago: float, *rows: Row) -> Path:
    """Create a file that was started at this time."""
    path = directory / f"{int((NOW - days_ago * DAY) * 1e9):020d}.log"
    path.write_bytes(b"".join(lines_of(rows)))
    return path


def test_restarts_write_to_one_file_a_day(tmp_path: Path) -> None:
    yesterday = begun(tmp_path, 1.5, event(NOW - 1.5 * DAY, "old"))
    for number in range(100):
        write(tmp_path, event(NOW + number))
    files = sorted(tmp_path.iterdir())
    assert files[0] == yesterday
    assert len(files) == 2
    rows = list(read(tmp_path, 0.0, NOW + 1_000))
    assert rows == [event(NOW - 1.5 * DAY, "old"), *(event(NOW + number) for number in range(100))]
    assert oldest(tmp_path) == pytest.approx(NOW - 1.5 * DAY)


def test_file_is_deleted_when_all_its_records_expire(tmp_path: Path) -> None:
    gone, kept = begun(tmp_path, 9, event(NOW - 9 * DAY)), begun(tmp_path, 4, event(NOW - 4 * DAY))
    last = begun(tmp_path, 2, event(NOW - 2 * DAY))
    write(tmp_path, event(NOW), retention_seconds=3.5 * DAY)
    files = sorted(tmp_path.iterdir())
    assert gone not in files
    assert files[:2] == [kept, last]
    assert len(files) == 3


def test_oldest_files_are_deleted_beyond_the_total_limit(tmp_path: Path) -> None:
    text = "x" * 400
    for number in range(60):
        write(tmp_path, event(NOW + number, text), limit_bytes=8_000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8_000
    kept = list(read(tmp_path, 0.0, NOW + 100))
    assert kept[-1] == event(NOW + 59, text)
    assert len(kept) >= 8


def test_full_disk_loses_records_but_not_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_all = os.write
    sizes = [40, 0]
    monkeypatch.setattr(os, "write", lambda file, text: write_all(file, text[: sizes.pop()] if sizes else text))
    with files_of(tmp_path, DAY, -1) as files:
        for number in range(3):
            files.perform([event(NOW + number)])
    assert list(read(tmp_path, 0.0, NOW + 10)) == [event(NOW + 2)]
    assert (
        caplog.text.count(f"state_directory: cannot write {tmp_path}: No space left on device; records are lost") == 1
    )


def test_reads_only_files_of_the_period_including_overlapping_minutes(tmp_path: Path) -> None:
    begun(tmp_path, 9, event(NOW - 9 * DAY)).chmod(0)
    minute = MinuteRow(NOW - 100, 60.0, 1, 0, 0, 1, 1, 1, 0.0, 0.0)
    begun(tmp_path, 0.5, minute, event(NOW))
    begun(tmp_path, -5, event(NOW + 5 * DAY)).write_text("not a record\n")
    (tmp_path / "notes.log").write_text("not a file of the history\n")
    assert list(read(tmp_path, NOW - 50, NOW + 1)) == [minute, event(NOW)]
    assert list(read(tmp_path, NOW - 50, NOW + 1, {"EventRow"})) == [event(NOW)]
    assert list(read(tmp_path / "none", 0.0, NOW)) == []
    assert oldest(tmp_path / "none") is None
