"""Addresses on this host: wildcards, neighbouring ports, and the owner of a port."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from scaler.config.addresses import ANY_HOST, WILDCARDS, check_address, is_loopback, local_address, split_tcp
from scaler.errors import UsageError
from scaler.processes import PARENT_PID_VARIABLE

_NOT_HERE = "this host has no such address or name; 127.0.0.1 accepts connections from this host only"
_CANNOT_BIND = {
    errno.EADDRNOTAVAIL: _NOT_HERE,
    errno.ENODEV: _NOT_HERE,
    errno.EACCES: "permission denied; choose a port above 1023, or a directory that this user can write to",
    errno.ENOENT: "the directory does not exist",
}
_SIOCGIFADDR = 0x8915
_GLOBAL_SCOPE = "00"
_LISTENS = "0A"
_COMPONENT_MODULES = ("scaler.cluster", "scaler.cli")


def addresses_here(bound: str) -> list[str]:
    """Return all addresses at which local processes may reach a server (several for a wildcard)."""
    found = split_tcp(bound)
    if found is None or found[0] not in WILDCARDS:
        return [bound]
    hosts = [host for host in (*_own_hosts(), "[::1]") if ":" not in host or found[0] != ANY_HOST]
    return [local_address(bound), *(f"tcp://{host}:{found[1]}" for host in (*hosts, socket.gethostname()))]


def own_address(bound: str) -> str:
    """Return an address for display: one of the host's addresses for a wildcard, unchanged for loopback and ipc."""
    local = local_address(bound)
    return bound if local == bound else next((each for each in addresses_here(bound) if not is_loopback(each)), local)


def needs_ipv6(address: str) -> bool:
    """Return whether this address needs an IPv6 socket, which also serves IPv4. Resolves names."""
    found = split_tcp(address)
    if found is None:
        return False
    if found[0] == "*" or found[0].startswith("["):  # a kernel without IPv6 falls back to an IPv4 socket
        return True
    families = set()
    with contextlib.suppress(OSError):  # the name of an interface
        families = {family for family, *_ in socket.getaddrinfo(found[0], None)}
    return families == {socket.AF_INET6}


def check_not_in_use(address: str) -> None:
    """Raise UsageError for a malformed ipc path, or one in use, which ZeroMQ would hijack. Accepts a dead socket."""
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
    # A full backlog (EAGAIN) proves a listener as well as an accepted connection does.
    if failed in {0, errno.EAGAIN, errno.EINPROGRESS}:
        raise UsageError(in_use(address))


class SocketFile:
    """The socket file of an ipc address, accessible only to its own user regardless of the umask."""

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


def own_host(server: str) -> str:
    """Return this host's address that a server, and thus other hosts of its cluster, can reach."""
    found = re.fullmatch(r"tcp://(.+):(\d+)", local_address(server))
    if found is None:
        return "127.0.0.1"
    why: OSError | None = None
    try:
        for family, kind, *_, where in socket.getaddrinfo(found[1].strip("[]"), int(found[2]), type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:  # no route with this family
                probe.connect(where)  # sends nothing
                host = probe.getsockname()[0]
                return f"[{host}]" if ":" in host else str(host)
    except OSError as error:
        why = error
    raise UsageError(f"this host has no address from which {server} can be reached: {why or 'no route'}")


def _own_hosts() -> list[str]:
    """Return this host's addresses except loopback and link-local ones, the address of the default route first."""
    found: list[str] = []
    # Connecting a datagram socket sends nothing; the kernel only picks the source address of the route.
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
