"""One run of a program on several simulated hosts: a new cluster, counters at the links, and nothing left behind."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.named_hosts import named_hosts
from benchmarks.one_run import tail
from benchmarks.peers import ADAPTORS, interpreter
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.hosts import Host, HostsError, Network, Traffic, hosts, why_not

SETTLE_SECONDS = 0.5
"""What crosses a link this soon after the last result still counts."""
FIRST = "host0"

Links = Mapping[str, Traffic]
Arguments = Mapping[str, int]


@dataclass(frozen=True)
class Measured:
    """One run of a program with these arguments.

    seconds: from its first call to its last result. links: what crossed the link of each host.
    """

    given: Arguments
    seconds: float
    links: Links

    def moved_bytes(self) -> int:
        """Return what crossed from one host to another. Each byte counts once, where it was sent."""
        return sum(link.sent_bytes for link in self.links.values())

    def worker_links_bytes(self) -> list[int]:
        """Return what crossed the links of the hosts with workers, each direction by itself."""
        workers = [link for host, link in self.links.items() if host != FIRST]
        return [size for link in workers for size in (link.received_bytes, link.sent_bytes)]

    def busiest_bytes(self) -> int:
        """Return the most that crossed one link in one direction."""
        return max(size for link in self.links.values() for size in (link.received_bytes, link.sent_bytes))


# -- clusters


class Deployment:
    """Starts a system on the hosts of a network, as its users start it on several machines."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        self.log = directory / "log"
        self._output = self.log.open("wb")
        # A peer must not find this checkout's scaler, so its path has nothing but the benchmarks.
        path = directory / "path"
        path.mkdir()
        (path / "benchmarks").symlink_to(Path(__file__).parent)
        self._environment = {"PYTHONPATH": str(path)}

    def close(self) -> None:
        self._output.close()

    def start(self, system: str, slots: int) -> tuple[str, str]:
        """Return the address for clients, and their credential file."""
        return self._scaler(slots) if system == "scaler" else self._dask(slots)

    def client(self, system: str, *words: str, channel: socket.socket) -> subprocess.Popen[Any]:
        """Start a module on the first host, in the system's interpreter."""
        python = interpreter(system)
        assert python is not None
        end = channel.fileno()
        how = {**self._to(), "pass_fds": [end]}
        return self.network[0].start(python, "-m", *words, str(end), environment=self._environment, **how)

    def _to(self) -> dict[str, Any]:
        return {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": self._output}

    def _scaler(self, slots: int) -> tuple[str, str]:
        first, *others = self.network.hosts
        keys = KeysDirectory.create(first.home / "keys", "benchmark")
        credentials = {}
        for host in self.network.hosts:
            credentials[host] = host.home / "credentials"
            write_private(credentials[host], keys.add(host.name, "client" if host is first else "manager").to_text())
        scripts = Path(sys.executable).parent
        address = f"tcp://{first.address}:8516"

        def serve(host: Host, *words: str | Path) -> None:
            host.serve(*words, "--logging-level", "WARNING", environment=self._environment, **self._to())

        serve(first, scripts / "scaler_scheduler", address, "--credentials", first.home / "keys")
        for host in others:
            named = ["--worker-manager-id", host.name, "--per-worker-capabilities", host.name, "--host-name", host.name]
            slots_and_key = ["-n", str(slots), "--credentials", str(credentials[host])]
            serve(host, scripts / "scaler_cluster", address, *slots_and_key, *named)
        return address, str(credentials[first])

    def _dask(self, slots: int) -> tuple[str, str]:
        """Start Dask with its defaults, but without dashboards and with one thread in each worker."""
        first, *others = self.network.hosts
        found = interpreter("dask")
        assert found is not None
        dask = found.parent / "dask"
        address = f"tcp://{first.address}:8786"

        def start(host: Host, kind: str, *words: str) -> None:
            listens = ["--no-dashboard", "--host", host.address]
            host.start(dask, kind, *listens, *words, environment=self._environment, **self._to())

        start(first, "scheduler", "--port", "8786")
        for host in others:
            workers = ["--nworkers", str(slots), "--nthreads", "1", "--local-directory", str(host.home)]
            start(host, "worker", address, *workers, "--resources", f"{host.name}=1000")
        return address, ""


# -- runs


class RunFailedError(Exception):
    """A program did not end as it should."""


def run_program(name: str, system: str, given: Arguments, limit_seconds: float) -> Measured:
    """Run a program once on a new cluster. Raises RunFailedError."""
    make_hosts = named_hosts if why_not() else hosts
    with make_hosts(given["hosts"] + 1) as network:
        directory = network[0].home.parent
        if "megabits" in given:
            for host in network.hosts:
                network.limit(host, given["megabits"] * 1_000_000)
        deployment = Deployment(network, directory)
        try:
            address, credentials = deployment.start(system, given["slots"])
            ours, theirs = socket.socketpair()
            words = ["benchmarks.host_programs", name, ADAPTORS[system], address, credentials, json.dumps(dict(given))]
            client = deployment.client(system, *words, channel=theirs)
            theirs.close()
            with ours:
                ours.settimeout(limit_seconds)
                measured = listen(ours, network, given)
            if client.wait(limit_seconds) or measured is None:
                raise RunFailedError(f"the client ended with status {client.returncode}")
        except (RunFailedError, HostsError, TimeoutError, subprocess.TimeoutExpired) as error:
            raise RunFailedError(f"{error}\n{tail(deployment.log)}") from error
        finally:
            deployment.close()
        return measured


def listen(channel: socket.socket, network: Network, given: Arguments) -> Measured | None:
    """Read the counters whenever the program asks for it; return what it measured when it has ended."""
    before: Links = {}
    measured = None
    with channel.makefile("rw") as lines:
        for line in lines:
            message = json.loads(line)
            if message["begins"]:
                before = network.traffic()
            else:
                time.sleep(SETTLE_SECONDS)
                crossed = {host: now - before[host] for host, now in network.traffic().items()}
                measured = Measured(given, message["seconds"], crossed)
            lines.write("\n")
            lines.flush()
    return measured
