"""The scheduler's small files: one thread writes them, and a slow disk delays no other thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from scaler.extensions.costs.core import Saved, SpendingLedger
from scaler.extensions.costs.file import SpendingFile
from scaler.extensions.scaling.demand import TaskTimes
from scaler.extensions.scaling.task_times import TaskTimesFile
from scaler.scheduler import files
from scaler.scheduler.files import FileWriter, replace
from scaler.scheduler.rooms import Surroundings
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


def test_files_that_hang_on_opening_delay_no_component(tmp_path: Path) -> None:
    """Opening a FIFO without a reader blocks, like opening a file on a hung disk."""
    writer = FileWriter()

    async def main() -> None:
        for name in ("spending.new", "task_times.new"):
            os.mkfifo(tmp_path / name)
        around = Surroundings(asyncio.get_running_loop(), writer, lambda _document: None, tmp_path)
        SpendingFile(tmp_path, around).perform(Saved(SpendingLedger({}, 0.0, run=5.0), 0.0, 0.0))
        times = TaskTimesFile(tmp_path, writer)
        for number in range(100):
            times.perform([float(number)])

    asyncio.run(asyncio.wait_for(main(), 10))
    for path in (tmp_path / "spending.new", tmp_path / "task_times.new"):
        reader = os.open(path, os.O_RDONLY)  # the disk answers
        until(partial(lambda each: not each.exists(), path))
        os.close(reader)
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
    replace(path, b"{}")
    with file_limit(), pytest.raises(OSError, match="No space left"):
        replace(path, b"x" * 300)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("spending.json", b"{}")]


# -- durations of tasks


def restart(directory: Path, times: TaskTimes) -> TaskTimes:
    """Return the state of a scheduler that succeeds one with this state."""
    with contextlib.closing(FileWriter()) as writer:
        TaskTimesFile(directory, writer).perform(times.counts)
    with contextlib.closing(FileWriter()) as writer:
        found = TaskTimes()
        found.restore(TaskTimesFile(directory, writer).read())
    return found


def test_median_duration_survives_a_restart(tmp_path: Path) -> None:
    times = TaskTimes()
    for mean_us, tasks in ((300, 40), (8_000_000, 900), (60_000_000, 12)):
        times.add(mean_us, tasks)
    after = restart(tmp_path, times)
    assert after.median_seconds == times.median_seconds == pytest.approx(8.0, rel=0.5)
    assert restart(tmp_path, TaskTimes()).median_seconds is None, "nothing has ended yet"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1, 2",
        b"\xff\xfe\x00",
        b"7",
        b"null",
        b'["much"]',
        b"[[1]]",
        b"[-1]",
        b"[NaN]",
        b"[Infinity]",
        b"[1" + b"0" * 400 + b"]",
        b"[" * 100_000,
        b"[" + b"1," * 99 + b"1]",
    ],
    ids=lambda text: text[:12].decode("latin-1"),
)
def test_damaged_durations_file_falls_back_to_the_median(
    text: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture, writer: FileWriter
) -> None:
    (tmp_path / "task_times.json").write_bytes(text)
    file = TaskTimesFile(tmp_path, writer)
    assert file.read() == []
    assert "task_times.json is not used" in caplog.text
    file.perform([0.0, 3.0])
    writer.close()
    assert file.read() == [0.0, 3.0]


def test_retries_writing_a_document(tmp_path: Path, caplog: pytest.LogCaptureFixture, writer: FileWriter) -> None:
    path = tmp_path / "task_times.json"
    path.mkdir()
    file = TaskTimesFile(tmp_path, writer)
    file.perform([1.0])
    until(lambda: caplog.records)
    path.rmdir()
    file.perform([2.0])
    writer.close()
    assert json.loads(path.read_text()) == [2.0]
    assert caplog.messages == [
        f"state_directory: cannot write {path}: Is a directory; the next attempt follows",
        f"state_directory: {path} is writable again",
    ]
