"""Failed tasks run again, by their client or another one, also after their client has left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.errors import ObjectLostError, UsageError
from scaler.ids import content_id
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.top.panels import as_json
from scaler.object_storage.server import EmbeddedStorage
from scaler.protocol.messages import FailedTask, ReadFailure, RunGroup, Spec, stored_reference
from tests.integration.client_rig import RigScheduler

BIG = 3_000_000


def total(path: str, *blobs: bytes) -> int:
    """Fail until there is this file."""
    if not Path(path).exists():
        print("nothing at", path)
        raise FileNotFoundError(f"no market data, {len(blobs)} blobs")
    return sum(map(len, blobs))


def fail_behind(gate: str) -> None:
    """Fail once there is this file."""
    while not Path(gate).exists():
        threading.Event().wait(0.01)
    raise FileNotFoundError("no market data")


def made(size: int) -> bytes:
    return bytes(size)


def failures_of(cluster: SchedulerClusterCombo) -> list[dict[str, Any]]:
    """Return the groups of failures that a new monitor sees, the newest first."""

    async def see() -> str:
        news = asyncio.Event()
        monitor = MonitorConnection(cluster.get_monitor_address(), news.set)
        try:
            async with asyncio.timeout(20):
                while not monitor.model.task_count:
                    await news.wait()
                    news.clear()
            return as_json(monitor.model, "")
        finally:
            monitor.close()

    found = json.loads(asyncio.run(see()))["failures"]
    assert isinstance(found, list)
    return found


def failed(cluster: SchedulerClusterCombo, submit: Callable[[Client], Any], **options: Any) -> bytes:
    """Return the id of a task that failed, and whose client has left."""
    with Client(cluster.get_address(), **options) as client:
        future = submit(client)
        assert isinstance(future.exception(), FileNotFoundError)
        identifier = future.task_id
        assert isinstance(identifier, bytes)
        return identifier


def again(cluster: SchedulerClusterCombo, task: bytes | str) -> Any:
    with Client(cluster.get_address()) as client:
        return client.run_again(task).result()


def test_a_task_of_a_client_that_has_left_runs_again_with_its_arguments(
    cluster: SchedulerClusterCombo, tmp_path: Path
) -> None:
    path = str(tmp_path / "market")
    graph = {"p": path, "n": 7, "a": (made, "n"), "b": (total, "p", "a")}
    for submit, expected in (
        (lambda client: client.submit(total, path, b"small"), 5),
        (lambda client: client.submit(total, path, client.submit(made, 5)), 5),
        (lambda client: client.get(graph, ["b"], block=False)["b"], 7),
    ):
        Path(path).unlink(missing_ok=True)
        task = failed(cluster, submit)
        with pytest.raises(FileNotFoundError):
            again(cluster, task)
        Path(path).touch()
        assert again(cluster, task.hex()) == expected


def test_a_future_that_failed_runs_again_with_what_was_sent_and_fails_again_alike(
    cluster: SchedulerClusterCombo, tmp_path: Path
) -> None:
    path = str(tmp_path / "market")
    with Client(cluster.get_address()) as client:
        sent = client.send_object(bytes(BIG))
        first = client.submit(total, path, sent, client.submit(made, BIG), bytes(BIG))
        with contextlib.suppress(FileNotFoundError):
            first.result()
        second = client.run_again(first)
        with pytest.raises(FileNotFoundError, match="no market data, 3 blobs"):
            second.result()
        assert second.task_id != first.task_id
        Path(path).touch()
        assert client.run_again(second).result() == 3 * BIG


def test_an_input_that_is_gone_is_named() -> None:
    task, function = b"another." + bytes(8), pickle.dumps(made)
    spec = Spec(function=content_id(function), name="total")
    inputs = pickle.dumps(1), stored_reference(task[:8] + b"\xff" * 8, BIG)
    run = RunGroup(spec, [task], [1], [pickle.dumps(())], [inputs])
    storage = EmbeddedStorage("tcp://127.0.0.1:0")
    try:
        with RigScheduler(storage=storage) as rig, Client(rig.address) as client, ThreadPoolExecutor() as threads:
            asked = threads.submit(client.run_again, task)
            number = rig.next(ReadFailure).number
            rig.say(FailedTask(task, [(spec.function, function)], [run], number=number))
            with pytest.raises(ObjectLostError, match=f"task {task.hex()} cannot run again: input 1 is gone"):
                asked.result()
    finally:
        storage.close()


def test_what_did_not_fail_or_never_ran_does_not_run_again_and_says_why(
    cluster: SchedulerClusterCombo, tmp_path: Path
) -> None:
    with Client(cluster.get_address()) as client:
        done = client.submit(made, 1)
        done.result()
        with pytest.raises(
            UsageError,
            match=f"task {done.task_id.hex()} cannot run again: it ended .*; only a task that ran and failed can",
        ):
            client.run_again(done)
        first = client.submit(fail_behind, str(tmp_path / "gate"))
        blocked = client.submit(total, first)
        assert client.explain(blocked), "the scheduler has the task"
        (tmp_path / "gate").touch()
        blocked.exception()
        with pytest.raises(UsageError, match=r"it did not run because its input fail_behind \(\w+\) failed"):
            client.run_again(blocked)
        with pytest.raises(UsageError, match="'17' is no task id"):
            client.run_again("17")


def test_the_command_prints_the_result_or_the_traceback(
    cluster: SchedulerClusterCombo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "market")
    task = failed(cluster, lambda client: client.submit(total, path, b"small"))
    command = ["run-again", task.hex(), cluster.get_address()]
    assert run_command("scaler", command) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert "FileNotFoundError: no market data, 1 blobs" in written.err
    assert "in total" in written.err
    Path(path).touch()
    assert run_command("scaler", command) == 0
    assert capsys.readouterr().out == "5\n"
    assert run_command("scaler", ["run-again", "00" * 16, cluster.get_address()]) == 2
    assert "no such task" in capsys.readouterr().err
