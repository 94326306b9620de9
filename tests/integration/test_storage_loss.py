"""The object storage is killed with everything in its memory: values are restored, recomputed, or lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from scaler import Client
from scaler.errors import UnreachableError
from tests.integration.settings_rig import Command, command
from tests.integration.storage_rig import StorageProcess, storage_process
from tests.waiting import until, wait_for_file

SIZE = 100_000
LARGE = 2_000_000
"""Shared, if processes of one host share memory."""


class Cluster:
    """A cluster of processes, whose object storage a test kills and restarts at the same address."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self.storage: StorageProcess = stack.enter_context(storage_process())
        scheduler = stack.enter_context(
            command("scheduler", "tcp://127.0.0.1:0", "-osa", self.storage.address, directory=directory)
        )
        self.address = scheduler.addresses()["scheduler"]
        workers = stack.enter_context(command("cluster", self.address, "-n", "2", directory=directory))
        workers.addresses()

    def restart_storage(self) -> None:
        self.storage.kill()
        self.storage = self._stack.enter_context(storage_process(self.storage.address))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path)


def touch_and_wait(began: Path, go: Path) -> None:
    began.touch()
    wait_for_file(go)


def occupy(client: Client, directory: Path) -> Path:
    """Occupy both slots with a task, and return the path whose creation ends these tasks."""
    go = directory / "go"
    begun = [directory / f"began{index}" for index in range(2)]
    for path in begun:
        client.submit(touch_and_wait, path, go)
    for path in begun:
        wait_for_file(path)
    return go


def test_tasks_waiting_for_a_stopped_storage_hold_no_slot(cluster: Cluster, tmp_path: Path) -> None:
    def touch_and_wait_with(_: bytes, began: Path, go: Path) -> None:
        touch_and_wait(began, go)

    with Client(cluster.address) as client:
        first, second = (client.send_object(bytes([number]) * LARGE) for number in range(2))
        begun = [tmp_path / f"began{index}" for index in range(2)]
        go = tmp_path / "go"
        connected = [client.submit(touch_and_wait_with, first, path, go) for path in begun]
        for path in begun:
            wait_for_file(path)
        cluster.storage.process.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        waiting = [client.submit(len, second) for _ in range(2)]
        go.touch()
        for future in connected:
            future.result(20)
        assert client.submit(abs, -1).result(20) == 1
        assert time.monotonic() - stopped_at < 5, "a connection to it is given up after 10 s"
        assert not any(future.done() for future in waiting)
        cluster.storage.process.send_signal(signal.SIGCONT)
        assert [future.result(20) for future in waiting] == [LARGE] * 2


@pytest.mark.full
def test_arguments_of_waiting_tasks_are_restored_after_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    with Client(cluster.address) as client:
        go = occupy(client, tmp_path)
        sent = client.send_object(b"s" * SIZE)
        array = np.ones(LARGE // 8)
        sizes = (SIZE, LARGE) * 6
        futures = [client.submit(lambda a, b: len(a) + len(b), bytes([i]) * size, sent) for i, size in enumerate(sizes)]
        sums = client.submit(lambda a: float(a.sum()), array)
        array[:] = 7  # the task's input was sent before
        client.submit(len, b"x" * (LARGE + 1))
        cluster.restart_storage()
        go.touch()
        assert [future.result(20) for future in futures] == [size + SIZE for size in sizes]
        assert sums.result(20) == LARGE // 8


def test_result_that_could_not_be_fetched_is_recomputed(cluster: Cluster, tmp_path: Path) -> None:
    def add_line(path: Path, size: int) -> bytes:
        with path.open("a") as file:
            file.write("ran\n")
        return bytes(size)

    lines = tmp_path / "lines"
    with Client(cluster.address) as client:
        graph = {
            "raw": (add_line, lines, SIZE),
            "wait": (touch_and_wait, tmp_path / "began", tmp_path / "go"),
            "end": (lambda raw, _: len(raw), "raw", "wait"),
        }
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(client.get(graph, ["end"])))
        thread.start()
        wait_for_file(tmp_path / "began")
        wait_for_file(lines)
        cluster.restart_storage()
        (tmp_path / "go").touch()
        thread.join(20)
        assert found == [{"end": SIZE}]
        assert lines.read_text() == "ran\n" * 2


def test_without_a_storage_small_tasks_run_and_large_values_fail(cluster: Cluster, tmp_path: Path) -> None:
    with Client(cluster.address, timeout_seconds=2.0) as client:
        go = occupy(client, tmp_path)
        arguments = [client.submit(len, bytes([i]) * SIZE) for i in range(8)]
        results = [client.submit(bytes, SIZE) for _ in range(4)]  # the tasks wait for the storage and lend their slots
        small = [client.submit(abs, -i) for i in range(100)]
        cluster.storage.kill()
        go.touch()
        began = time.monotonic()
        assert [future.result(20) for future in small] == list(range(100))
        assert time.monotonic() - began < 5
        for future in arguments:
            assert "no object storage" in str(future.exception(20))
        with pytest.raises(UnreachableError, match="no object storage"):
            client.submit(len, bytes(SIZE)).result(20)
        until(lambda: all(" and waits for the object storage at " in client.explain(future) for future in results))


@pytest.mark.full
def test_values_survive_a_killed_scheduler_with_embedded_storage(tmp_path: Path) -> None:
    with ExitStack() as stack:
        scheduler = Command("scheduler", ["tcp://127.0.0.1:0"], {}, tmp_path)
        stack.callback(scheduler.close)
        address = scheduler.addresses()["scheduler"]
        workers = stack.enter_context(command("cluster", address, "-n", "2", directory=tmp_path))
        workers.addresses()
        client = stack.enter_context(Client(address))
        go = occupy(client, tmp_path)
        sent = client.send_object(b"s" * SIZE)
        futures = [client.submit(lambda a, b: len(a) + len(b), bytes([i]) * LARGE, sent) for i in range(6)]
        scheduler.process.kill()
        scheduler.process.wait()
        restarted = stack.enter_context(command("scheduler", address, directory=tmp_path))
        restarted.addresses()
        go.touch()
        assert [future.result(30) for future in futures] == [SIZE + LARGE] * 6
