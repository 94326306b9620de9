"""Kernel data about this process and its connections: open files, memory, received bytes, throughput."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

RESERVED_DESCRIPTORS = 256
"""Number of descriptors reserved for files, pipes, and peers with a session (at most a quarter of the limit)."""
_MEMORY = Path("/proc/self/statm")
_RECEIVED = slice(128, 136)
_DELIVERED = slice(160, 168)


def is_scarce(descriptor: int) -> bool:
    """Return whether few descriptors are left, given a new connection's descriptor (always the lowest free number)."""
    limit = max_descriptors()
    return descriptor >= limit - min(RESERVED_DESCRIPTORS, limit // 4)


def are_descriptors_scarce() -> bool:
    try:
        lowest = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return True
    os.close(lowest)
    return is_scarce(lowest)


def max_descriptors() -> int:
    try:
        import resource  # noqa: PLC0415 (Windows has none)
    except ImportError:
        return sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if unknown."""
    try:
        with _MEMORY.open("rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def received_bytes(descriptor: int) -> int:
    """Return the bytes received over a TCP connection; 0 if unknown."""
    return int.from_bytes(_tcp_info(descriptor, _RECEIVED.stop)[_RECEIVED], sys.byteorder)


def bytes_per_second(descriptor: int) -> float:
    """Return the recent delivery rate (bytes/s) of a TCP connection: 0 for a new connection, inf if unknown."""
    found = _tcp_info(descriptor, _DELIVERED.stop)[_DELIVERED]
    return int.from_bytes(found, sys.byteorder) if found else math.inf


def is_of_this_host(descriptor: int) -> bool:
    with contextlib.suppress(OSError), borrowed(descriptor) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            return bool(connection.getsockname()[0] == connection.getpeername()[0])
    return True


def is_connected_to_itself(descriptor: int) -> bool:
    """Return whether both ends of a TCP connection are the same socket. If nothing listens on a port in the range for
    outgoing connections, the kernel may connect a client to itself, and then no server can bind that port."""
    with contextlib.suppress(OSError), borrowed(descriptor) as connection:
        return (
            connection.family in (socket.AF_INET, socket.AF_INET6)
            and connection.getsockname() == connection.getpeername()
        )
    return False


def _tcp_info(descriptor: int, size: int) -> bytes:
    option = getattr(socket, "TCP_INFO", None)
    if option is not None:
        with contextlib.suppress(OSError), borrowed(descriptor) as connection:  # closed, or not TCP
            return connection.getsockopt(socket.IPPROTO_TCP, option, size)
    return b""


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket for this descriptor without taking ownership. Raises OSError if it is closed or not a socket."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
