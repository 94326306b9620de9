"""A cluster with a state directory: all its processes are killed and restarted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cluster.supervisor import ReservedPorts
from tests.integration.launcher_rig import Launcher, launched, wait_until_gone, write_stack
from tests.waiting import until, wait_for_file


@pytest.fixture
def file(tmp_path: Path, ports: ReservedPorts) -> Path:
    return write_stack(tmp_path / "stack.toml", ports.address(), state_directory=tmp_path / "state")


def kill(launcher: Launcher) -> None:
    """Kill the launcher and all its processes at once, like a machine failure."""
    processes = launcher.components()
    for pid in (launcher.process.pid, *(process.pid for process in processes)):
        os.kill(pid, signal.SIGKILL)
    launcher.process.wait()
    wait_until_gone([each for each in processes if psutil.pid_exists(each.pid)])


def touch(path: Path, number: int) -> int:
    """Leave a trace of every run."""
    with (path / str(number)).open("a") as file:
        file.write("ran\n")
    return number


def test_cluster_resumes_after_a_kill_with_its_launcher(file: Path, tmp_path: Path, ports: ReservedPorts) -> None:
    gate, traces = tmp_path / "gate", tmp_path / "traces"
    traces.mkdir()
    with launched(file) as first:
        assert first.wait_ready()
        client = Client(ports.address())
        done = [client.submit(touch, traces, number) for number in range(3)]
        assert [future.result() for future in done] == [0, 1, 2]
        running = client.submit(wait_for_file, gate)
        until(running.running)
        queued = [client.submit(touch, traces, number) for number in range(3, 6)]
        once = [client.submit_verbose(touch, (traces, number), retries=0) for number in range(6, 9)]
        large = client.submit(bytes.upper, b"a" * 3_000_000)  # the argument is in the object storage
        # The scheduler answers once its journal has all earlier messages.
        until(lambda: "in the client" not in client.explain(large))
        kill(first)
    gate.touch()
    with launched(file) as second:
        assert second.wait_ready()
        assert running.result(timeout=30) is None
        assert [future.result(timeout=30) for future in queued] == [3, 4, 5]
        assert [future.result(timeout=30) for future in once] == [6, 7, 8]
        assert large.result(timeout=30) == b"A" * 3_000_000
        client.disconnect()
        code, output, errors = second.stop()
    assert code == 0, errors
    assert any("recovered 8 unfinished tasks and" in line for line in output)
    assert [(traces / str(number)).read_text() for number in range(9)] == ["ran\n"] * 9


def test_durable_session_outlives_the_cluster(file: Path, tmp_path: Path, ports: ReservedPorts) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    with launched(file) as first:
        assert first.wait_ready()
        client = Client(ports.address(), session="nightly")
        assert client.map(touch, [traces] * 3, range(3), keys="abc") == [0, 1, 2]
        kill(first)
    client.disconnect()
    with launched(file) as second:
        assert second.wait_ready()
        with Client(ports.address(), session="nightly") as client:
            assert [future.result(timeout=30) for future in client.futures("touch")] == [0, 1, 2]
            assert client.map(touch, [traces] * 4, range(4), keys="abcd") == [0, 1, 2, 3]
        code, _, errors = second.stop()
    assert code == 0, errors
    assert [(traces / str(number)).read_text() for number in range(4)] == ["ran\n"] * 4


def test_files_that_hang_on_opening_delay_no_task(tmp_path: Path) -> None:
    """Opening a FIFO without a reader blocks, like opening a file on a hung disk."""
    state, audit = tmp_path / "state", tmp_path / "audit.jsonl"
    (state / "scheduler").mkdir(mode=0o700, parents=True)
    for path in (audit, state / "scheduler" / "spending.new"):
        os.mkfifo(path)
    with (
        SchedulerClusterCombo(n_workers=1, state_directory=str(state), audit_path=str(audit)) as combo,
        Client(combo.get_address()) as client,
    ):
        assert [client.submit(abs, -number).result(20) for number in range(20)] == list(range(20))
