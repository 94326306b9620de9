"""Errors of servers that cannot listen on an address. Names the process that already uses the address."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from scaler.config.addresses import ANY_HOST, WILDCARDS, split_tcp
from scaler.processes import PARENT_PID_VARIABLE

_NOT_HERE = "this host has no such address or name; 127.0.0.1 accepts connections from this host only"
_CANNOT_BIND = {
    errno.EADDRNOTAVAIL: _NOT_HERE,
    errno.ENODEV: _NOT_HERE,
    errno.EACCES: "permission denied; choose a port above 1023, or a directory that this user can write to",
    errno.ENOENT: "the directory does not exist",
}
_LISTENS = "0A"
_COMPONENT_MODULES = ("scaler.cluster", "scaler.cli")


def in_use(address: str) -> str:
    owner = _port_owner(address)
    return f"cannot listen on {address}: it is in use by {owner}; stop it or choose another address (port 0: any)"


def cannot_bind(address: str, error_number: int) -> str:
    if error_number == errno.EADDRINUSE:
        return in_use(address)
    return f"cannot listen on {address}: {_CANNOT_BIND.get(error_number) or os.strerror(error_number)}"


def _component_of(command: Sequence[str]) -> str:
    """Return the component that this command starts; empty: none."""
    for number, word in enumerate(command):
        name = PurePath(word).name
        if (number < 2 and name.startswith("scaler_")) or (number and command[number - 1] in _COMPONENT_MODULES):
            return re.sub("[-_]", " ", name.removeprefix("scaler_"))
    return ""


def is_orphaned(address: str) -> bool:
    """Return whether the listener here is a Scaler process that is about to exit because its launcher has exited."""
    process = _listener(address)
    with contextlib.suppress(OSError, IndexError):
        if process is not None:
            variables = os.fsdecode((process / "environ").read_bytes()).split("\0")
            parents = [text.partition("=")[2] for text in variables if text.startswith(f"{PARENT_PID_VARIABLE}=")]
            parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            return bool(parents) and parent not in parents
    return False


def _port_owner(address: str) -> str:
    process = _listener(address)
    with contextlib.suppress(OSError):  # the process has exited
        if process is not None:
            if int(process.name) == os.getpid():
                return "this process itself"
            component = _component_of(os.fsdecode((process / "cmdline").read_bytes()).split("\0"))
            if component:
                return f"scaler's {component} (pid {process.name})"
            return f"another program ({(process / 'comm').read_text().strip()}, pid {process.name})"
    return "another program"


def _listener(address: str) -> Path | None:
    """Return the /proc directory of the process that listens on this address. Scans the open files of all processes."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(address)}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # another user's process, or a process that has exited
            if str(link.readlink()) in sockets:
                return link.parents[1]
    return None


def _listening_inodes(address: str) -> Iterator[str]:
    found = split_tcp(address)
    if found is None:
        for row in _table("unix"):
            if row[7:] == [address.removeprefix("ipc://")]:
                yield row[6]
        return
    host = found[0].strip("[]")
    is_literal = found[0] not in WILDCARDS and (":" in host or host.replace(".", "").isdigit())
    for row in _table("tcp") + _table("tcp6"):
        at, _, port = row[1].partition(":")
        words = [bytes.fromhex(at[start : start + 8])[::-1] for start in range(0, len(at), 8)]
        ip = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))
        if row[3] == _LISTENS and int(port, 16) == found[1] and (ip in {host, ANY_HOST, "::"} or not is_literal):
            yield row[9]


def _table(kind: str) -> list[list[str]]:
    try:
        rows = Path("/proc/net", kind).read_text(errors="surrogateescape").splitlines()
    except OSError:  # a kernel without IPv6
        return []
    return [row.split(maxsplit=7 if kind == "unix" else -1) for row in rows[1:]]
