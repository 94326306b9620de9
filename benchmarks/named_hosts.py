"""Hosts without network namespaces: groups of processes on this machine, each with its own host name.

Scaler treats each group as a host. Traffic is what Scaler's scheduler counts for values that move between stores,
without messages. Links cannot be limited, and other systems have no such counter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.hosts import Host, Network, Traffic

MONITOR_PORT = 8518
OBJECT_STORAGE = "object storage"


@dataclass(frozen=True, eq=False)
class NamedHost(Host):
    """A group of processes with a common home directory."""

    def command(self, *words: str | Path) -> list[str]:
        return [*map(str, words)]

    def pids(self) -> list[int]:
        return [each.pid for each in psutil.process_iter() if _home_of(each) == str(self.home)]


def _home_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("HOME", "")
    except psutil.Error:
        return ""


class NamedNetwork(Network):
    """Named hosts, the first of which runs the object storage."""

    def traffic(self) -> dict[str, Traffic]:
        """Return the bytes that each host's stores have sent and received, by host name."""
        first = self.hosts[0]
        top = Path(sys.executable).parent / "scaler_top"
        command: list[str | Path] = [
            top,
            f"tcp://{first.address}:{MONITOR_PORT}",
            "--json",
            "--credentials",
            first.home / "keys",
        ]
        told = subprocess.run(first.command(*command), env=first.environment(), capture_output=True, check=True)
        sent: Counter[str] = Counter()
        received: Counter[str] = Counter()
        for pair in json.loads(told.stdout)["pairs"]:
            source, target = (first.name if pair[end] == OBJECT_STORAGE else pair[end] for end in ("source", "target"))
            sent[source] += pair["bytes"]
            received[target] += pair["bytes"]
        return {host.name: Traffic(sent[host.name], received[host.name]) for host in self.hosts}


@contextmanager
def named_hosts(count: int) -> Iterator[NamedNetwork]:
    """Create hosts `host0`, `host1`, and so on. Their processes are terminated on exit."""
    with tempfile.TemporaryDirectory(prefix="hosts-", ignore_cleanup_errors=True) as directory:
        made: Sequence[Host] = [
            NamedHost(f"host{number}", "127.0.0.1", "", Path(directory) / f"host{number}") for number in range(count)
        ]
        for host in made:
            (host.home / ".run").mkdir(parents=True, mode=0o700)
        network = NamedNetwork(made, "")
        try:
            yield network
        finally:
            network.stop()
