"""The audit log on disk: complete, private lines, and no harm if writing fails."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from scaler.extensions.audit.file import AuditFile
from scaler.extensions.audit.rows import AuditRow
from scaler.journal.files import FileWriter
from tests.waiting import until


def row(number: int) -> AuditRow:
    return AuditRow(float(number), "connected", "alice")


def write(path: Path, *writes: list[AuditRow], max_bytes: int = 1_000_000) -> None:
    with contextlib.closing(FileWriter()) as writer:
        file = AuditFile(path, writer, max_bytes)
        for rows in writes:
            file.perform(rows)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_json_lines_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch(0o666)
    write(path, [row(1), row(2)], [row(3)])
    assert [line["time"] for line in lines(path)] == [f"1970-01-01T00:00:0{second}.000Z" for second in (1, 2, 3)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_full_file_is_rotated_and_one_old_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, *([row(number)] for number in range(1, 8)), max_bytes=300)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]
    newest = [line["time"] for file in ("audit.jsonl.1", "audit.jsonl") for line in lines(tmp_path / file)]
    assert newest == [f"1970-01-01T00:00:0{second}.000Z" for second in (5, 6, 7)][-len(newest) :]
    assert all(each.stat().st_size <= 300 for each in tmp_path.iterdir())


def test_restored_folder_records_the_number_of_lost_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "folder" / "audit.jsonl"
    path.parent.touch()
    with contextlib.closing(FileWriter()) as writer:
        file = AuditFile(path, writer)
        file.perform([row(1), row(2)])
        until(lambda: caplog.records)  # another thread writes
        path.parent.unlink()
        file.perform([row(3)])
    assert [(line["kind"], line["times"]) for line in lines(path)] == [("lost", 2), ("connected", 0)]
    assert caplog.records[-1].getMessage() == f"audit_path: {path} is writable again, lost 2 records"


def test_symlinks_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "victim")
    write(tmp_path / "audit.jsonl", [row(1)])
    assert not (tmp_path / "victim").exists()
