"""Runs one-slot workers on machines over ssh. A `watcher.py` on each machine exits when its connection ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from scaler.config.addresses import MAX_PORT, addresses_of, is_loopback, split_tcp
from scaler.config.setting import Setting
from scaler.config.values import MAX_COUNT, Check, CountOrNone, Limit, Names, length
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.paths import local_path
from scaler.plugins import WorkerManagerType

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.ssh.backend:SshBackend", settings="scaler.worker_manager.ssh:SshConfig"
)
FILE_MARK = "@"  # prefix of the path of a hosts file
# Reject a leading hyphen, which ssh would parse as an option.
_HOST = re.compile(
    r"(?P<user>[^\s@:\-][^\s@:]*@)?(?P<name>\[[0-9A-Fa-f:.%\w]+\]|[^\s@:\[\]\-][^\s@:\[\]]*)"
    r"(?::(?P<port>[0-9]{1,5}))?(?:\s+slots=(?P<slots>[0-9]{1,7}))?"
)


class Host(NamedTuple):
    """A machine. destination: as passed to ssh. port: 0: ssh's default. slots: 0: the number of cores."""

    destination: str
    port: int = 0
    slots: int = 0

    def __str__(self) -> str:
        return f"{self.destination}:{self.port}" if self.port else self.destination


def parse_host(text: str) -> Host:
    """Parse a host such as `user@name:2222 slots=4`. Raises UsageError."""
    found = _HOST.fullmatch(text)
    if found is None:
        raise UsageError(f"host {text!r}: write host, user@host or user@host:port, and slots=COUNT after a space")
    port, slots = int(found["port"] or 0), int(found["slots"] or 0)
    if (found["port"] and not port) or port > MAX_PORT:
        raise UsageError(f"host {text!r}: the port must be a number from 1 to {MAX_PORT}")
    if (found["slots"] and not slots) or slots > MAX_COUNT:
        raise UsageError(f"host {text!r}: slots must be a number from 1 to {MAX_COUNT}")
    return Host((found["user"] or "") + found["name"].strip("[]"), port, slots)


def all_hosts(texts: Iterable[str]) -> list[Host]:
    """Return the hosts, including those listed in files. Raises UsageError, also for duplicates."""
    hosts: dict[tuple[str, int], Host] = {}
    for text in texts:
        for host in _of_file(text.removeprefix(FILE_MARK)) if text.startswith(FILE_MARK) else [parse_host(text)]:
            if host[:2] in hosts:
                raise UsageError(f"host {host} is listed twice: list it once, with slots=COUNT for more workers")
            hosts[host[:2]] = host
    return list(hosts.values())


def _of_file(path: str) -> Iterator[Host]:
    try:
        lines = local_path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the hosts file {path!r}: {error}") from None
    hosts = [text for line in lines if (text := line.partition("#")[0].strip())]
    if not hosts:
        raise UsageError(f"the file {path!r} contains no hosts: write one per line, such as user@host:port slots=4")
    for text in hosts:
        try:
            yield parse_host(text)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None


def _hosts(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        if not text.startswith(FILE_MARK):
            parse_host(text)
    return value


@dataclass(frozen=True, kw_only=True)
class SshConfig(WorkerManagerConfig):
    """Worker manager ssh: machines that are reached by ssh."""

    type: Literal["ssh"] = "ssh"
    hosts: Annotated[Names, length(1, 1000), Check(_hosts), Setting(metavar="HOST")]
    """Machines as host, user@host, or user@host:port, optionally followed by slots=COUNT; @PATH: a file with one
    machine per line."""
    slots_per_host: Annotated[CountOrNone, Setting(default_text="0: its cores", metavar="COUNT")] = 0
    """Maximum number of workers on a host without slots=COUNT; 0: its number of cores."""
    ssh_python: Annotated[str, Setting(default_text="none: uv creates an environment", metavar="PATH")] = ""
    """Python or virtual environment with this version of scaler, as a path on the hosts. By default, uv creates an
    environment there, once per version."""
    ssh_options: Annotated[Names, Setting(default_text="none", metavar="OPTION")] = ()
    """Options for the ssh command, such as -J, gate, -i, key. Your ~/.ssh/config applies as usual."""
    tunnel: Annotated[
        bool | None, Setting(default_text="true when the scheduler is on loopback", metavar="BOOLEAN")
    ] = None
    """Forward the ports of the scheduler and the object storage over ssh, so that no port needs to be open. The object
    storage is at object_storage_address, by default one port above the scheduler."""
    max_task_concurrency: Annotated[Limit, Setting("-mtc -n", metavar="COUNT")] = -1
    """Maximum number of tasks that the manager's workers run at once; -1: all slots on the hosts."""

    def __post_init__(self) -> None:
        if self.tunnel is None:
            address = addresses_of(self.worker_scheduler_address or self.scheduler_address)[0]
            object.__setattr__(self, "tunnel", is_loopback(address))
        super().__post_init__()

    def check(self) -> None:
        super().check()
        addresses = addresses_of(self.worker_scheduler_address)
        if self.tunnel and len(addresses) > 1:
            raise ValueError("a tunnel supports only one scheduler: set one address, or set tunnel = false")
        if split_tcp(addresses[0]) is None:
            raise ValueError(
                f"the scheduler is at {self.worker_scheduler_address}, which other machines cannot reach, even "
                "through ssh: set an address such as tcp://127.0.0.1:8516"
            )
        if self.tunnel and self.host_name:
            raise ValueError(
                "host_name is used by host stores, which cannot reach each other through a tunnel: "
                "remove host_name, or set tunnel = false"
            )
