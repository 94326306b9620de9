"""Effects on peers of killing and restarting the component that they use."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from scaler.security.run import find
from tests.integration.free_ports import free_addresses


def kill_component(kind: str) -> None:
    """Kill the component of this kind among our children, and wait for its exit."""
    (process,) = (each for each in psutil.Process().children() if command_line(each)[-2:] == ["scaler.cluster", kind])
    process.kill()
    process.wait(10)


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty after its exit."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Location of the run keys of a test."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "scaler"


@pytest.fixture
def over_zeromq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of this process need keys, like those of another host."""
    monkeypatch.setattr("scaler.net.connector.connect_local", lambda *_: None)


@pytest.mark.usefixtures("over_zeromq")
def test_run_keys_of_a_restarted_server_are_found_at_once(runtime: Path) -> None:
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as client:
        assert client.submit(abs, -1).result(20) == 1
        before = find(combo.get_address())
        kill_component("scheduler")
        assert client.submit(len, b"x" * 1_000_000).result(20) == 1_000_000
        after = find(combo.get_address())
        assert before is not None
        assert after is not None
        assert before.server != after.server
        assert len(list(runtime.glob("*.keys"))) == 2, "the keys of the killed scheduler and its storage are gone"
    assert list(runtime.glob("*.keys")) == []


def test_client_with_a_key_regains_its_objects_after_either_server_restarts(tmp_path: Path) -> None:
    keys = KeysDirectory.create(tmp_path / "keys", "test")
    path = tmp_path / "alice.credentials"
    write_private(path, keys.add("alice", "client").to_text())
    scheduler, _, _, storage = free_addresses("0.0.0.0", 4)
    far = scheduler.replace("0.0.0.0", "127.0.0.2")  # reached only by TCP
    with (
        SchedulerClusterCombo(scheduler, 1, object_storage_address=storage, credentials=str(keys.path)),
        Client(far, credentials=str(path), timeout_seconds=20) as client,
    ):
        assert client.submit(len, b"x" * 2_000_000).result(20) == 2_000_000
        for kind in ("scheduler", "object-storage-server"):
            kill_component(kind)
            assert client.submit(len, os.urandom(2_000_000)).result(20) == 2_000_000


@pytest.mark.timeout(240)  # nine processes start one by one, each in seconds on a busy machine
@pytest.mark.usefixtures("runtime")
def test_cluster_started_by_a_client_recovers_part_by_part() -> None:
    with Client(n_workers=1) as client:
        assert client.submit(abs, -1).result(60) == 1
        for kind in ("worker-manager", "scheduler"):
            kill_component(kind)
            assert client.submit(abs, -2).result(60) == 2
