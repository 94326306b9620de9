"""A loopback cluster whose workers are on hosts reached by ssh: tunnels, keys, and shutdown."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.security.credential import load_credential
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from scaler.security.run import find
from tests.conftest import Run, marked_processes
from tests.engines.ssh_rig import WAIT_SECONDS, Hosts, needs_sshd, running_hosts, until_gone
from tests.integration.launcher_rig import Launcher, launched
from tests.integration.settings_rig import Command, command
from tests.waiting import until

pytestmark = needs_sshd


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with running_hosts(tmp_path_factory.mktemp("ssh") / "hosts", 2) as hosts:
        yield hosts


WHERE = os.getenv, "XDG_RUNTIME_DIR"
"""A call that returns the name of its host."""


def shown(hosts: Hosts, run: Run) -> bytes:
    """Return command lines and environments of the hosts' processes, and of every ssh of this run."""
    found, there = b"", remote(hosts)  # sshd does not pass the mark of the run to its children
    for pid in there | {process.pid for process in marked_processes(run.mark)}:
        with suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):  # may have exited
            if pid in there or psutil.Process(pid).name() == "ssh":
                found += b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    return found


def remote(hosts: Hosts) -> set[int]:
    return {pid for host in hosts.all for pid in host.remote()}


def component(launcher: Launcher, kind: str) -> psutil.Process:
    (found,) = [each for each in launcher.components() if each.cmdline()[-1:] == [kind]]
    return found


def test_file_runs_tasks_through_tunnels_and_leaves_nothing_behind(
    hosts: Hosts, run: Run, ports: ReservedPorts, tmp_path: Path
) -> None:
    address = ports.address()
    path = tmp_path / "far.toml"
    manager = {
        "type": "ssh",
        "worker_manager_id": "far",
        "hosts": [str(host) for host in hosts.all],
        "slots_per_host": 1,
        "ssh_python": sys.executable,
        "ssh_options": ["-F", str(hosts.options_file)],
    }
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in manager.items())
    path.write_text(f'[scheduler]\nbind_address = "{address}"\n[[worker_manager]]\n{lines}\n')
    with launched(path) as launcher, Client(address) as client:
        places = {f"{host.directory}/run" for host in hosts.all}
        assert set(client.map(os.getenv, [WHERE[1]] * 20)) <= places
        assert len(client.submit(bytes, 5_000_000).result(WAIT_SECONDS)) == 5_000_000  # from the object storage
        keys = find(address)
        assert keys is not None
        everything = shown(hosts, run)
        assert b"SCALER_WORKER_CONFIG" in everything
        assert keys.own.secret.encode() not in everything

        # The launcher starts another scheduler with other keys, and the workers reconnect to it.
        before = remote(hosts)
        component(launcher, "scheduler").send_signal(signal.SIGKILL)
        with Client(address) as again:
            assert again.submit(*WHERE).result(WAIT_SECONDS) in places
        assert remote(hosts) >= before

        # The launcher starts another manager, which starts other units.
        component(launcher, "worker-manager").send_signal(signal.SIGKILL)
        assert until(lambda: not remote(hosts) & before, WAIT_SECONDS)
        with Client(address) as again:
            assert again.submit(*WHERE).result(WAIT_SECONDS) in places


def test_workers_get_their_managers_credential_through_the_connection(
    hosts: Hosts, run: Run, ports: ReservedPorts, tmp_path: Path
) -> None:
    address = ports.address()
    keys = KeysDirectory.create(tmp_path / "keys", "test")
    path = tmp_path / "far.credentials"
    write_private(path, keys.add("far", "manager").to_text())
    secret = load_credential(path).for_units().keys.secret
    flags = ("--hosts", str(hosts.all[0]), "--slots-per-host", "1", "--ssh-python", sys.executable)
    with command("scaler_scheduler", address, "--credentials", str(keys.path), directory=tmp_path) as scheduler:
        scheduler.addresses()
        options = (f"--ssh-options=-F,{hosts.options_file}", "-wmi", "far")
        with Client(address) as client:
            refused = Command("scaler_worker_manager", ("ssh", address, *flags, *options), {}, tmp_path)
            try:
                future = client.submit(*WHERE)
                text = "the workers have no key for the scheduler"
                assert until(lambda: text in client.explain(future), WAIT_SECONDS)
                assert refused.stop() == 0
            finally:
                refused.close()
            given = ("--credentials", str(path))
            with command("scaler_worker_manager", "ssh", address, *flags, *options, *given, directory=tmp_path):
                assert future.result(WAIT_SECONDS) == f"{hosts.all[0].directory}/run"
                everything = shown(hosts, run)
                assert b"SCALER_WORKER_CONFIG" in everything
                assert secret.encode() not in everything
    assert not until_gone(hosts.all[0])
