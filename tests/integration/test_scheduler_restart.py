"""A scheduler killed and restarted at its address: every future ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scaler import Client
from tests.integration.settings_rig import Command
from tests.waiting import wait_for_file, within

SLOTS = 4


class Cluster:
    """An object storage, a scheduler, and workers in separate processes. Tasks record their starts."""

    def __init__(self, directory: Path, slots: int, *settings: str, **environment: str) -> None:
        """settings: of the scheduler. environment: of all processes."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self._directory = directory
        self._slots = slots
        self._settings = settings
        self._environment = environment
        self.notes = directory / "notes"
        self.notes.mkdir()
        self._running: list[Command] = []

    def start(self) -> None:
        (storage,) = self._command("object_storage_server", "tcp://127.0.0.1:0").addresses().values()
        self._settings = (*self._settings, "--object-storage-address", storage)
        self.start_scheduler()
        options = ("--worker-manager-id", "m", "--mode", "fixed", "--max-task-concurrency", str(self._slots))
        self.manager = self._command("worker_manager", "baremetal_native", self.address, *options)
        self.manager.addresses()

    def start_scheduler(self) -> None:
        self.scheduler = self._command("scheduler", self.address, *self._settings)
        self.scheduler.addresses()

    def _command(self, name: str, *arguments: str) -> Command:
        self._running.append(Command(name, arguments, self._environment, self._directory))
        return self._running[-1]

    def kill(self) -> None:
        """Kill the scheduler."""
        self.scheduler.process.kill()
        self.scheduler.process.wait()

    def restart(self) -> None:
        """Kill and restart the scheduler."""
        self.kill()
        self.start_scheduler()

    def starts(self) -> Counter[str]:
        """Return how often each task has started, by name."""
        return Counter(path.name.partition(".")[0] for path in self.notes.iterdir())

    def agents(self) -> list[psutil.Process]:
        return psutil.Process(self.manager.pid).children()

    def close(self) -> None:
        for each in reversed(self._running):
            each.stop()
            each.close()


@contextmanager
def running(directory: Path, *settings: str, slots: int = SLOTS) -> Iterator[tuple[Cluster, Client]]:
    cluster = Cluster(directory, slots, *settings)
    with contextlib.closing(cluster):
        cluster.start()
        with Client(cluster.address) as client:
            yield cluster, client


def noted(notes: Path, name: str, value: object, until: Path | None = None) -> object:
    """Record the start of a task, wait for a file, and return a value."""
    (notes / f"{name}.{os.getpid()}.{time.monotonic_ns()}").touch()
    if until is not None:
        wait_for_file(until)
    return value


def fibonacci(notes: Path, number: int, go: Path) -> int:
    noted(notes, f"fibonacci-{number}", None)
    if number < 2:
        noted(notes, f"leaf-{number}", None, go)
        return number
    with Client() as client:
        parts = [client.submit(fibonacci, notes, number - each, go) for each in (1, 2)]
        return sum(part.result() for part in parts)


def add(notes: Path, name: str, *values: int) -> int:
    noted(notes, name, None)
    return sum(values)


def test_all_kinds_of_work_continue_and_nothing_runs_twice(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client), ThreadPoolExecutor() as threads:
        notes, go = cluster.notes, tmp_path / "go"
        shared = client.send_object({"shared": 7})
        finished = [client.submit(noted, notes, f"finished-{number}", number) for number in range(20)]
        assert [future.result(20) for future in finished[:10]] == list(range(10))
        blockers = [
            client.submit_verbose(noted, (notes, f"blocker-{number}", number, go), retries=number % 2)
            for number in range(SLOTS)
        ]
        assert within(10, lambda: sum(cluster.starts().values()) == 20 + SLOTS)
        small = [client.submit(noted, notes, f"small-{number}", number) for number in range(12)]
        with_object = client.submit(noted, notes, "object", shared)
        dependent = client.submit(noted, notes, "second", client.submit(noted, notes, "first", 1))
        cancelled = client.submit(noted, notes, "cancelled", 1)
        names = [[f"{kind}-{number}" for number in range(30)] for kind in ("map", "imap")]
        mapped = threads.submit(client.map, noted, [notes] * 30, names[0], range(30), chunk_size=1)
        streamed = threads.submit(lambda: list(client.imap(noted, [notes] * 30, names[1], range(30), chunk_size=1)))
        cluster.kill()
        cancelled.cancel()
        assert within(10, lambda: "broken" in repr(client))
        once = client.submit_verbose(noted, (notes, "once", 1), retries=0)
        cluster.start_scheduler()
        began = time.monotonic()
        go.touch()
        assert [future.result(20) for future in blockers] == list(range(SLOTS))
        assert [future.result(20) for future in small] == list(range(12))
        assert once.result(20) == 1
        pause = time.monotonic() - began
        assert with_object.result(20) == {"shared": 7}
        assert dependent.result(20) == 1
        assert [future.result(20) for future in finished] == list(range(20))
        assert mapped.result(20) == streamed.result(20) == list(range(30))
        assert set(cluster.starts().values()) == {1}
        assert "cancelled" not in cluster.starts()
        assert pause < 4.0


def test_nested_tasks_continue_during_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        go = tmp_path / "go"
        future = client.submit(fibonacci, cluster.notes, 5, go)
        assert within(20, lambda: cluster.starts()["leaf-1"] >= 2)
        before = cluster.starts()
        cluster.restart()
        go.touch()
        assert future.result(20) == 5
        counts = cluster.starts()
        assert counts["fibonacci-5"] == before["fibonacci-5"] == 1
        assert counts["fibonacci-4"] == 1
        assert counts["leaf-1"] == 5


@pytest.mark.full
def test_run_once_tasks_never_start_twice_and_end_as_lost_if_no_worker_reports_them(tmp_path: Path) -> None:
    with running(tmp_path, "--worker-timeout-seconds", "4") as (cluster, client):
        notes, go = cluster.notes, tmp_path / "go"
        futures = [
            client.submit_verbose(noted, (notes, f"once-{number}", number, go), retries=0)
            for number in range(2 * SLOTS)
        ]
        assert within(10, lambda: sum(cluster.starts().values()) == SLOTS)
        agents = cluster.agents()
        agents[0].suspend()
        cluster.restart()
        go.touch()
        outcomes = [future.exception(20) for future in futures]
        agents[0].resume()
        assert [*cluster.starts().values()] == [1] * SLOTS
        assert all(error is None or "may have run" in str(error) for error in outcomes)
