"""Real sshds on loopback, each with its own directory for its host key, accepted keys, and environment."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler.cluster.supervisor import ReservedPorts
from scaler.config.load import model_of
from scaler.worker_manager.ssh import SshConfig
from scaler.worker_manager.ssh.backend import SshBackend
from tests.waiting import until, within

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
USER = pwd.getpwuid(os.geteuid()).pw_name
WAIT_SECONDS = 30.0
needs_sshd = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="NOT TESTED: workers on machines reached by ssh need sshd"
)


class Sshd:
    """One host: an sshd that can be killed and restarted. Its programs have a separate home directory."""

    def __init__(self, directory: Path, client_key: str) -> None:
        self.directory = directory
        for name in ("run", "home"):
            (directory / name).mkdir(parents=True, mode=0o700)
        make_key(directory / "host_key")
        (directory / "authorized_keys").write_text(client_key)
        self._ports = ReservedPorts(1)
        self.port = int(self._ports.address().rpartition(":")[2])
        self._ports.release()
        self.variables = {"HOME": f"{directory}/home", "XDG_RUNTIME_DIR": f"{directory}/run"}
        self._process: subprocess.Popen[bytes] | None = None

    def __str__(self) -> str:
        return f"{USER}@127.0.0.1:{self.port}"

    @property
    def known_key(self) -> str:
        kind, key, *_ = (self.directory / "host_key.pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {kind} {key}\n"

    def start(self, *lines: str) -> None:
        variables = " ".join(f'"{name}={value}"' for name, value in self.variables.items())
        config = self.directory / "sshd_config"
        fixed = (
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.directory}/host_key",
            f"AuthorizedKeysFile {self.directory}/authorized_keys",
            "PidFile none",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin yes",
            f"SetEnv {variables}",
        )
        # Only the first line for a key counts.
        config.write_text("\n".join([*lines, *fixed, ""]))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # usually created by a service that does not run here
        assert SSHD is not None
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", config], stdout=log, stderr=log, start_new_session=True
            )
        assert within(WAIT_SECONDS, self._answers), (self.directory / "log").read_text()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def client(self) -> int:
        """Return the pid of the ssh that connects this process to the host."""
        children = psutil.Process().children()
        return next(child.pid for child in children if child.name() == "ssh" and str(self.port) in child.cmdline())

    def sessions(self) -> list[psutil.Process]:
        """Return the processes of the host's connections."""
        if self._process is None:
            return []
        try:
            return psutil.Process(self._process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def remote(self) -> dict[int, str]:
        """Return the command lines of all running processes started by the host, by pid."""
        entry = f"XDG_RUNTIME_DIR={self.directory}/run\0".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if entry in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return found

    def unit(self, unit_id: str) -> int:
        """Wait until a unit runs, and return its process id."""

        def find() -> int:
            for pid, line in self.remote().items():
                with contextlib.suppress(OSError):
                    is_unit = f'"unit_id":"{unit_id}"'.encode() in Path(f"/proc/{pid}/environ").read_bytes()
                    if is_unit and "watcher" not in line:
                        return pid
            return 0

        return int(until(find, WAIT_SECONDS))

    def stop(self) -> None:
        """Kill the sshd and all connections, like a brief network failure."""
        if self._process is not None:
            for process in [*self.sessions(), psutil.Process(self._process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):  # the connection may be closing
                    for each in [*process.children(recursive=True), process]:
                        if each.name() == "sshd":
                            each.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        left = until_gone(self)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"left behind: {left}"


def until_gone(host: Sshd) -> dict[int, str]:
    """Wait until a host runs nothing, and return any remaining processes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (left := host.remote()) and (seconds := deadline - time.monotonic()) > 0:
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(next(iter(left)))
            select.select([pidfd], [], [], seconds)
            os.close(pidfd)
    return left


def make_key(path: Path) -> str:
    """Create a key pair without a password, and return the public key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text()


class Hosts:
    """Hosts, and the client's options file for them."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        directory.mkdir()
        key = make_key(directory / "id")
        self.all = [Sshd(directory / f"host{number}", key) for number in range(count)]
        self.known = directory / "known_hosts"
        self.known.write_text("".join(host.known_key for host in self.all))
        self.options_file = directory / "ssh_config"
        self.options_file.write_text(
            f"IdentityFile {directory}/id\nIdentitiesOnly yes\nIdentityAgent none\n"
            f"UserKnownHostsFile {self.known}\nGlobalKnownHostsFile none\nStrictHostKeyChecking yes\n"
        )

    def config(self, *hosts: str, **values: Any) -> SshConfig:
        """Return settings for a manager of these hosts (default: all), with this environment's Python."""
        given = {
            "scheduler_address": "tcp://127.0.0.1:1",
            "worker_manager_id": "far",
            "hosts": hosts or [str(host) for host in self.all],
            "ssh_options": ("-F", str(self.options_file)),
            "ssh_python": sys.executable,
            "slots_per_host": 2,
            "tunnel": False,
            "insecure_no_auth": True,
            "heartbeat_interval_seconds": 0.2,
        }
        return model_of(SshConfig, given | values)

    @contextmanager
    def backend(self, *hosts: str, **values: Any) -> Iterator[SshBackend]:
        backend = SshBackend(self.config(*hosts, **values))
        try:
            yield backend
        finally:
            backend.close()


@contextmanager
def running_hosts(directory: Path, count: int) -> Iterator[Hosts]:
    """Yield hosts with running sshds, and check that none of their processes remain."""
    hosts = Hosts(directory, count)
    with contextlib.ExitStack() as after:
        for host in hosts.all:
            after.callback(host.close)
            host.start()
        yield hosts
