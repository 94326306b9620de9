"""The scheduler's small files: one thread writes them, and a slow disk delays no other thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from scaler.extensions.costs.core import Saved, SpendingLedger
from scaler.extensions.costs.file import SpendingFile
from scaler.journal import files
from scaler.journal.files import FileWriter
from scaler.scheduler.rooms import Surroundings
from scaler.security.private_files import write_atomically
from tests.waiting import until


class Disk:
    """Blocks every write until released."""

    def __init__(self) -> None:
        self.is_free = Event()
        self.written: list[tuple[object, int]] = []

    def write(self, item: object, lost: int) -> None:
        assert self.is_free.wait(20)
        self.written.append((item, lost))


@pytest.fixture
def writer() -> Iterator[FileWriter]:
    with contextlib.closing(FileWriter()) as writer:
        yield writer


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.is_free.set()


def test_hung_disk_drops_and_counts_excess_records(
    disk: Disk, writer: FileWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "MAX_WAITING", 3)
    file = writer.file("audit_path", Path("audit"), disk.write)
    file.put("in hand")
    until(lambda: file.waiting == 0)
    for number in range(5):
        file.put(number, records=10)
    disk.is_free.set()
    until(lambda: len(disk.written) == 4)
    file.put("later")
    writer.close()
    assert disk.written == [("in hand", 0), (0, 0), (1, 0), (2, 0), ("later", 20)]
    assert caplog.messages == ["audit_path: audit is writable again, lost 20 records"]


def test_closing_does_not_wait_for_a_hung_disk(
    disk: Disk, writer: FileWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "CLOSE_SECONDS", 0.01)
    writer.file("audit_path", Path("audit"), disk.write).put("record")
    writer.close()
    assert caplog.messages == ["the disk took more than 0.01 s: the last records of some files are lost"]


def test_files_on_a_hung_disk_delay_no_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, responds, path = FileWriter(), threading.Event(), tmp_path / "spending.json"
    monkeypatch.setattr(os, "fsync", lambda _: responds.wait(10))

    async def main() -> None:
        around = Surroundings(asyncio.get_running_loop(), writer, lambda _document: None, tmp_path)
        SpendingFile(tmp_path, around).perform(Saved(SpendingLedger({}, 0.0, run=5.0), 0.0, 0.0))

    asyncio.run(main())
    assert not path.exists()
    responds.set()
    until(path.exists)
    writer.close()


@contextlib.contextmanager
def file_limit() -> Iterator[None]:
    """Limit files, including that of pytest's output, to 200 bytes: writes are short and then fail."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_keeps_the_last_complete_document(tmp_path: Path) -> None:
    path = tmp_path / "spending.json"
    write_atomically(path, "{}", replace=True)
    with file_limit(), pytest.raises(OSError, match="File too large"):
        write_atomically(path, "x" * 300, replace=True)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("spending.json", b"{}")]


def test_retries_writing_a_document(tmp_path: Path, caplog: pytest.LogCaptureFixture, writer: FileWriter) -> None:
    path = tmp_path / "spending.json"
    path.mkdir()

    def write(text: str, _lost: int) -> None:
        write_atomically(path, text, replace=True)

    file = writer.file("state_directory", path, write, only_latest=True)
    file.put("1")
    until(lambda: caplog.records)
    path.rmdir()
    file.put("2")
    writer.close()
    assert path.read_text() == "2"
    assert caplog.messages == [
        f"state_directory: cannot write {path}: Is a directory; the next attempt follows",
        f"state_directory: {path} is writable again",
    ]
