"""Hosts of a simulated network: network namespaces, each linked to one bridge. Linux only, as root only.

Each host has its own address, host name, home directory, runtime directory, and unix sockets. Processes, files, and
memory are those of this machine. The bridge is in a separate namespace, so this machine's network is unchanged, and
traffic of other programs is not counted. Imports only the standard library, because `benchmarks/` also use this module.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.waiting import within

STOP_SECONDS = 10.0
"""Time limit for processes on the hosts to exit before they are killed."""
READY_SECONDS = 60.0
"""Time limit for the start of a service."""
POLL_SECONDS = 0.01
BURST_BYTES = 131_072
"""A rate limit counts packets of up to 64 KiB, and splits packets larger than its burst."""
QUEUE_SECONDS = 0.2
"""Queue of a limited link, in seconds at its rate; excess packets are dropped."""
_NUMBERS = itertools.count()
_INTERFACE = "eth0"


class HostsError(Exception):
    """The hosts cannot be created here, or a command on one of them failed."""


_OWN_ROOT = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c"]
"""Runs a shell command as root of a user namespace: privileged inside, unchanged rights elsewhere."""


def run_as_root() -> None:
    """Restart this program as root of a new user namespace, if it is not root and the system allows that."""
    if os.geteuid() == 0 or shutil.which(_OWN_ROOT[0]) is None:
        return
    # `ip netns` keeps its files below /run.
    command = [*_OWN_ROOT, 'mount -t tmpfs tmpfs /run && exec "$@"', "sh"]
    if subprocess.run([*command, "true"], capture_output=True, timeout=20, check=False).returncode == 0:
        os.execvp(command[0], [*command, sys.executable, *sys.argv])


def why_not() -> str:
    """Return why hosts cannot be created on this machine; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root, or a system that permits user namespaces"
    missing = [tool for tool in ("ip", "bridge", "tc", "unshare") if shutil.which(tool) is None]
    return f"network namespaces need the programs {', '.join(missing)}" if missing else ""


def ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise HostsError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Traffic:
    """Traffic of the link between a host and the bridge.

    Packets count in the size that the kernel passes on: up to 64 KiB of data with one header.
    """

    sent_bytes: int
    received_bytes: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.sent_bytes - earlier.sent_bytes, self.received_bytes - earlier.received_bytes)


