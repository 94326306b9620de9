"""Preempted tasks on a real cluster: handlers of SIGTERM, tasks that ignore it, and lost workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerFuture, SchedulerClusterCombo
from scaler.errors import UsageError
from tests.waiting import until, wait_for_file

URGENT: dict[str, Any] = {"priority": 100}


@pytest.fixture
def client() -> Iterator[Client]:
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as connected:
        yield connected


def hold(started: str, release: str) -> int:
    """Run until a file exists. Returns the number of the attempt."""
    with Path(started).open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not Path(release).exists():
        time.sleep(0.02)
    return len(Path(started).read_text().split())


def checkpoint(started: str, release: str) -> str:
    """Write a checkpoint when the task is stopped, and continue from there later."""
    saved = Path(started + ".checkpoint")
    if saved.exists():
        return f"continued after {saved.read_text()}"

    def save(*_: object) -> None:
        saved.write_text("part one")
        raise SystemExit

    signal.signal(signal.SIGTERM, save)
    return str(hold(started, release))


def finish_early(started: str, release: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: Path(release).touch())
    return hold(started, release)


def ignore(started: str, release: str) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return hold(started, release)


def hold_nested(client: Client, started: str, release: str) -> Any:
    return client.submit_verbose(hold, (started, release), preemptible=True).result()


def start(client: Client, folder: Path, function: Any = hold, **options: Any) -> tuple[ScalerFuture, Path]:
    """Start a preemptible task that has run for longer than the shortest time. Returns its future, and its release."""
    started, release = folder / "started", folder / "release"
    future = client.submit_verbose(function, (str(started), str(release)), **{"preemptible": True, **options})
    wait_for_file(started)
    until(future.running)
    return future, release


def attempts(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "started").read_text().split()]


def test_stopped_task_runs_again_and_its_future_stays_pending(client: Client, tmp_path: Path) -> None:
    low, release = start(client, tmp_path)
    wait = client.submit_verbose(hold, (str(tmp_path / "urgent"), str(tmp_path / "go")), **URGENT)
    wait_for_file(tmp_path / "urgent")
    until(lambda: not low.running())
    assert not low.done()
    assert "with priority 100" in client.explain(low)
    (tmp_path / "go").touch()
    assert wait.result(20) == 1
    release.touch()
    assert low.result(20) == 2
    assert "that was attempt 2, after attempt 1 on " in client.explain(low)


def test_task_continues_from_its_checkpoint(client: Client, tmp_path: Path) -> None:
    low, _ = start(client, tmp_path, checkpoint)
    assert client.submit_verbose(os.getpid, **URGENT).result(20)
    assert low.result(20) == "continued after part one"


def test_result_within_the_grace_period_counts(client: Client, tmp_path: Path) -> None:
    low, _ = start(client, tmp_path, finish_early)
    assert client.submit_verbose(os.getpid, **URGENT).result(20)
    assert low.result(20) == 1


def test_task_that_ignores_sigterm_is_killed(client: Client, tmp_path: Path) -> None:
    low, release = start(client, tmp_path, ignore, preemptible=0.5)
    assert client.submit_verbose(os.getpid, **URGENT).result(20)
    release.touch()
    assert low.result(20) == 2


def test_task_cancelled_while_it_is_stopped_ends_at_once(client: Client, tmp_path: Path) -> None:
    low, _ = start(client, tmp_path, ignore, preemptible=3600)
    urgent = client.submit_verbose(os.getpid, **URGENT)
    until(lambda: "is being stopped for" in client.explain(low))
    assert low.cancel()
    assert urgent.result(20)
    with pytest.raises(CancelledError):
        low.result(20)
    assert len(attempts(tmp_path)) == 1


def test_task_runs_again_if_its_process_is_killed_while_it_is_stopped(client: Client, tmp_path: Path) -> None:
    low, release = start(client, tmp_path, ignore, preemptible=3600, retries=1)
    urgent = client.submit_verbose(os.getpid, **URGENT)
    until(lambda: "is being stopped for" in client.explain(low))
    os.kill(attempts(tmp_path)[0], signal.SIGKILL)
    assert urgent.result(20)
    release.touch()
    assert low.result(20) == 2
    assert "stopped after" in client.explain(low)


def test_nested_task_is_stopped_and_its_parent_gets_its_result(client: Client, tmp_path: Path) -> None:
    release = tmp_path / "release"
    parent = client.submit(hold_nested, client, str(tmp_path / "started"), str(release))
    wait_for_file(tmp_path / "started")
    assert client.submit_verbose(os.getpid, **URGENT).result(20)
    release.touch()
    assert parent.result(20) == 2


def test_tasks_of_a_map_are_stopped(client: Client, tmp_path: Path) -> None:
    release = tmp_path / "release"
    with ThreadPoolExecutor(1) as threads:
        low = threads.submit(client.map, hold, [str(tmp_path / "started")], [str(release)], preemptible=True)
        wait_for_file(tmp_path / "started")
        assert client.submit_verbose(os.getpid, **URGENT).result(20)
        release.touch()
        assert low.result(20) == [2]


def test_task_that_starts_at_most_once_cannot_be_preemptible(client: Client) -> None:
    with pytest.raises(UsageError, match="retries=0 starts a task at most once"):
        client.submit_verbose(os.getpid, preemptible=True, retries=0)
