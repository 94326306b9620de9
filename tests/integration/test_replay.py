"""A failed task of a cluster, run again in this process: by its future, and from a file."""

from __future__ import annotations

import asyncio
import json
import os
import zipfile
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.errors import UsageError
from tests.integration.test_run_again import failures_of

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


def skew(path: str, number: int) -> int:
    if number == 1 and not Path(path).exists():
        raise ValueError(f"skew {number}")
    return number


def test_a_failed_task_runs_here_with_its_inputs(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
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
        assert client.replay(failed[0].task_id.hex()) == (5, here)


def test_of_a_map_the_item_that_fails_raises_where_it_is(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    path = str(tmp_path / "market")
    with Client(cluster.get_address()) as client:
        client.map(skew, [path] * 4, range(4), chunk_size=2, return_exceptions=True)
        [chunk] = [each["task"] for each in failures_of(cluster) if each["function"] == "skew"]
        with pytest.raises(ValueError, match=r"^skew 1$") as raised:
            client.replay(chunk)
        assert raised.traceback[-1].name == "skew"
        Path(path).touch()
        assert client.replay(chunk) == [0, 1]


def test_a_task_that_did_not_fail_is_not_replayed(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    with Client(cluster.get_address()) as client:
        done = client.submit(made, 1)
        done.result()
        with pytest.raises(UsageError, match="cannot be replayed: it ended"):
            client.replay(done)
        with pytest.raises(UsageError, match="cannot be bundled: it ended"):
            client.bundle(done, tmp_path / "none.zip")
        assert not (tmp_path / "none.zip").exists()


def test_a_bundle_shows_what_failed_and_runs_it_without_a_cluster(
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
