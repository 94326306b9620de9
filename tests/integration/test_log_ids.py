"""Ids in log lines, by which a worker, a manager, a client, or a task is named in all of them."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from scaler import Client
from tests.integration.settings_rig import command
from tests.waiting import until


def die_once(path: str) -> int:
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1


def json_to(file: Path) -> tuple[str, ...]:
    return "--logging-format", "json", "-lp", str(file)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_services_and_workers_use_the_same_call_ids(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "scheduler.log", tmp_path / "workers.log"
    with command("scheduler", "tcp://127.0.0.1:0", *json_to(ours), directory=tmp_path) as scheduler:
        address = scheduler.addresses()["scheduler"]
        flags = ("-n", "1", "-wmi", "here", *json_to(theirs))
        with command("cluster", address, *flags, directory=tmp_path), Client(address) as client:
            future = client.submit(die_once, str(tmp_path / "died"))
            assert future.result(20) == 1
            identity, task = client.identity.hex(), future.task_id.hex()
    own, told = lines_of(theirs), lines_of(ours)
    assert {line["component"] for line in own + told} == {"scheduler", "worker_manager", "worker"}
    assert {line["manager_id"] for line in own} == {"here"}

    joined = {line["message"].split()[0]: line for line in told if line["message"].endswith("joined")}
    assert joined["manager"]["manager_id"] == "here"
    assert joined["client"]["client_id"] == identity
    (worker,) = {line["worker_id"] for line in own if line["component"] == "worker"}
    assert joined["worker"]["worker_id"] == worker
    (pid,) = {line["pid"] for line in own if line["component"] == "worker"}
    assert joined["worker"]["message"] == f"worker here-1 ({socket.gethostname()}, pid {pid}) joined"
    assert [line["message"] for line in own].count("the scheduler named this worker here-1") == 1

    died = next(line for line in own if "killed by signal 9" in line["message"])
    again = next(line for line in told if "runs again" in line["message"])
    assert (died["task_id"], died["worker_id"], again["task_id"]) == (task, worker, task)


def test_prints_of_a_task_reach_the_output_of_its_worker_before_the_processor_ends(tmp_path: Path) -> None:
    with command("scheduler", "tcp://127.0.0.1:0", directory=tmp_path) as scheduler:
        address = scheduler.addresses()["scheduler"]
        with command("cluster", address, "-n", "1", directory=tmp_path), Client(address) as client:
            client.submit(print, "said by a task").result(20)
            (output,) = tmp_path.glob("cluster-*.out")
            until(lambda: "said by a task\n" in output.read_text())
