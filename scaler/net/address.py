"""What addresses mean to this host: what others should be told, what stands beside, and whether one is free."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from pathlib import Path

from scaler.config.addresses import MAX_PORT, check_address
from scaler.errors import UsageError

_TCP = re.compile(r"tcp://(?P<host>\[[^\]]+\]|[^\[\]:]+):(?P<port>\d+)")
_WILDCARDS = ("*", "0.0.0.0", "[::]")  # noqa: S104 (compared with, not bound)


def split_tcp(address: str) -> tuple[str, int] | None:
    """Return host (IPv6 literals in brackets) and port, or None for ipc. Raises UsageError on a malformed address."""
    found = _TCP.fullmatch(check_address(address))
    return (found["host"], int(found["port"])) if found else None


def is_ipv6(address: str) -> bool:
    """Tell whether the host of this address is an IPv6 literal."""
    return address.startswith("tcp://[")


def advertised(bound: str) -> str:
    """Return what peers on other hosts should be told to connect to: a wildcard becomes this host's own address.

    Loopback and ipc stay as they are, as whoever binds them wants peers of this host only.
    """
    found = split_tcp(bound)
    if found is None or found[0] not in _WILDCARDS:
        return bound
    return f"tcp://{_own_host()}:{found[1]}"


def beside(address: str, ports: int, suffix: str) -> str:
    """Return an address next to this one: that many ports on, or the suffix after an ipc path.

    Port 0 (any free one) stays 0. Raises UsageError when there is no such port.
    """
    found = split_tcp(address)
    if found is None:
        return check_address(address + suffix)
    host, port = found
    if port == 0:
        return address
    if port + ports > MAX_PORT:
        raise UsageError(f"there is no port {port + ports} beside {address}: choose a smaller one")
    return f"tcp://{host}:{port + ports}"


def check_not_in_use(address: str) -> None:
    """Raise UsageError when another process listens on this ipc path; ZeroMQ would take it away in silence.

    The same is raised for a malformed address, and for a file of that name that is no socket. A socket file that a dead
    process left behind is no hindrance.
    """
    if split_tcp(address) is not None:
        return
    path = Path(address.removeprefix("ipc://"))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"cannot listen on {address}: there is a file of that name that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        failed = probe.connect_ex(str(path))
    # A full queue of connections (EAGAIN) proves a listener as much as an accepted one does.
    if failed in {0, errno.EAGAIN, errno.EINPROGRESS}:
        raise UsageError(in_use(address))


class SocketFile:
    """The file of an ipc address that this process listens on. ZeroMQ makes it, and leaves it behind."""

    def __init__(self, address: str) -> None:
        self._path = Path(address.removeprefix("ipc://"))
        self._inode = self._path.stat().st_ino

    def remove(self) -> None:
        """Remove the file, unless another process has put its own in the place."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def in_use(address: str) -> str:
    """Return the text for an address that somebody listens on already; it says who, as far as this user may know."""
    from scaler.net.occupants import occupant_of, occupant_of_path  # noqa: PLC0415 (psutil takes a while to import)

    found = split_tcp(address)
    who = occupant_of_path(address.removeprefix("ipc://")) if found is None else occupant_of(*found)
    return f"cannot listen on {address}: it is in use by {who}; stop that, or choose another address (port 0: any)"


def cannot_bind(address: str, error_number: int) -> str:
    """Return the text for an address that cannot be bound, by the error number that the attempt gave."""
    if error_number == errno.EADDRINUSE:
        return in_use(address)
    if error_number in {errno.EADDRNOTAVAIL, errno.ENODEV}:
        return f"cannot listen on {address}: this host has no such address or name; 127.0.0.1 serves this host alone"
    if error_number == errno.EACCES:
        return f"cannot listen on {address}: this user may not; choose a port above 1023, or a directory of your own"
    if error_number == errno.ENOENT:
        return f"cannot listen on {address}: its directory does not exist"
    return f"cannot listen on {address}: {os.strerror(error_number)}"


def _own_host() -> str:
    # Connecting a datagram socket sends nothing; it only asks which of our addresses the way out begins at.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        host: str = probe.getsockname()[0]
        return host
