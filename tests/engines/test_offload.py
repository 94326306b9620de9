"""An offload agent between a real scheduler and jobs that are processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from scaler import Client
from scaler.errors import UsageError
from tests.integration.settings_rig import Command, command
from tests.waiting import within

WAIT_SECONDS = 30.0
MANAGER = """
import json, sys
from scaler.worker_manager.baremetal_native import BaremetalNativeConfig
from scaler.worker_manager import main
from scaler.worker_manager.offload import OffloadBackend

settings = json.loads(sys.argv[2])
main.load_backend = lambda config: OffloadBackend(
    config, settings.pop("executor"), settings.pop("slots"), settings, stop_grace_seconds=settings.pop("grace")
)
sys.exit(main.run(BaremetalNativeConfig.from_json(sys.argv[1])))
"""


class Manager:
    """A worker manager whose tasks run in processes of its executor."""

    def __init__(self, address: str, directory: Path, settings: dict[str, Any]) -> None:
        config = {"scheduler_address": address, "worker_manager_id": "offload", "heartbeat_interval_seconds": 0.2}
        defaults = {"executor": "scaler.testing.executors:ProcessExecutor", "slots": 4, "processes": 2, "grace": 1.0}
        self._out = directory / "manager.out"
        with self._out.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MANAGER, json.dumps(config), json.dumps({**defaults, **settings})],
                stdout=out,
                stderr=out,
            )

    def output(self) -> str:
        return self._out.read_text()

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def cluster(directory: Path, *flags: str, **settings: Any) -> Iterator[tuple[Client, Manager]]:
    """Yield a client and the only manager of its cluster, which must leave nothing behind."""
    words = ("scaler_scheduler", "tcp://127.0.0.1:0", *flags)
    with command(*words, directory=directory) as scheduler:
        address = address_of(scheduler)
        manager = Manager(address, directory, settings)
        try:
            with Client(address) as client:
                yield client, manager
            family = manager.family()
            assert manager.end() == 0, manager.output()
            assert not [process for process in family if process.is_running()]
        finally:
            manager.process.kill()
            manager.process.wait()


def address_of(scheduler: Command) -> str:
    return scheduler.addresses()["scheduler"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A shared client for tests without faults."""
    with cluster(tmp_path_factory.mktemp("shared")) as (client, _):
        yield client


def square(value: int) -> int:
    return value * value


def test_large_arguments_results_and_inputs_of_other_tasks_go_through_the_object_storage(client: Client) -> None:
    array = np.arange(500_000)
    doubled = client.submit(lambda a: a * 2, array)
    summed = client.submit(lambda a, b: int(a.sum() + b), doubled, client.submit(square, 3))
    shared = client.send_object(array)
    assert summed.result(WAIT_SECONDS) == int(array.sum()) * 2 + 9
    assert (doubled.result(WAIT_SECONDS) == array * 2).all()
    assert client.submit(len, shared).result(WAIT_SECONDS) == len(array)


def test_client_inside_a_job_is_refused_with_the_reason(client: Client) -> None:
    with pytest.raises(UsageError, match="runs as a separate job"):
        client.submit(lambda: Client()).result(WAIT_SECONDS)  # noqa: PLW0108 (Client itself would be a job's function)


def test_client_receives_output_and_cost_of_tasks(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    future = client.submit_verbose(print, ("hello from a job",), stream_output=True, profiling=True)
    assert future.result(WAIT_SECONDS) is None
    assert within(WAIT_SECONDS, lambda: "hello from a job" in capfd.readouterr().out)
    assert future.profiling_info().cpu_time_s > 0
    quiet = client.submit(print, "kept for later")
    quiet.result(WAIT_SECONDS)
    assert client.logs(quiet).stdout == "kept for later\n"
    assert client.explain(quiet).startswith("it ended ")


def slow_at_first(directory: str, number: int) -> int:
    mark = Path(directory, f"{number}.ran")
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        signal.pause()
    return number


def test_killed_manager_leaves_nothing_and_its_successor_runs_its_tasks(tmp_path: Path) -> None:
    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=tmp_path) as scheduler:
        address = address_of(scheduler)
        first = Manager(address, tmp_path, {"grace": 0.2})
        with Client(address) as client:
            future = client.submit(slow_at_first, str(tmp_path), 0)
            assert within(WAIT_SECONDS, lambda: list(tmp_path.glob("*.ran")))
            family = first.family()
            first.process.kill()
            first.process.wait()
            second = Manager(address, tmp_path, {"grace": 0.2})
            try:
                assert future.result(WAIT_SECONDS) == 0
                assert within(WAIT_SECONDS, lambda: not [process for process in family if process.is_running()])
                assert second.end() == 0, second.output()
            finally:
                second.process.kill()
                second.process.wait()
