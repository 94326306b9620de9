"""Whole clusters whose tasks run on the fake Symphony, with scripted faults."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.errors import ProcessorDiedError, TaskTimeoutError
from scaler.testing.soamapi import Fault, StandIn
from tests.integration.settings_rig import Command, command
from tests.waiting import within

CONFIG = Path(__file__).parents[2] / "config/symphony.toml"
WAIT_SECONDS = 30.0
AGENT = "scaler.worker_manager.offload.service"
SERVICE = "scaler.worker_manager.symphony.service"


@dataclass
class Cluster:
    """Processes started by `scaler config/symphony.toml`."""

    address: str
    everything: Command

    def processes(self, module: str) -> list[psutil.Process]:
        """Return the processes that run this module."""
        found = []
        for process in self.everything.descendants():
            try:
                if module in process.cmdline():
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found


@contextmanager
def cluster(directory: Path, *faults: Fault, told: dict[str, str] | None = None, **stand_in: Any) -> Iterator[Cluster]:
    """Yield a cluster with these faults, settings, and fake, which must leave nothing behind."""
    ports = ReservedPorts(3)
    environment = {
        "SCALER_OBJECT_STORAGE_SERVER_BIND_ADDRESS": ports.address(1),
        "SCALER_SCHEDULER_BIND_ADDRESS": ports.address(),
        "SCALER_WORKER_MANAGER_HEARTBEAT_INTERVAL_SECONDS": "0.2",
        **StandIn(faults=faults, **stand_in).environment(),
        **(told or {}),
    }
    try:
        with command("scaler", str(CONFIG), directory=directory, **environment) as everything:
            everything.addresses()
            yield Cluster(ports.address(), everything)
            family = everything.descendants()
            assert everything.stop() == 0, everything.errors()
        _, alive = psutil.wait_procs(family, WAIT_SECONDS)
        assert not alive, "nothing is left running"
    finally:
        ports.release()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with password login and without scripted faults."""
    directory = tmp_path_factory.mktemp("shared")
    login = password_file(directory, "right")
    with cluster(directory, told=login, users={"Guest": "right"}, task_retry_limit=0) as running:
        yield running


def password_file(directory: Path, password: str) -> dict[str, str]:
    """Write a password readable only by its owner; return the settings that point the manager to it."""
    path = directory / "password"
    path.write_text(f"{password}\n")
    path.chmod(0o600)
    return {"SCALER_WORKER_MANAGER_SYMPHONY_PASSWORD_FILE": str(path)}


def square(value: int) -> int:
    return value * value


def test_two_thousand_tasks_scale_sessions_from_zero_and_back(tmp_path: Path) -> None:
    quick = {"SCALER_SCHEDULER_POLICY_ENGINE_TYPE": "target_v1", "SCALER_SCHEDULER_POLICY_CONTENT": "idle_seconds=0.5"}
    with cluster(tmp_path, told=quick) as running, Client(running.address) as client:
        assert running.processes(AGENT) == []
        futures = [client.submit(square, number) for number in range(50)]
        assert within(WAIT_SECONDS, lambda: len(running.processes(SERVICE)) == 2)
        assert len(running.processes(AGENT)) == 1
        assert [future.result(WAIT_SECONDS) for future in futures] == [number**2 for number in range(50)]
        assert client.map(square, range(2000)) == [number**2 for number in range(2000)]
        assert within(WAIT_SECONDS, lambda: not running.processes(AGENT) + running.processes(SERVICE))
        assert client.submit(square, 7).result(WAIT_SECONDS) == 49


def test_exceptions_deaths_and_timeouts_raise_different_errors(shared: Cluster) -> None:
    with Client(shared.address) as client:
        with pytest.raises(ZeroDivisionError) as caught:
            client.submit(lambda: 1 // 0).result(WAIT_SECONDS)
        assert "test_symphony.py" in str(caught.value.__cause__)
        with pytest.raises(ProcessorDiedError, match=r"retry limit of 0: its service instance ended \(exit code 7\)"):
            client.submit_verbose(os._exit, (7,), retries=1).result(WAIT_SECONDS)
        with pytest.raises(TaskTimeoutError, match=r"its time limit of 0\.3 s"):
            client.submit_verbose(time.sleep, (60,), timeout_seconds=0.3).result(WAIT_SECONDS)
        assert client.submit(square, 2).result(WAIT_SECONDS) == 4


def test_refused_user_sees_the_reason_but_never_the_password(tmp_path: Path) -> None:
    login = password_file(tmp_path, "hunter2-is-wrong")
    with cluster(tmp_path, told=login, users={"Guest": "other"}) as running, Client(running.address) as client:
        future = client.submit(square, 2)
        assert within(WAIT_SECONDS, lambda: "user Guest could not be authenticated" in running.everything.output())
        for process in running.everything.descendants():
            try:
                told = [*process.cmdline(), *process.environ().values()]
            except psutil.NoSuchProcess:
                continue
            assert not [text for text in told if "hunter2" in text]
        future.cancel()
    assert not re.search("hunter2", "".join(path.read_text() for path in tmp_path.glob("*.out")))
