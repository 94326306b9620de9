"""The journal of a running server: confirmed records survive, and a failing disk is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest

import scaler.journal.directory as directory
from scaler._version import __version__
from scaler.errors import UsageError
from scaler.extensions.durability.ledger import to_bytes
from scaler.journal.directory import JournalDirectory
from scaler.journal.journal import Journal
from scaler.journal.records import HEADER_BYTES, JournalError
from scaler.protocol.messages import PROTOCOL_VERSION
from scaler.scheduler.core.changes import ClientLeft
from tests.waiting import soon

SEGMENT_BYTES = 16 * 1024
COMPACTOR = "scaler.extensions.durability.steps"
LEFT = to_bytes([ClientLeft(b"nothing.")])


def open_journal(path: Path, compact_bytes: int = 1 << 40) -> tuple[Journal, list[bytes]]:
    journal = Journal(
        path,
        COMPACTOR,
        lambda: None,
        content=PROTOCOL_VERSION,
        segment_bytes=SEGMENT_BYTES,
        compact_bytes=compact_bytes,
    )
    return journal, list(journal.recover())


def run(test: Callable[[Journal], Awaitable[None]], path: Path) -> None:
    async def whole() -> None:
        journal, _ = open_journal(path)
        try:
            await test(journal)
        finally:
            journal.close()

    asyncio.run(whole())


def read(path: Path) -> list[bytes]:
    """Return the records that the next process finds."""
    directory = JournalDirectory(path, PROTOCOL_VERSION)
    try:
        return list(directory.bodies())
    finally:
        directory.close()


def test_next_process_finds_all_appended_records(tmp_path: Path) -> None:
    contents = [b"%d" % number * 100 for number in range(500)]  # several segments

    async def test(journal: Journal) -> None:
        for body in contents:
            journal.append(body)
        await soon(lambda: journal.durable == 500)

    run(test, tmp_path)
    assert read(tmp_path) == contents
    assert len(JournalDirectory(tmp_path).segments()) > 5


@pytest.fixture
def confirmed(monkeypatch: pytest.MonkeyPatch) -> dict[int, bytes]:
    """The contents confirmed by the disk, by inode: a power loss drops everything else."""
    contents: dict[int, bytes] = {}

    def noted(confirm: Callable[[int], None]) -> Callable[[int], None]:
        def confirm_and_note(descriptor: int) -> None:
            confirm(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}")
            if path.is_file():
                contents[os.fstat(descriptor).st_ino] = path.read_bytes()

        return confirm_and_note

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, noted(getattr(os, name)))
    return contents


def test_power_loss_after_closing_keeps_the_last_segment(tmp_path: Path, confirmed: dict[int, bytes]) -> None:
    async def test(journal: Journal) -> None:
        journal.append(b"body")

    run(test, tmp_path)
    path = tmp_path / "segment-00000001.journal"
    assert confirmed[path.stat().st_ino] == path.read_bytes()


def test_power_loss_keeps_a_snapshot_that_replaces_segments(tmp_path: Path, confirmed: dict[int, bytes]) -> None:
    with contextlib.closing(JournalDirectory(tmp_path, PROTOCOL_VERSION)) as directory:
        directory.write_snapshot(1, [b"one", b"two"], 2)
    path = tmp_path / "snapshot-00000001.journal"
    assert confirmed[path.stat().st_ino] == path.read_bytes()


def test_power_loss_keeps_every_record_that_a_restart_has_read(tmp_path: Path, confirmed: dict[int, bytes]) -> None:
    async def test(journal: Journal) -> None:
        journal.append(b"body")

    run(test, tmp_path)
    confirmed.clear()  # the process was killed before
    path = tmp_path / "segment-00000001.journal"

    async def restarted(_: Journal) -> None:
        assert confirmed[path.stat().st_ino] == path.read_bytes()

    run(restarted, tmp_path)


def test_second_process_is_refused_while_the_first_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "RELEASE_SECONDS", 0.0)

    async def test(_: Journal) -> None:
        with pytest.raises(UsageError, match="another running process uses"):
            open_journal(tmp_path)

    run(test, tmp_path)


def test_rejects_a_directory_open_to_other_users(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.mkdir(mode=0o755)
    with pytest.raises(UsageError, match=f"chmod 700 {path}"):
        JournalDirectory(path)


def test_rejects_a_newer_version(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        journal.append(b"body")

    run(test, tmp_path)
    path = tmp_path / "segment-00000001.journal"
    data = bytearray(path.read_bytes())
    data[16] += 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match="damaged"):
        read(tmp_path)
    data[60:64] = crc32(bytes(data[:60])).to_bytes(4, "little")
    path.write_bytes(data)
    text = rf"by scaler {re.escape(__version__)} \(format 3\.(\d+)\); this is scaler .* format 2\.\1\. Start the"
    with pytest.raises(JournalError, match=text):
        read(tmp_path)


def test_rejects_a_journal_of_another_protocol_by_name(tmp_path: Path) -> None:
    async def test(journal: Journal) -> None:
        journal.append(b"body")

    run(test, tmp_path)
    text = rf"was written by scaler {re.escape(__version__)} \(format 2\.{PROTOCOL_VERSION}\); this is .* 2\.99"
    with contextlib.closing(JournalDirectory(tmp_path, 99)) as directory, pytest.raises(JournalError, match=text):
        list(directory.bodies())


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a wrong byte": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a lost sector": lambda data: data[:-64] + bytes(64),
    "cut off": lambda data: data[:-20],
    "nothing but its header": lambda data: data[:HEADER_BYTES],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_the_last_confirmed_record_is_not_an_interrupted_write(
    damage: str, is_killed: bool, tmp_path: Path
) -> None:
    """A process that was killed or closed its journal leaves nothing after the record."""

    async def test(journal: Journal) -> None:
        for body in (b"one" * 20, b"two" * 20):
            journal.append(body)
            await soon(lambda: journal.durable == journal.written)
        if is_killed:
            shutil.copytree(live, copy)

    live, copy = tmp_path / "live", tmp_path / "copy"
    run(test, live)
    path = (copy if is_killed else live) / "segment-00000001.journal"
    assert read(path.parent) == [b"one" * 20, b"two" * 20]
    path.write_bytes(DAMAGES[damage](path.read_bytes().rstrip(b"\0")))
    with pytest.raises(JournalError, match="damaged at byte"):
        read(path.parent)
    path.unlink()
    with pytest.raises(JournalError, match=f"{path.parent} is damaged at byte 0"):
        read(path.parent)


def test_damaged_snapshot_raises(tmp_path: Path) -> None:
    directory = JournalDirectory(tmp_path, PROTOCOL_VERSION)
    directory.write_snapshot(1, [b"one", b"two"], 2)
    directory.close()
    assert read(tmp_path) == [b"one", b"two"]
    path = tmp_path / "snapshot-00000001.journal"
    data = path.read_bytes()
    for wrong in (data[:-1], data[:40] + b"!" + data[41:], data + b"!", data[:HEADER_BYTES]):
        path.write_bytes(wrong)
        with pytest.raises(JournalError, match="damaged at byte"):
            read(tmp_path)


@contextmanager
def no_room(beyond: int = SEGMENT_BYTES - 1) -> Iterator[None]:
    """No file grows beyond an existing segment, as on a full disk, or beyond another size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (beyond, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_refuses_work_keeps_results_in_reserve_and_recovers(tmp_path: Path) -> None:
    contents: list[bytes] = []

    async def test(journal: Journal) -> None:
        def append() -> None:
            contents.append(b"%d" % len(contents) * 50)
            journal.append(contents[-1])

        with no_room():
            while not journal.failure:
                append()
                await soon(lambda: journal.durable == len(contents) or bool(journal.failure))
            room = f"cannot write to {tmp_path}: File too large; new work is refused until 1 MiB are free there"
            assert journal.failure.endswith(room)
            assert not journal.is_stuck
            append()
            await soon(lambda: journal.durable == len(contents))  # the reserve accepts it
            for _ in range(200):
                append()
            await soon(lambda: journal.is_stuck)
            assert journal.durable < len(contents)  # the reserve is used up, and nothing is confirmed
            assert "and other work waits until" in journal.failure
        await soon(lambda: not journal.failure and journal.durable == len(contents))
        append()

    run(test, tmp_path)
    assert read(tmp_path) == contents


def test_records_not_confirmed_by_the_disk_are_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = os.fdatasync, [OSError(errno.EIO, os.strerror(errno.EIO))]

    def fdatasync(descriptor: int) -> None:
        if failures:
            raise failures.pop()
        real(descriptor)

    async def test(journal: Journal) -> None:
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        journal.append(b"one")
        await soon(lambda: bool(journal.failure))
        assert journal.durable == 0
        journal.append(b"two")
        await soon(lambda: journal.durable == 2)

    run(test, tmp_path)
    assert read(tmp_path) == [b"one", b"two"]
    assert (tmp_path / "segment-00000002.journal").read_bytes().count(b"one") == 1


def test_disk_confirms_every_segment_before_its_records_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, confirmed = os.fdatasync, set[str]()

    def fdatasync(descriptor: int) -> None:
        real(descriptor)
        confirmed.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    async def test(journal: Journal) -> None:
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        for _ in range(200):
            journal.append(bytes(500))
        await soon(lambda: journal.durable == 200)

    run(test, tmp_path)
    segments = sorted(path.name for path in tmp_path.glob("segment-*"))
    assert len(segments) > 5
    assert sorted(confirmed) == segments


def test_disk_confirms_writes_of_a_killed_process_before_they_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(journal: Journal) -> None:
        for _ in range(100):
            journal.append(bytes(500))

    run(test, tmp_path)
    segments = sorted(path.name for path in tmp_path.glob("segment-*"))
    real, confirmed = os.fsync, set[str]()

    def fsync(descriptor: int) -> None:
        real(descriptor)
        confirmed.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    async def next_one() -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        journal, found = open_journal(tmp_path)
        assert len(found) == journal.durable == 100
        journal.close()

    asyncio.run(next_one())
    assert len(segments) > 2
    assert confirmed.issuperset(segments)


def test_hung_disk_does_not_block_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a write, nor in a confirmation, nor while it creates the next segment."""
    is_open = threading.Event()

    def hangs(function: Callable[..., object]) -> Callable[..., object]:
        def hung(*arguments: object) -> object:
            assert is_open.wait(10)
            return function(*arguments)

        return hung

    async def test(journal: Journal) -> None:
        for count, name in enumerate(("pwrite", "fdatasync", "posix_fallocate"), start=1):
            is_open.clear()
            monkeypatch.setattr(os, name, hangs(getattr(os, name)))
            before = journal.durable
            for _ in range(10):
                journal.append(bytes(2_000))
            await soon(lambda: journal.waiting_seconds > 0.02)
            assert (journal.durable, journal.written, journal.failure) == (before, 10 * count, "")
            is_open.set()
            await soon(lambda: journal.durable == journal.written)
            assert not journal.waiting_seconds

    run(test, tmp_path)
    assert len(read(tmp_path)) == 30


def test_compaction_replaces_segments_while_records_arrive(tmp_path: Path) -> None:
    async def whole() -> None:
        journal, _ = open_journal(tmp_path, compact_bytes=2 * SEGMENT_BYTES)
        for _ in range(5_000):
            journal.append(LEFT)
        await soon(lambda: bool(JournalDirectory(tmp_path, lock=False).snapshot()))
        journal.append(LEFT)
        journal.close()

    asyncio.run(whole())
    assert len(read(tmp_path)) < 5_001  # the segments before the snapshot are inconsistent
    assert read(tmp_path)[-1] == LEFT


WRITER = """
import asyncio, sys
from pathlib import Path
from scaler.journal.journal import Journal
from scaler.protocol.messages import PROTOCOL_VERSION

async def main():
    told = 0
    def tell():
        nonlocal told
        if journal.durable > told:
            told = journal.durable
            print(told, flush=True)
    journal = Journal(Path(sys.argv[1]), "none", tell, content=PROTOCOL_VERSION, segment_bytes=64 * 1024)
    for _ in journal.recover():
        pass
    while True:
        for _ in range(10):
            journal.append(b"%d" % (journal.written + 1) * 20)
        while journal.written > journal.durable + 1_000:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

asyncio.run(main())
"""


def test_killed_writer_has_written_everything_it_reported_as_durable(tmp_path: Path) -> None:
    for lines in (1, 20):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        durable = 0
        for _ in range(lines):
            durable = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        durable = max([durable, *map(int, writer.communicate()[0].split(b"\n")[:-1])])
        found = read(tmp_path)
        assert found == [b"%d" % number * 20 for number in range(1, len(found) + 1)]
        assert len(found) >= durable
