"""Addresses on this host: wildcards, address families, and socket files."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from scaler.config.addresses import (
    ANY_HOST,
    WILDCARDS,
    addresses_of,
    check_address,
    is_loopback,
    local_address,
    split_tcp,
)
from scaler.errors import UsageError
from scaler.ports import in_use

_SIOCGIFADDR = 0x8915
_GLOBAL_SCOPE = "00"


def addresses_here(bound: str) -> list[str]:
    """Return all addresses that local processes may use to reach a server (several for a wildcard)."""
    found = split_tcp(bound)
    if found is None or found[0] not in WILDCARDS:
        return [bound]
    hosts = [host for host in (*_own_hosts(), "[::1]") if ":" not in host or found[0] != ANY_HOST]
    return [local_address(bound), *(f"tcp://{host}:{found[1]}" for host in (*hosts, socket.gethostname()))]


def own_address(bound: str) -> str:
    """Return an address for display. A wildcard becomes one of the host's addresses; loopback and ipc are unchanged."""
    local = local_address(bound)
    return bound if local == bound else next((each for each in addresses_here(bound) if not is_loopback(each)), local)


def needs_ipv6(address: str) -> bool:
    """Return whether this address needs an IPv6 socket, which also serves IPv4. Resolves names."""
    found = split_tcp(address)
    if found is None:
        return False
    if found[0] == "*" or found[0].startswith("["):  # without IPv6 in the kernel, use an IPv4 socket
        return True
    families = set()
    with contextlib.suppress(OSError):  # the name of an interface
        families = {family for family, *_ in socket.getaddrinfo(found[0], None)}
    return families == {socket.AF_INET6}


def check_not_in_use(address: str) -> None:
    """Raise UsageError if an ipc path is malformed or in use (ZeroMQ would hijack it). A dead socket is accepted."""
    if split_tcp(check_address(address)) is not None:
        return
    path = Path(address.removeprefix("ipc://"))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"cannot listen on {address}: a file with that name exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        failed = probe.connect_ex(str(path))
    # A full backlog (EAGAIN) proves that there is a listener, like an accepted connection.
    if failed in {0, errno.EAGAIN, errno.EINPROGRESS}:
        raise UsageError(in_use(address))


class SocketFile:
    """The socket file of an ipc address. Only its own user can access it, regardless of the umask."""

    def __init__(self, address: str, backlog: int) -> None:
        self._path = Path(address.removeprefix("ipc://"))
        self._path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.setblocking(False)
            listening.bind(str(self._path))
            # No process can connect before `listen`.
            self._path.chmod(0o600)
            listening.listen(backlog)
            self._inode = self._path.stat().st_ino
            self.descriptor = listening.detach()

    def remove(self) -> None:
        """Remove the file, unless another process has replaced it."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def own_host(server: str) -> str:
    """Return the address of this host that a server, and therefore the other hosts in its cluster, can reach. server:
    if it has several addresses, the first is used."""
    found = re.fullmatch(r"tcp://(.+):(\d+)", local_address(addresses_of(server)[0]))
    if found is None:
        return "127.0.0.1"
    why: OSError | None = None
    try:
        for family, kind, *_, where in socket.getaddrinfo(found[1].strip("[]"), int(found[2]), type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:  # no route for this family
                probe.connect(where)  # sends nothing
                host = probe.getsockname()[0]
                return f"[{host}]" if ":" in host else str(host)
    except OSError as error:
        why = error
    raise UsageError(f"this host has no address that can reach {server}: {why or 'no route'}")


def _own_hosts() -> list[str]:
    """Return this host's addresses, the default route's first. Omits loopback and link-local addresses."""
    found: list[str] = []
    # Connecting a datagram socket sends nothing; the kernel only selects the source address for the route.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):  # no default route
            probe.connect(("192.0.2.1", 9))
            found.append(probe.getsockname()[0])
        found += _interface_addresses(probe)
    with contextlib.suppress(OSError):  # a kernel without IPv6
        for line in Path("/proc/net/if_inet6").read_text("ascii").splitlines():
            digits, _, _, scope, *_ = line.split()
            if scope == _GLOBAL_SCOPE:
                found.append(f"[{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))}]")
    return list(dict.fromkeys(found))


def _interface_addresses(probe: socket.socket) -> Iterator[str]:
    import fcntl  # noqa: PLC0415 (only Linux has this request)

    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):  # the interface has no address
            found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            host = socket.inet_ntoa(found[20:24])
            if not host.startswith("127."):
                yield host
