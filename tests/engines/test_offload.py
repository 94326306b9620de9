"""An offload agent between a real scheduler and jobs that are processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from scaler import Client
from scaler.errors import ProcessorDiedError, TaskTimeoutError, UsageError
from tests.integration.settings_rig import Command, command
from tests.waiting import within

WAIT_SECONDS = 30.0
MANAGER = """
import json, sys
from scaler.worker_manager.baremetal_native import BaremetalNativeConfig
from scaler.worker_manager import runner
from scaler.worker_manager.offload import OffloadBackend

settings = json.loads(sys.argv[2])
runner.load_backend = lambda config: OffloadBackend(
    config, settings.pop("executor"), settings.pop("slots"), settings, stop_grace_seconds=settings.pop("grace")
)
sys.exit(runner.run(BaremetalNativeConfig.from_json(sys.argv[1])))
"""


class Manager:
    """A worker manager whose tasks run in processes that its executor starts."""

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
    """Yield a client and the only manager of its cluster. In the end nothing of the manager may be left."""
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


def square(value: int) -> int:
    return value * value


def test_two_thousand_tasks_start_an_agent_and_nothing_is_left_in_the_end(tmp_path: Path) -> None:
    with cluster(tmp_path) as (client, manager):
        assert not manager.family()
        futures = [client.submit(square, number) for number in range(2000)]
        assert [future.result(WAIT_SECONDS) for future in futures] == [number**2 for number in range(2000)]


def test_large_arguments_results_and_inputs_of_other_tasks_go_through_the_object_storage(tmp_path: Path) -> None:
    with cluster(tmp_path) as (client, _):
        array = np.arange(500_000)
        doubled = client.submit(lambda a: a * 2, array)
        summed = client.submit(lambda a, b: int(a.sum() + b), doubled, client.submit(square, 3))
        shared = client.send_object(array)
        assert summed.result(WAIT_SECONDS) == int(array.sum()) * 2 + 9
        assert (doubled.result(WAIT_SECONDS) == array * 2).all()
        assert client.submit(len, shared).result(WAIT_SECONDS) == len(array)


def look_up() -> int:
    table: dict[str, int] = {}
    return table["x"]


def test_failures_are_told_apart(tmp_path: Path) -> None:
    def nested() -> None:
        Client()

    with cluster(tmp_path) as (client, _):
        raised = client.submit(look_up)
        died = client.submit_verbose(os._exit, (7,), retries=1)
        late = client.submit_verbose(time.sleep, (60,), timeout_seconds=0.2)
        inside = client.submit(nested)
        with pytest.raises(KeyError) as caught:
            raised.result(WAIT_SECONDS)
        assert "in look_up" in str(caught.value.__cause__)
        with pytest.raises(ProcessorDiedError, match="exit code 7"):
            died.result(WAIT_SECONDS)
        with pytest.raises(UsageError, match="runs as a job of its own"):
            inside.result(WAIT_SECONDS)
        with pytest.raises(TaskTimeoutError, match=r"its time limit of 0\.2 s"):
            late.result(WAIT_SECONDS)


def test_what_tasks_print_and_cost_reaches_the_client(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with cluster(tmp_path) as (client, _):
        future = client.submit_verbose(print, ("hello from a job",), stream_output=True, profiling=True)
        assert future.result(WAIT_SECONDS) is None
        assert within(WAIT_SECONDS, lambda: "hello from a job" in capfd.readouterr().out)
        assert future.profiling_info().cpu_time_s > 0
        quiet = client.submit(print, "kept for later")
        quiet.result(WAIT_SECONDS)
        assert client.logs(quiet).stdout == "kept for later\n"
        assert client.explain(quiet).startswith("it ended ")


def test_a_service_that_refuses_at_first_is_asked_again_and_nobody_is_charged(tmp_path: Path) -> None:
    with cluster(tmp_path, refusals=2) as (client, manager):
        futures = [client.submit_verbose(square, (number,), retries=0) for number in range(50)]
        assert [future.result(WAIT_SECONDS) for future in futures] == [number**2 for number in range(50)]
        assert "tasks cannot be handed on: the service is busy; trying again" in manager.output()
        assert "tasks can run again" in manager.output()


def test_a_cancelled_task_ends_where_it_runs(tmp_path: Path) -> None:
    def hang(path: str) -> None:
        Path(path).write_text(str(os.getpid()))
        time.sleep(60)

    mark = tmp_path / "pid"
    with cluster(tmp_path) as (client, _):
        future = client.submit(hang, str(mark))
        assert within(WAIT_SECONDS, lambda: mark.exists() and mark.read_text())
        process = psutil.Process(int(mark.read_text()))
        assert within(WAIT_SECONDS, future.running)
        assert future.cancel()
        assert within(WAIT_SECONDS, lambda: not process.is_running())


def slow_at_first(directory: str, number: int) -> int:
    mark = Path(directory, f"{number}.ran")
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        time.sleep(60)
    return number


def agent_of(manager: Manager) -> psutil.Process:
    [agent] = [child for child in manager.family() if "scaler.worker_manager.offload" in child.cmdline()]
    return agent


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_tasks_of_an_agent_that_ends_are_run_by_the_next(tmp_path: Path, how: signal.Signals) -> None:
    with cluster(tmp_path, "--worker-timeout-seconds", "1", grace=0.2) as (client, manager):
        futures = [client.submit(slow_at_first, str(tmp_path), number) for number in range(2)]
        assert within(WAIT_SECONDS, lambda: len(list(tmp_path.glob("*.ran"))) == 2)
        first = agent_of(manager)
        jobs = first.children()
        first.send_signal(how)
        assert sorted(future.result(WAIT_SECONDS) for future in futures) == [0, 1]
        assert agent_of(manager).pid != first.pid
        assert within(WAIT_SECONDS, lambda: not [job for job in jobs if job.is_running()])


def test_a_manager_that_is_killed_leaves_nothing_and_its_tasks_are_run_by_the_next(tmp_path: Path) -> None:
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


def test_an_executor_that_cannot_start_is_the_reason_that_people_see(tmp_path: Path) -> None:
    with cluster(tmp_path, executor="scaler.testing.executors:nothing") as (client, manager):
        future = client.submit(square, 2)
        assert within(WAIT_SECONDS, lambda: "executor 'scaler.testing.executors:nothing' cannot be" in manager.output())
        future.cancel()
