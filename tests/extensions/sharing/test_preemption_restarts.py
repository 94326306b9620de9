"""Preempted tasks whose scheduler restarts, or whose worker is lost, during the stop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scaler import Client
from tests.extensions.sharing.test_preemption_run import URGENT, attempts, ignore, start
from tests.integration.free_ports import free_addresses
from tests.integration.settings_rig import Command
from tests.waiting import until, wait_for_file


class Restarting:
    """A scheduler with a journal, and one worker."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address, _, _ = free_addresses(count=3)
        self.begin()
        options = ("--worker-manager-id", "m", "--mode", "fixed", "--max-task-concurrency", "1")
        self.manager = Command("worker_manager", ("baremetal_native", self.address, *options), {}, directory)
        self.manager.addresses()

    def begin(self) -> None:
        state = str(self._directory / "state")
        self.scheduler = Command("scheduler", (self.address, "--state-directory", state), {}, self._directory)
        self.scheduler.addresses()

    def restart(self) -> None:
        self.scheduler.process.kill()
        self.scheduler.close()
        self.begin()

    def close(self) -> None:
        for each in (self.manager, self.scheduler):
            each.stop()
            each.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Restarting]:
    running = Restarting(tmp_path)
    yield running
    running.close()


@pytest.mark.parametrize("grace_seconds", [4, 3600])
def test_stop_continues_after_a_restart(cluster: Restarting, tmp_path: Path, grace_seconds: int) -> None:
    with Client(cluster.address, session="s") as client:
        low, release = start(client, tmp_path, ignore, preemptible=grace_seconds)
        urgent = client.submit_verbose(os.getpid, **URGENT)
        until(lambda: "is being stopped for" in client.explain(low))
        cluster.restart()
        if grace_seconds > 60:
            until(lambda: "is being stopped for" in client.explain(low))
            os.kill(attempts(tmp_path)[0], 9)
        assert urgent.result(30)
        until(lambda: len(attempts(tmp_path)) == 2)
        assert ": stopped " in client.explain(low)  # with the time if the scheduler was back
        release.touch()
        assert low.result(30) == 2


def test_stopped_task_of_a_detached_session_runs_again_after_a_restart(cluster: Restarting, tmp_path: Path) -> None:
    with Client(cluster.address, session="s") as client:
        _, release = start(client, tmp_path)
        go = tmp_path / "go"
        client.submit_verbose(wait, (str(tmp_path / "urgent"), str(go)), **URGENT)
        wait_for_file(tmp_path / "urgent")
    cluster.restart()
    release.touch()
    go.touch()
    with Client(cluster.address, session="s") as client:
        assert sorted(str(future.result(30)) for future in client.futures()) == ["2", "urgent"]


def wait(started: str, release: str) -> str:
    Path(started).touch()
    wait_for_file(Path(release))
    return "urgent"


def test_task_runs_again_if_its_worker_is_killed_while_it_is_stopped(cluster: Restarting, tmp_path: Path) -> None:
    with Client(cluster.address) as client:
        low, release = start(client, tmp_path, ignore, preemptible=3600)
        urgent = client.submit_verbose(os.getpid, **URGENT)
        until(lambda: "is being stopped for" in client.explain(low))
        (agent,) = psutil.Process(cluster.manager.pid).children()
        agent.kill()
        assert urgent.result(30)
        until(lambda: len(attempts(tmp_path)) == 2)
        release.touch()
        assert low.result(30) == 2
