"""What the kernel says about this process and its connections: open files, memory, received bytes, speed."""

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
"""File descriptors that connections without a session leave free, for files, pipes and peers: at most a quarter."""
_MEMORY = Path("/proc/self/statm")
_RECEIVED = slice(128, 136)
"""Where tcpi_bytes_received lies in Linux's tcp_info."""
_DELIVERED = slice(160, 168)
"""Where tcpi_delivery_rate lies there."""


def is_scarce(descriptor: int) -> bool:
    """Return whether few descriptors are left when a new connection has got this one, as the lowest free number."""
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
    """Return how many descriptors this process may have, as far as the system says."""
    try:
        import resource  # noqa: PLC0415 (Windows has none)
    except ImportError:
        return sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def resident_bytes() -> int:
    """Return the memory of this process; 0 where the kernel does not say."""
    try:
        with _MEMORY.open("rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def received_bytes(descriptor: int) -> int:
    """Return how much has come over a TCP connection since its begin; 0 when the kernel does not say."""
    return int.from_bytes(_tcp_info(descriptor, _RECEIVED.stop)[_RECEIVED], sys.byteorder)


def bytes_per_second(descriptor: int) -> float:
    """Return how fast a TCP peer has taken data lately, 0 on a new connection, inf if the kernel cannot tell."""
    found = _tcp_info(descriptor, _DELIVERED.stop)[_DELIVERED]
    return int.from_bytes(found, sys.byteorder) if found else math.inf


def is_of_this_host(descriptor: int) -> bool:
    """Return whether both ends of a connection are on one host, as far as its addresses say."""
    with contextlib.suppress(OSError), borrowed(descriptor) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            return bool(connection.getsockname()[0] == connection.getpeername()[0])
    return True


def _tcp_info(descriptor: int, size: int) -> bytes:
    """Return the beginning of Linux's tcp_info, empty when the kernel has none."""
    option = getattr(socket, "TCP_INFO", None)
    if option is not None:
        with contextlib.suppress(OSError), borrowed(descriptor) as connection:  # closed, or no TCP
            return connection.getsockopt(socket.IPPROTO_TCP, option, size)
    return b""


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Give a socket of this descriptor, and leave that open. Raises OSError when it is closed, or a file's."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
