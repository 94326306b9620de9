"""`scaler FILE` from a user's view: start, stop, and failure in every phase."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from tests.integration.launcher_rig import Launcher, launched, wait_until_gone, write_stack


@pytest.fixture
def stack_file(tmp_path: Path, ports: ReservedPorts) -> Path:
    return write_stack(tmp_path / "stack.toml", ports.address(), ports.address(1))


def own_lines(lines: list[str]) -> list[str]:
    return [line.removeprefix("scaler: ") for line in lines if line.startswith("scaler: ")]


def test_file_starts_in_order_and_stops_in_reverse(stack_file: Path, ports: ReservedPorts) -> None:
    with launched(stack_file) as launcher:
        assert launcher.wait_ready()
        processes = launcher.components()
        code, output, errors = launcher.stop()
    assert code == 0, errors
    lines = own_lines(output)
    assert [line.partition(" is ready")[0] for line in lines[:3]] == [
        "object storage server",
        "scheduler",
        "worker manager here",
    ]
    assert ports.address() in lines[1]
    assert lines[3:] == [
        "all components are ready; press Ctrl-C to stop",
        f'connect with Client("stack") or Client("{ports.address()}")',
        "stopping",
        "worker manager here has ended",
        "scheduler has ended",
        "object storage server has ended",
    ]
    wait_until_gone(processes)


def component(launcher: Launcher, kind: str) -> psutil.Process:
    (found,) = [process for process in launcher.components() if process.cmdline()[-1:] == [kind]]
    return found


def test_killed_components_restart_and_a_client_continues(stack_file: Path, ports: ReservedPorts) -> None:
    killed = {}
    with launched(stack_file) as launcher:
        assert launcher.wait_ready()
        with Client(ports.address()) as client:
            assert client.submit(abs, -1).result(10) == 1
            for kind in ("scheduler", "object-storage-server", "worker-manager"):
                process = component(launcher, kind)
                killed[kind] = process.pid
                process.kill()
                process.wait(10)
                assert client.submit(abs, -2).result(10) == 2
                assert client.submit(len, b"x" * 3_000_000).result(10) == 3_000_000
        processes = launcher.components()
        code, _, errors = launcher.stop(signal.SIGTERM)
    assert code == 0, errors
    names = ("scheduler", "object storage server", "worker manager here")
    assert own_lines(errors) == [
        f"{name} ended unexpectedly and is being restarted: signal=SIGKILL pid={pid} restarts=1 delay_seconds=0"
        for name, pid in zip(names, killed.values(), strict=True)
    ]
    wait_until_gone(processes)


@pytest.mark.full
def test_server_returns_once_a_foreign_program_frees_its_port(stack_file: Path, ports: ReservedPorts) -> None:
    with launched(stack_file) as launcher:
        assert launcher.wait_ready()
        assert launcher.process.stderr is not None
        scheduler = component(launcher, "scheduler")
        with Client(ports.address()) as client:
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                scheduler.kill()
                scheduler.wait(10)
                other.bind(("127.0.0.1", ports.first))
                other.listen()
                lines = []
                for line in launcher.process.stderr:
                    lines.append(line)
                    if "restarts=2" in line:
                        break
            assert client.submit(abs, -1).result(20) == 1
        code, _, _ = launcher.stop(signal.SIGHUP)
    assert code == 0
    assert any(f"{ports.address()}: it is in use by another program" in line for line in lines)
    assert "exit_code=2" in lines[-1]


def test_killed_launcher_leaves_nothing_running(stack_file: Path) -> None:
    with launched(stack_file) as launcher:
        assert launcher.wait_ready()
        processes = launcher.components()
        launcher.process.kill()
        wait_until_gone(processes)


def test_launcher_exits_with_its_parent_program(stack_file: Path) -> None:
    with (
        subprocess.Popen(["/bin/sleep", "60"]) as program,
        launched(stack_file, SCALER_PARENT_PID=str(program.pid)) as launcher,
    ):
        assert launcher.wait_ready()
        program.kill()
        code, _, errors = launcher.end()
    assert code == 0, errors
