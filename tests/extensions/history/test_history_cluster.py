"""The history of a real scheduler across restarts, as printed by `scaler history`."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.errors import UsageError
from scaler.extensions.history.client import HistorySnapshot
from tests.waiting import until


def half(number: int) -> int:
    if number % 2:
        raise ValueError("an odd number")
    return number // 2


def scaler(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert run_command("scaler", ["history", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def run_once(directory: Path) -> None:
    """Run ten tasks, half of which fail, on a separate scheduler."""
    cluster = SchedulerClusterCombo(n_workers=1, state_directory=str(directory))
    with cluster as combo, Client(address=combo.get_address()) as client:
        for future in [client.submit(half, number) for number in range(10)]:
            future.exception()


def test_history_of_two_runs_has_figures_and_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    before = datetime.fromtimestamp(began_at - 3600, UTC).isoformat()
    assert scaler(capsys, str(tmp_path), "--until", before) == []
    assert scaler(capsys, "--since", before, str(tmp_path)) == lines
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "history").iterdir()} == {0}


def test_client_reads_runs_and_trends_from_a_state_directory(tmp_path: Path) -> None:
    began_at = time.time()
    run_once(tmp_path)
    cluster = SchedulerClusterCombo(n_workers=1, state_directory=str(tmp_path))
    with cluster as combo, Client(address=combo.get_address()) as client:
        assert client.submit(half, 4).result() == 2

        def complete() -> HistorySnapshot | None:
            history = client.history(began_at - 60)
            return history if sum(point.done for point in history.points) == 6 else None

        history = until(complete)
        assert [event.kind for event in history.events].count("started") == 2
        assert [(each.function, each.times) for each in history.failures] == [("half", 5)]
        [function] = history.functions
        assert (function.function, function.ended, function.failed) == ("half", 11, 5)
        assert function.p50_seconds > 0
        assert history.oldest >= began_at - 60
        assert list(history.points.to_pandas()["done"]) == [point.done for point in history.points]
        assert not client.history(began_at - 7_200, datetime.fromtimestamp(began_at - 3_600, UTC)).points
        row = until(
            lambda: next((row for row in client.cluster().functions if row.p50_before_seconds is not None), None)
        )
        assert row.p50_before_seconds == pytest.approx(function.p50_seconds, rel=3)
        assert row.trend_percent is not None


def test_argument_that_is_not_a_directory_is_a_cluster_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("scaler", ["history", "nowhere"]) == 1
    assert "no cluster is named 'nowhere'" in capsys.readouterr().err


def test_last_hour_is_known_without_a_state_directory() -> None:
    began_at = time.time()
    with SchedulerClusterCombo(n_workers=1) as combo, Client(address=combo.get_address()) as client:
        assert client.submit(half, 4).result() == 2
        assert client.submit(half, 1).exception() is not None
        history = until(lambda: found if (found := client.history()).events and found.points else None)
        assert sum(point.done + point.failed for point in history.points) == 2
        assert history.oldest >= began_at - 1
        assert {each.times for each in history.failures} == {1}
        assert {row.p50_before_seconds for row in client.cluster().functions} == {None}
        for wrong in ((True, None), ("yesterday", None), (float("nan"), None), (2.0, 1.0)):
            with pytest.raises(UsageError, match="start is"):
                client.history(*wrong)


@pytest.mark.parametrize(
    "arguments", [["."], [".", "--since", "yesterday"], [".", "--since", "2026-01-02", "--until", "2026-01-01"]]
)
def test_unprintable_output_is_reported(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("scaler", ["history", *arguments]) == 2
    assert capsys.readouterr().err