@dataclass(frozen=True, eq=False)
class Host:
    """One namespace. Its commands see its home directory and host name."""

    name: str
    address: str
    namespace: str
    home: Path
    started: list[subprocess.Popen[Any]] = field(default_factory=list)
    """Processes of `start` and `serve`, in order."""

    def command(self, *words: str | Path) -> list[str]:
        """Return a command that runs the given one on this host, in the same process."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return ["ip", "netns", "exec", self.namespace, *named, *map(str, words)]

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of commands on this host, without Scaler settings from this process."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SCALER_", "XDG_"))}
        return {**inherited, "HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.home / ".run"), **more}

    def run(self, *words: str | Path, timeout: float = 50.0, **environment: str) -> str:
        """Run a command in the home directory; return its output. Raises HostsError if it fails."""
        done = subprocess.run(
            self.command(*words),
            cwd=self.home,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise HostsError(f"{self.name}: {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(
        self, *words: str | Path, environment: Mapping[str, str] | None = None, **popen: Any
    ) -> subprocess.Popen[Any]:
        """Start a command in the home directory; it ends with the network. popen: additional arguments of Popen."""
        command, environment = self.command(*words), self.environment(**(environment or {}))
        process: subprocess.Popen[Any] = subprocess.Popen(command, cwd=self.home, env=environment, **popen)
        self.started.append(process)
        return process

    def serve(
        self, *words: str | Path, environment: Mapping[str, str] | None = None, **popen: Any
    ) -> subprocess.Popen[Any]:
        """Start a component of Scaler, and return it once ready. Raises HostsError if it exits."""
        ready, told = os.pipe()
        try:
            try:
                more = {**(environment or {}), "SCALER_READY_FD": str(told)}
                process = self.start(*words, environment=more, pass_fds=[told], **popen)
            finally:
                os.close(told)
            said, _, _ = select.select([ready], [], [], READY_SECONDS)
            if not said or not os.read(ready, 65536):
                raise HostsError(f"{self.name}: {' '.join(map(str, words))} did not become ready")
        finally:
            os.close(ready)
        return process

    def pids(self) -> list[int]:
        """Return the processes in the namespace, including descendants."""
        return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """Kill all processes of the host at once, like a power failure. The host stays reachable."""
        for process in self.started:
            process.kill()  # may be entering the namespace
        within(math.inf, self._kill_others)
        for process in self.started:
            process.wait()

    def _kill_others(self) -> bool:
        """Kill the remaining processes, and return whether there were none."""
        pids = self.pids()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids


@dataclass
class Network:
    """Hosts on one bridge. Any two reach each other until `cut`."""

    hosts: Sequence[Host]
    switch: str
    """The bridge's namespace."""
    leftovers: list[str] = field(default_factory=list)
    """Commands of the processes that did not exit on request and were killed by `stop`."""

    def __getitem__(self, number: int) -> Host:
        return self.hosts[number]

    def traffic(self) -> dict[str, Traffic]:
        """Return the traffic of each host's link since the network was created, by host name."""
        links = {each["ifname"]: each["stats64"] for each in json.loads(ip("-n", self.switch, "-j", "-s", "link"))}
        found = {host.name: links[_port(host)] for host in self.hosts}
        # The bridge receives the packets that the host sends.
        return {name: Traffic(link["rx"]["bytes"], link["tx"]["bytes"]) for name, link in found.items()}

    def limit(self, host: Host, bits_per_second: int) -> None:
        """Limit the link of a host to this rate in each direction."""
        queue = max(int(bits_per_second / 8 * QUEUE_SECONDS), 2 * BURST_BYTES)
        shape = ["tbf", "rate", f"{bits_per_second}bit", "burst", str(BURST_BYTES), "limit", str(queue)]
        for namespace, interface in ((host.namespace, _INTERFACE), (self.switch, _port(host))):
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *shape)

    def cut(self, one: Host, other: Host) -> None:
        """Silently drop all packets between two hosts from now on. Both still reach all other hosts."""
        links = json.loads(ip("-n", self.switch, "-j", "link", "show", "dev", "switch"))
        # The bridge discards packets to its own address.
        for host, peer in ((one, other), (other, one)):
            words = ["lladdr", links[0]["address"], "dev", _INTERFACE, "nud", "permanent"]
            ip("-n", host.namespace, "neigh", "replace", peer.address, *words)

    def mend(self, one: Host, other: Host) -> None:
        """Undo `cut`."""
        for host, peer in ((one, other), (other, one)):
            ip("-n", host.namespace, "neigh", "del", peer.address, "dev", _INTERFACE)

    def stop(self) -> None:
        """Stop the hosts' processes, and kill stragglers: the first host last.

        Servers usually run on the first host, and some workers wait for a missing server.
        """
        for part in (self.hosts[1:], self.hosts[:1]):
            for host in part:
                for process in reversed(host.started):
                    process.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            for host in part:
                within(deadline - time.monotonic(), partial(_is_empty, host), POLL_SECONDS)
                self.leftovers += [_command_of(pid) for pid in host.pids()]
                host.kill()


def _is_empty(host: Host) -> bool:
    return not host.pids()


def _port(host: Host) -> str:
    return f"to-{host.name}"


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"


@contextmanager
def hosts(count: int, network: str = "10.98.0") -> Iterator[Network]:
    """Create hosts `host0`, `host1`, and so on, with addresses NETWORK.1, NETWORK.2, and so on.

    On exit, all their processes are terminated and everything is removed. Raises HostsError if hosts cannot be created.
    """
    reason = why_not()
    if reason:
        raise HostsError(reason)
    with ExitStack() as after:
        homes = Path(after.enter_context(tempfile.TemporaryDirectory(prefix="hosts-", ignore_cleanup_errors=True)))
        prefix = f"scaler-{os.getpid()}-{next(_NUMBERS)}"
        switch = _namespace(after, f"{prefix}-switch")
        ip("-n", switch, "link", "add", "switch", "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
        ip("-n", switch, "link", "set", "switch", "up")
        made = []
        for number in range(count):
            name = f"host{number}"
            host = Host(name, f"{network}.{number + 1}", _namespace(after, f"{prefix}-{name}"), homes / name)
            (host.home / ".run").mkdir(parents=True, mode=0o700)
            peer = ["peer", "name", _port(host), "netns", switch]
            ip("link", "add", _INTERFACE, "netns", host.namespace, "type", "veth", *peer)
            ip("-n", switch, "link", "set", _port(host), "master", "switch", "up")
            ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", _INTERFACE)
            ip("-n", host.namespace, "link", "set", "lo", "up")
            ip("-n", host.namespace, "link", "set", _INTERFACE, "up")
            made.append(host)
        joined = Network(made, switch)
        after.callback(joined.stop)
        yield joined


def _namespace(after: ExitStack, name: str) -> str:
    ip("netns", "add", name)
    after.callback(ip, "netns", "del", name)
    # Otherwise, hosts would occasionally send packets for neighbor discovery.
    ip("netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
    return name
