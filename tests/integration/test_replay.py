"""A failed task of a cluster replayed in this process, from its future and from a file."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.errors import ObjectLostError, UsageError
from scaler.ids import content_id
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.messages import FailedTask, ReadFailure
from scaler.monitor.top.panels import as_json
from scaler.object_storage.server import EmbeddedStorage
from scaler.protocol.messages import RunGroup, Spec, stored_reference
from tests.integration.client_rig import RigScheduler
from tests.waiting import wait_for_file

BIG = 3_000_000


def total(path: str, *blobs: bytes) -> tuple[int, int]:
    print("looks at", path)
    if not Path(path).exists():
        raise FileNotFoundError(f"no market data, {len(blobs)} blobs")
    return sum(map(len, blobs)), os.getpid()


async def slow_total(path: str) -> int:
    await asyncio.sleep(0)
    return total(path)[0]


def made(size: int) -> bytes:
    return bytes(size)


def fail_behind(gate: str) -> None:
    """Fail once this file exists."""
    wait_for_file(gate)
    raise FileNotFoundError("no market data")


def skew(path: str, number: int) -> int:
    if number == 1 and not Path(path).exists():
        raise ValueError(f"skew {number}")
    return number


def failures_of(cluster: SchedulerClusterCombo) -> list[dict[str, Any]]:
    """Return the groups of failures that a new monitor sees, newest first."""

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


def test_failed_task_replays_locally_with_its_inputs(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    path = str(tmp_path / "market")
    with Client(cluster.get_address()) as client:
        sent, future = client.send_object(bytes(BIG)), client.submit(made, 5)
        failed = [
            client.submit(total, path, b"small"),
            client.submit(total, path, bytes(BIG)),
            client.submit(total, path, sent, future),
        ]
        coroutine = client.submit(slow_total, path)
        for task in (*failed, coroutine):
            assert isinstance(task.exception(), FileNotFoundError)
            with pytest.raises(FileNotFoundError, match="no market data"):
                client.replay(task)
        Path(path).touch()
        here = os.getpid()
        assert [client.replay(task) for task in failed] == [(5, here), (BIG, here), (BIG + 5, here)]
        assert client.replay(coroutine) == 0
    with Client(cluster.get_address()) as another:
        assert another.replay(failed[0].task_id.hex()) == (5, here)


def test_failing_map_item_raises_at_its_position(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    path = str(tmp_path / "market")
    with Client(cluster.get_address()) as client:
        client.map(skew, [path] * 4, range(4), chunk_size=2, return_exceptions=True)
        [chunk] = [each["task"] for each in failures_of(cluster) if each["function"] == "skew"]
        with pytest.raises(ValueError, match=r"^skew 1$") as raised:
            client.replay(chunk)
        assert raised.traceback[-1].name == "skew"
        Path(path).touch()
        assert client.replay(chunk) == [0, 1]


def test_names_a_lost_input() -> None:
    task, function = b"another." + bytes(8), pickle.dumps(made)
    spec = Spec(function=content_id(function), name="total")
    inputs = pickle.dumps(1), stored_reference(task[:8] + b"\xff" * 8, BIG)
    run = RunGroup(spec, [task], [1], [pickle.dumps(())], [inputs])
    storage = EmbeddedStorage("tcp://127.0.0.1:0")
    try:
        with RigScheduler(storage=storage) as rig, Client(rig.address) as client, ThreadPoolExecutor() as threads:
            asked = threads.submit(client.replay, task)
            number = rig.next(ReadFailure).number
            rig.say(FailedTask(task, [(spec.function, function)], [run], number=number))
            with pytest.raises(ObjectLostError, match=f"task {task.hex()} cannot be replayed: input 1 is gone"):
                asked.result()
    finally:
        storage.close()


def test_does_not_replay_a_task_that_did_not_fail(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    with Client(cluster.get_address()) as client:
        done = client.submit(made, 1)
        done.result()
        with pytest.raises(UsageError, match=r"cannot be replayed: it ended .*; only a task that ran and failed can"):
            client.replay(done)
        with pytest.raises(UsageError, match="cannot be bundled: it ended"):
            client.bundle(done, tmp_path / "none.zip")
        assert not (tmp_path / "none.zip").exists()
        first = client.submit(fail_behind, str(tmp_path / "gate"))
        blocked = client.submit(made, first)
        assert client.explain(blocked), "the scheduler has the task"
        (tmp_path / "gate").touch()
        blocked.exception()
        with pytest.raises(UsageError, match=r"it did not run because its input fail_behind \(\w+\) failed"):
            client.replay(blocked)
        with pytest.raises(UsageError, match="'17' is not a task id"):
            client.replay("17")


def test_bundle_shows_the_failure_and_replays_it_locally(
    cluster: SchedulerClusterCombo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "market")
    with Client(cluster.get_address()) as client:
        task = client.submit(total, path, client.send_object(bytes(BIG)), client.submit(made, 5))
        task.exception()
        bundle = client.bundle(task, tmp_path / "failed.zip")
        with pytest.raises(UsageError, match="cannot write"):
            client.bundle(task, tmp_path / "missing" / "failed.zip")
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert manifest["function"] == "total"
        assert manifest["task"] == task.task_id.hex()
        assert manifest["error"] == "FileNotFoundError: no market data, 2 blobs"
        assert "cloudpickle" in manifest["environment_of_client"]["packages"]
        assert archive.read("stdout.txt").decode() == f"looks at {path}\n"
        assert "in total" in archive.read("traceback.txt").decode()
    assert run_command("scaler", ["replay", str(bundle)]) == 1
    assert "FileNotFoundError: no market data, 2 blobs" in capsys.readouterr().err
    Path(path).touch()
    assert run_command("scaler", ["replay", str(bundle)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == repr((BIG + 5, os.getpid()))
