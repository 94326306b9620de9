"""Runs a program once on several simulated hosts: a new cluster, counters on the links, and a complete cleanup."""

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
"""Traffic this soon after the last result still counts."""
FIRST = "host0"

Links = Mapping[str, Traffic]
Arguments = Mapping[str, int]


@dataclass(frozen=True)
class Measured:
    """One run of a program with these arguments.

    seconds: from its first call to its last result. links: traffic on each host's link.
    """

    given: Arguments
    seconds: float
    links: Links

    def moved_bytes(self) -> int:
        """Return the bytes sent from one host to another, each counted once, at its sender."""
        return sum(link.sent_bytes for link in self.links.values())

    def worker_links_bytes(self) -> list[int]:
        """Return the bytes on the links of the hosts with workers, one number per direction."""
        workers = [link for host, link in self.links.items() if host != FIRST]
        return [size for link in workers for size in (link.received_bytes, link.sent_bytes)]

    def busiest_bytes(self) -> int:
        """Return the largest number of bytes on one link in one direction."""
        return max(size for link in self.links.values() for size in (link.received_bytes, link.sent_bytes))


# -- clusters


class Deployment:
    """Starts a system on the hosts of a network, in the way that its users start it on several machines."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        self.log = directory / "log"
        self._output = self.log.open("wb")
        # Only the benchmarks are on the path, because a peer must not import this checkout's scaler.
        path = directory / "path"
        path.mkdir()
        (path / "benchmarks").symlink_to(Path(__file__).parent)
        self._environment = {"PYTHONPATH": str(path)}

    def close(self) -> None:
        self._output.close()

    def start(self, system: str, slots: int) -> tuple[str, str]:
        """Start the system, and return the address for clients and their credential file."""
        return self._scaler(slots) if system == "scaler" else self._dask(slots)

    def client(self, system: str, *words: str, channel: socket.socket) -> subprocess.Popen[Any]:
        """Start a module on the first host with the system's interpreter."""
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
        """Start Dask with its defaults, except for no dashboards and one thread per worker."""
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
    """A program failed or did not finish in time."""


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
                raise RunFailedError(f"the client exited with status {client.returncode}")
        except (RunFailedError, HostsError, TimeoutError, subprocess.TimeoutExpired) as error:
            raise RunFailedError(f"{error}\n{tail(deployment.log)}") from error
        finally:
            deployment.close()
        return measured


def listen(channel: socket.socket, network: Network, given: Arguments) -> Measured | None:
    """Read the counters whenever the program asks. Returns the measurement after the program has ended."""
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
