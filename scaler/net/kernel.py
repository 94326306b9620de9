"""What the kernel says about this process and its connections: open files, memory, received bytes."""

from __future__ import annotations

import contextlib
import mmap
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

RESERVED_DESCRIPTORS = 256
"""File descriptors that connections without a session leave free, for files, pipes and peers: at most a quarter."""
_MEMORY = Path("/proc/self/statm")
_RECEIVED = slice(128, 136)
"""Where tcpi_bytes_received lies in Linux's tcp_info."""


def is_scarce(descriptor: int) -> bool:
    """Return whether few descriptors are left when a new connection has got this one, as the lowest free number."""
    limit = max_descriptors()
    return descriptor >= limit - min(RESERVED_DESCRIPTORS, limit // 4)


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
    option = getattr(socket, "TCP_INFO", None)
    if option is not None:
        with contextlib.suppress(OSError), borrowed(descriptor) as connection:  # closed, or no TCP
            found = connection.getsockopt(socket.IPPROTO_TCP, option, _RECEIVED.stop)
            return int.from_bytes(found[_RECEIVED], sys.byteorder)
    return 0


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Give a socket of this descriptor, and leave that open. Raises OSError when it is closed, or a file's."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
