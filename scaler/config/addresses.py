"""Syntax of addresses: `tcp://host:port` and `ipc://path`, or several addresses, separated by commas."""

from __future__ import annotations

import ipaddress
import re

from scaler.errors import UsageError
from scaler.processes import absolute

MAX_IPC_PATH_BYTES = 107  # kernel limit for the path of a unix socket
MAX_PORT = 65535
MONITOR_PORT_OFFSET = 2

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s\[\]:/]+):(?P<port>[0-9]{1,5})")
ANY_HOST = "0.0.0.0"  # noqa: S104 (announced, not bound)
_BETWEEN = re.compile(r"\s*,\s*(?=(?:tcp|ipc)://)")
WILDCARDS = ("*", ANY_HOST, "[::]")
_LOOPBACK = "127.0.0.1"  # [::] serves both families, and works on hosts without IPv6


def check_address(text: str) -> str:
    """Return the address unchanged. Raises UsageError, which explains the syntax."""
    if not isinstance(text, str):
        raise UsageError(f"an address must be a string such as 'tcp://127.0.0.1:8516', not {text!r}")
    if text.startswith("ipc://"):
        path = text.removeprefix("ipc://")
        if not path:
            raise UsageError(f"address {text!r} has no path: write ipc://path, such as ipc:///tmp/scaler.sock")
        if len(path.encode()) > MAX_IPC_PATH_BYTES:
            raise UsageError(f"address {text!r}: the path of an ipc address has at most {MAX_IPC_PATH_BYTES} bytes")
        return text
    found = split_tcp(text)
    if found is None:
        raise UsageError(f"address {text!r}: write tcp://host:port or ipc://path, such as tcp://127.0.0.1:8516")
    if found[1] > MAX_PORT:
        raise UsageError(f"address {text!r}: a port is a number from 0 to {MAX_PORT}")
    return text


def check_server_address(text: str) -> str:
    """Return an address to connect to, unchanged. Raises UsageError for an address that only a listener can use."""
    host, port = split_tcp(check_address(text)) or ("", 1)
    if port == 0:
        raise UsageError(f"address {text!r}: port 0 (any free port) is only for listening; use the server's port")
    if host == "*":
        raise UsageError(f"address {text!r}: * (every address of a host) is only for listening; use the server's host")
    return text


def addresses_of(text: str) -> list[str]:
    """Return the addresses in a comma-separated text."""
    return _BETWEEN.split(text)


def check_server_addresses(text: str) -> str:
    """Like `check_server_address`, but for one or several addresses."""
    if not isinstance(text, str):
        check_address(text)
    return ",".join(map(check_server_address, addresses_of(text)))


def split_tcp(address: str) -> tuple[str, int] | None:
    """Return the host (IPv6 literals in brackets) and port of a tcp address; None for any other address."""
    found = _TCP.fullmatch(address)
    return (found["host"], int(found["port"])) if found else None


def beside(address: str, ports: int, suffix: str) -> str:
    """Return the address with `ports` added to its port (unless 0), or an ipc path with a suffix. Raises UsageError."""
    found = split_tcp(address)
    if found is None:
        return check_address(address + suffix)
    host, port = found
    if port == 0:
        return address
    if port + ports > MAX_PORT:
        raise UsageError(f"{address} needs port {port + ports} too, which does not exist: choose a smaller port")
    return f"tcp://{host}:{port + ports}"


def is_loopback(address: str) -> bool:
    found = split_tcp(address)
    return found is None or not is_open_to_others(found[0])


def is_open_to_others(host: str) -> bool:
    name, is_loopback = parsed_host(host)
    return not is_loopback and name != "localhost"


def parsed_host(host: str) -> tuple[str, bool]:
    """Return a normalized host (no brackets or trailing dot, short form of an IP), and whether it is loopback."""
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name, False
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address), address.is_loopback


def dialled(address: str) -> str:
    """Return the canonical form of an address of this host. Host names other than localhost are unchanged."""
    local = local_address(address)
    found = split_tcp(local)
    if found is None:
        return str(absolute(local.removeprefix("ipc://")))
    return f"{_LOOPBACK if found[0] == 'localhost' else found[0]}:{found[1]}"


def is_name(address: str) -> bool:
    """Return whether the host of a tcp address is a name, which may resolve to IPv4 and IPv6 addresses."""
    host, _ = split_tcp(address) or ("*", 0)
    if host == "*":
        return False
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return True
    return False


def local_address(bind_address: str) -> str:
    """Return the address that local processes use to reach a server: a wildcard becomes loopback."""
    found = split_tcp(bind_address)
    return f"tcp://{_LOOPBACK}:{found[1]}" if found and found[0] in WILDCARDS else bind_address


def shared_address(bind_address: str) -> str:
    """Return the address that a server announces to peers: any wildcard becomes 0.0.0.0. See `reached`."""
    found = split_tcp(bind_address)
    return f"tcp://{ANY_HOST}:{found[1]}" if found and found[0] in WILDCARDS else bind_address


def reached(address: str, scheduler_address: str) -> str:
    """Return the address that a peer uses to reach a server announced by the scheduler. A wildcard stands for the host
    at which the peer reaches the scheduler. The scheduler does not know that host, because it may be on several
    networks or behind forwarded ports."""
    found, scheduler = split_tcp(address), split_tcp(local_address(scheduler_address))
    if found is None or found[0] not in WILDCARDS:
        return address
    return f"tcp://{scheduler[0] if scheduler else _LOOPBACK}:{found[1]}"
