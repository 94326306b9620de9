"""`SchedulerClusterCombo` as used by programs."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from scaler import Client
from scaler.cluster.combo import SchedulerClusterCombo
from scaler.config.servers import SchedulerConfig, scheduler_model
from scaler.config.setting import describe
from scaler.config.worker_managers import ClusterConfig
from scaler.errors import ComponentError, ConfigError, UsageError
from tests.conftest import wait_for_end
from tests.integration.settings_rig import command

GIVEN_BY_THE_COMBO = {
    "bind_address",
    "scheduler_address",
    "worker_scheduler_address",
    "advertised_object_storage_address",
    "num_of_workers",
}


def components() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # also a zombie of an earlier test
            if "scaler.cluster" in process.cmdline():
                found.append(process)
    return found


def gone(processes: list[psutil.Process]) -> bool:
    return not wait_for_end(processes, seconds=10)


def printed_processes(output: str) -> list[psutil.Process]:
    """Return the processes with the printed ids that still exist."""
    pids = [int(pid) for pid in output.split()]
    assert pids
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def run_program(text: str, directory: Path) -> subprocess.CompletedProcess[str]:
    program = directory / "program.py"
    program.write_text(textwrap.dedent(text))
    command = [sys.executable, "-W", "error", str(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd="/", check=False)


def test_combo_has_addresses_and_stops_with_its_block() -> None:
    with SchedulerClusterCombo(n_workers=1) as combo:
        addresses = {combo.get_address(), combo.get_monitor_address(), combo.get_object_storage_address()}
        assert len(addresses) == 3
        assert all(address.startswith("tcp://127.0.0.1:") for address in addresses)
        processes = components()
        assert len(processes) == 2
        with Client(combo.get_address()) as client:
            future = client.submit(abs, -1)
            assert future.result() == 1
            assert "on worker local-1, " in client.explain(future)
    assert gone(processes)
    assert combo.failure is None
    combo.shutdown()
    assert "stopped" in repr(combo)


def test_combo_without_workers_accepts_external_workers(tmp_path: Path) -> None:
    with SchedulerClusterCombo(n_workers=0) as combo, Client(combo.get_address()) as client:
        assert "0 workers" in repr(combo)
        assert len(components()) == 1
        future = client.submit(abs, -1)
        with command("scaler_cluster", combo.get_address(), "-n", "1", directory=tmp_path):
            assert future.result(20) == 1


def test_unreferenced_combo_stops() -> None:
    combo = SchedulerClusterCombo(n_workers=1)
    processes = components()
    del combo
    gc.collect()
    assert gone(processes)


def test_combo_ends_with_its_program_without_a_main_guard(tmp_path: Path) -> None:
    result = run_program(
        """
        import psutil
        from scaler import SchedulerClusterCombo
        combo = SchedulerClusterCombo(n_workers=1)
        print(*(process.pid for process in psutil.Process().children(recursive=True)))
        """,
        tmp_path,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert gone(printed_processes(result.stdout))


def test_startup_failure_shows_the_components_own_error() -> None:
    with SchedulerClusterCombo(n_workers=1) as combo, pytest.raises(ComponentError) as caught:
        SchedulerClusterCombo(combo.get_address(), n_workers=1)
    assert re.search(r"scheduler .* ended before it was ready: exit code 2;.*is in use", str(caught.value), re.DOTALL)


def start_a_scheduler(address: str) -> int:
    service = subprocess.Popen([sys.executable, "-m", "scaler.cli", "scaler_scheduler", address, "-ll", "WARNING"])
    try:
        Client(address, timeout_seconds=20).disconnect()
    finally:
        service.terminate()
        code = service.wait()
    return code


def test_task_may_start_its_own_services(tmp_path: Path) -> None:
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as client:
        assert client.submit(start_a_scheduler, f"ipc://{tmp_path}/s").result(30) == 0


def test_invalid_argument_raises_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="n_workers"):
        SchedulerClusterCombo(n_workers=-1)
    with pytest.raises(ConfigError, match="heartbeat_interval_seconds"):
        SchedulerClusterCombo(n_workers=1, heartbeat_interval_seconds=-1)
    with pytest.raises(UsageError, match="free port"):
        SchedulerClusterCombo("tcp://127.0.0.1:0", 1)
    with pytest.raises(TypeError, match=r"preloads.*did you mean 'preload'\?"):
        SchedulerClusterCombo(n_workers=1, preloads="a:b")
    with pytest.raises(TypeError, match=r"n_worker'; did you mean 'n_workers'\?"):
        SchedulerClusterCombo(n_worker=1)
    with pytest.raises(UsageError, match="bind_address = 2: must be a valid string"):
        SchedulerClusterCombo(2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="set only one"):
        SchedulerClusterCombo(n_workers=1, per_worker_queue_size=1, per_worker_task_queue_size=1)
    with pytest.raises(ConfigError, match="per_worker_task_queue_size"):
        SchedulerClusterCombo(n_workers=1, per_worker_queue_size=-1)
    assert not components()


def test_every_key_of_scheduler_and_cluster_is_an_argument() -> None:
    keys = {*describe(scheduler_model()), *describe(ClusterConfig)} - GIVEN_BY_THE_COMBO
    parameters = inspect.signature(SchedulerClusterCombo).parameters
    assert set(parameters) == keys | {"address", "n_workers", "per_worker_queue_size", "name", "web_port"}, (
        "where libraries look"
    )
    assert parameters["client_timeout_seconds"].default == SchedulerConfig.client_timeout_seconds


def test_exit_of_a_forked_child_does_not_stop_the_combo() -> None:
    with SchedulerClusterCombo(n_workers=1) as combo:
        processes = components()
        child = os.fork()
        if child == 0:
            combo.shutdown()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert all(process.is_running() for process in processes)
