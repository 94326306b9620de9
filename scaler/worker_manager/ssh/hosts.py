"""Hosts as they are written in the settings and in files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from scaler.config.addresses import MAX_PORT
from scaler.config.values import MAX_COUNT
from scaler.errors import UsageError
from scaler.paths import local_path

FILE_MARK = "@"
"""Begins the path of a file with hosts."""
# No destination begins with a hyphen: ssh would take it for an option.
_HOST = re.compile(
    r"(?P<user>[^\s@:\-][^\s@:]*@)?(?P<name>\[[0-9A-Fa-f:.%\w]+\]|[^\s@:\[\]\-][^\s@:\[\]]*)"
    r"(?::(?P<port>[0-9]{1,5}))?(?:\s+slots=(?P<slots>[0-9]{1,7}))?"
)


class Host(NamedTuple):
    """A machine. destination: as ssh takes it. port: 0 for what ssh takes without one. slots: 0 for its cores."""

    destination: str
    port: int = 0
    slots: int = 0

    def __str__(self) -> str:
        return f"{self.destination}:{self.port}" if self.port else self.destination


def parse_host(text: str) -> Host:
    """Return the host of a text such as `user@name:2222 slots=4`. Raises UsageError."""
    found = _HOST.fullmatch(text)
    if found is None:
        raise UsageError(f"host {text!r}: write host, user@host or user@host:port, and slots=COUNT behind a blank")
    port, slots = int(found["port"] or 0), int(found["slots"] or 0)
    if (found["port"] and not port) or port > MAX_PORT:
        raise UsageError(f"host {text!r}: a port is a number from 1 to {MAX_PORT}")
    if (found["slots"] and not slots) or slots > MAX_COUNT:
        raise UsageError(f"host {text!r}: slots is a number from 1 to {MAX_COUNT}")
    return Host((found["user"] or "") + found["name"].strip("[]"), port, slots)


def all_hosts(texts: Iterable[str]) -> list[Host]:
    """Return the hosts of a list of hosts and files. Raises UsageError, also for a host that is there twice."""
    hosts: dict[tuple[str, int], Host] = {}
    for text in texts:
        for host in _of_file(text.removeprefix(FILE_MARK)) if text.startswith(FILE_MARK) else [parse_host(text)]:
            if host[:2] in hosts:
                raise UsageError(f"host {host} is given twice: give it once, with slots=COUNT for more workers")
            hosts[host[:2]] = host
    return list(hosts.values())


def _of_file(path: str) -> Iterator[Host]:
    try:
        lines = local_path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the file of hosts {path!r}: {error}") from None
    hosts = [text for line in lines if (text := line.partition("#")[0].strip())]
    if not hosts:
        raise UsageError(f"the file {path!r} has no hosts: write one on each line, such as user@host:port slots=4")
    for text in hosts:
        try:
            yield parse_host(text)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
