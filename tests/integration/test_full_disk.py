"""A cluster with a state directory on a full disk, simulated by a file size limit."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.config.addresses import beside
from scaler.errors import LimitError, TaskRejectedError
from scaler.journal.journal import SEGMENT_BYTES
from scaler.monitor.cluster_rows import Status
from scaler.monitor.connection import MonitorConnection
from tests.integration.launcher_rig import Launcher, launched, write_stack
from tests.waiting import soon, until, wait_for_file

SMALL_BYTES = 32 * 1024 * 1024
"""Less than a segment of a journal."""


def limit_files(process: psutil.Process, size_bytes: int) -> None:
    """Set the file size limit of processes and their children."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))


def scheduler_of(launcher: Launcher) -> psutil.Process:
    (found,) = [each for each in launcher.components() if each.cmdline()[-1:] == ["scheduler"]]
    return found


@pytest.fixture
def file(tmp_path: Path, ports: ReservedPorts) -> Path:
    path = tmp_path / "stack.toml"
    return write_stack(path, ports.address(), state_directory=tmp_path / "state")


def wait_and_touch(gate: Path, path: Path) -> str:
    """Leave a trace of every run once the gate exists."""
    wait_for_file(gate)
    with path.open("a") as trace:
        trace.write("ran\n")
    return "done"


def wait_for_status(scheduler: str, condition: Callable[[Status], bool]) -> None:
    """Monitor the cluster until the condition holds."""

    async def watch() -> None:
        monitor = MonitorConnection(beside(scheduler, 2, ".monitor"))
        try:
            await soon(lambda: condition(monitor.model.status))
        finally:
            monitor.close()

    asyncio.run(watch())


def accepts(client: Client) -> bool:
    return client.submit(abs, -1).exception(timeout=20) is None


def test_cluster_on_a_full_disk_refuses_work_until_there_is_room(
    file: Path, tmp_path: Path, ports: ReservedPorts
) -> None:
    limit_files(psutil.Process(), SMALL_BYTES)
    try:
        launcher = Launcher(file, {})
    finally:
        limit_files(psutil.Process(), resource.RLIM_INFINITY)
    try:
        assert launcher.wait_ready()
        with Client(ports.address()) as client:
            for kind, error, refused in (
                ("scheduler", TaskRejectedError, client.submit(abs, -1)),
                ("objects", LimitError, client.submit(len, bytes(100_000))),
            ):
                text = f"state_directory: cannot write to {tmp_path / 'state' / kind}: .*until 64 MiB are free there"
                with pytest.raises(error, match=text):
                    refused.result(timeout=20)
            wait_for_status(
                ports.address(),
                lambda status: (
                    f"{tmp_path / 'state' / 'scheduler'}: " in status.scheduler.disk_failure
                    and f"{tmp_path / 'state' / 'objects'}: " in status.storage.disk_failure
                    and not status.scheduler.journal_bytes
                ),
            )
            limit_files(scheduler_of(launcher), resource.RLIM_INFINITY)
            until(lambda: accepts(client))
            assert client.submit(len, bytes(100_000)).result(timeout=20) == 100_000
            wait_for_status(
                ports.address(),
                lambda status: (
                    not status.scheduler.disk_failure
                    and not status.storage.disk_failure
                    and status.scheduler.journal_bytes >= SEGMENT_BYTES
                    and status.storage.state_bytes >= SEGMENT_BYTES
                ),
            )
        code, _, errors = launcher.stop()
    finally:
        launcher.close()
    assert code == 0, errors


def test_full_reserve_refuses_tasks_until_there_is_room(file: Path, tmp_path: Path, ports: ReservedPorts) -> None:
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    with launched(file) as launcher:
        assert launcher.wait_ready()
        scheduler = scheduler_of(launcher)
        with Client(ports.address()) as client:
            waits = client.submit_verbose(wait_and_touch, (gate, trace), retries=0)
            until(waits.running)
            limit_files(scheduler, 1024)
            gate.touch()
            until(lambda: "and other work waits until" in client.explain(waits))
            with pytest.raises(TaskRejectedError, match=r"and other work waits until .* MiB are free there"):
                client.submit(abs, -1).result(timeout=20)
            assert not waits.done()
            limit_files(scheduler, resource.RLIM_INFINITY)
            assert waits.result(timeout=20) == "done"
            until(lambda: accepts(client))
        code, _, errors = launcher.stop()
    assert code == 0, errors
    assert trace.read_text() == "ran\n"
