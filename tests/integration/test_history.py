"""The history of a real scheduler, over restarts, as `scaler history` prints it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command


def half(number: int) -> int:
    if number % 2:
        raise ValueError("an odd number")
    return number // 2


def scaler(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert run_command("scaler", ["history", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def run_once(directory: Path) -> None:
    cluster = SchedulerClusterCombo(n_workers=1, state_directory=str(directory))
    with cluster as combo, Client(address=combo.get_address()) as client:
        for future in [client.submit(half, number) for number in range(10)]:
            future.exception()


def test_runs_figures_and_failures_are_there_after_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began_at = time.time()
    run_once(tmp_path)
    run_once(tmp_path)
    rows = [json.loads(line) for line in scaler(capsys, str(tmp_path), "--json")]
    assert [row["kind"] for row in rows].count("started") == [row["kind"] for row in rows].count("ended") == 2
    assert [row["subject"] for row in rows if row["kind"] == "joined"]
    minutes = [row for row in rows if row["kind"] == "minute"]
    assert (sum(row["done"] for row in minutes), sum(row["failed"] for row in minutes)) == (10, 10)
    failures = [row for row in rows if row["kind"] == "failed"]
    assert sum(row["times"] for row in failures) == 10
    assert {row["subject"] for row in failures} == {"half"}
    assert all("an odd number" in row["text"] for row in failures)
    assert all(began_at - 60 <= row["at"] <= time.time() for row in rows)
    lines = scaler(capsys, str(tmp_path))
    assert len(lines) == len(rows)
    assert any(" failed half: " in line and "an odd number" in line for line in lines)


def test_a_time_is_picked_and_a_torn_file_hides_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_once(tmp_path)
    [file] = (tmp_path / "history").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    whole = scaler(capsys, str(tmp_path))
    file.write_bytes(file.read_bytes()[:-4])
    assert scaler(capsys, str(tmp_path)) == whole[:-1]
    before = datetime.fromtimestamp(time.time() - 3600, UTC).isoformat()
    assert scaler(capsys, str(tmp_path), "--until", before) == []
    assert scaler(capsys, str(tmp_path), "--since", before) == whole[:-1]


@pytest.mark.parametrize(
    "arguments", [["nowhere"], [".", "--since", "yesterday"], [".", "--since", "2026-01-02", "--until", "2026-01-01"]]
)
def test_what_cannot_be_printed_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("scaler", ["history", *arguments]) == 2
    assert capsys.readouterr().err
