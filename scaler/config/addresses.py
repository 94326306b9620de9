"""Syntax of addresses: `tcp://host:port` and `ipc://path`."""

from __future__ import annotations

import ipaddress
import re

from scaler.errors import UsageError
from scaler.processes import absolute

MAX_IPC_PATH_BYTES = 107  # kernel limit for the path of a unix socket
MAX_PORT = 65535
MONITOR_PORT_OFFSET = 2

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s\[\]:/]+):(?P<port>[0-9]{1,5})")
_ANY = "0.0.0.0"  # noqa: S104 (it is told, not bound)
_WILDCARDS = ("*", _ANY, "[::]")
_LOOPBACK = "127.0.0.1"  # which [::] serves as well, even on hosts without IPv6


def check_address(text: str) -> str:
    """Return the address unchanged. Raises UsageError that explains the syntax."""
    if not isinstance(text, str):
        raise UsageError(f"an address must be a string such as 'tcp://127.0.0.1:8516', not {text!r}")
    if text.startswith("ipc://"):
        path = text.removeprefix("ipc://")
        if not path:
            raise UsageError(f"address {text!r} has no path: write ipc://path, such as ipc:///tmp/scaler.sock")
        if len(path.encode()) > MAX_IPC_PATH_BYTES:
            raise UsageError(f"address {text!r}: the path of an ipc address has at most {MAX_IPC_PATH_BYTES} bytes")
        return text
    found = _TCP.fullmatch(text)
    if found is None:
        raise UsageError(f"address {text!r}: write tcp://host:port or ipc://path, such as tcp://127.0.0.1:8516")
    if int(found["port"]) > MAX_PORT:
        raise UsageError(f"address {text!r}: a port is a number from 0 to {MAX_PORT}")
    return text


def check_server_address(text: str) -> str:
    """Return an address to connect to unchanged. Raises UsageError for an address that only a listener can use."""
    found = _TCP.fullmatch(check_address(text))
    if found is not None and int(found["port"]) == 0:
        raise UsageError(f"address {text!r}: port 0 (any free port) is only for listening; use the server's port")
    if found is not None and found["host"] == "*":
        raise UsageError(f"address {text!r}: * (every address of a host) is only for listening; use the server's host")
    return text


def port_of(address: str) -> int | None:
    found = _TCP.fullmatch(address)
    return int(found["port"]) if found else None


def monitor_address_beside(bind_address: str) -> str:
    """Return the monitor address of a scheduler: its port + 2, or its ipc path + `.monitor`. Port 0 stays 0. Raises
    UsageError if the port is out of range."""
    found = _TCP.fullmatch(bind_address)
    if found is None:
        return f"{bind_address}.monitor"
    port = int(found["port"])
    if port == 0:
        return bind_address
    if port + MONITOR_PORT_OFFSET > MAX_PORT:
        raise UsageError(f"no port is left for monitors above {bind_address}: set monitor_address")
    return f"tcp://{found['host']}:{port + MONITOR_PORT_OFFSET}"


def is_loopback(address: str) -> bool:
    found = _TCP.fullmatch(address)
    return found is None or not is_open_to_others(found["host"])


def is_open_to_others(host: str) -> bool:
    name, is_loopback = parsed_host(host)
    return not is_loopback and name != "localhost"


def parsed_host(host: str) -> tuple[str, bool]:
    """Return a normalized host (no brackets or trailing dot, short IP form), and whether it is a loopback address."""
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name, False
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address), address.is_loopback


def dialled(address: str) -> str:
    """Return a canonical form of an address of this host. Host names other than localhost stay as given."""
    local = local_address(address)
    found = _TCP.fullmatch(local)
    if found is None:
        return str(absolute(local.removeprefix("ipc://")))
    return f"{'127.0.0.1' if found['host'] == 'localhost' else found['host']}:{found['port']}"


def is_name(address: str) -> bool:
    """Return whether the host of a tcp address is a name, which may resolve to IPv4 and IPv6 addresses."""
    found = _TCP.fullmatch(address)
    if found is None or found["host"] == "*":
        return False
    try:
        ipaddress.ip_address(found["host"].strip("[]").partition("%")[0])
    except ValueError:
        return True
    return False


def local_address(bind_address: str) -> str:
    """Return the address at which local processes reach a server: a wildcard becomes loopback."""
    found = _TCP.fullmatch(bind_address)
    if found is None or found["host"] not in _WILDCARDS:
        return bind_address
    return f"tcp://{_LOOPBACK}:{found['port']}"


def shared_address(bind_address: str) -> str:
    """Return the address that a server announces to peers: any wildcard becomes 0.0.0.0. See `reached`."""
    return bind_address if local_address(bind_address) == bind_address else f"tcp://{_ANY}:{port_of(bind_address)}"


def reached(address: str, scheduler_address: str) -> str:
    """Return the address at which a peer reaches a server that the scheduler announced. A wildcard stands for the
    scheduler's host as the peer reaches it. The scheduler cannot substitute the host, because it may be on several
    networks or behind forwarded ports."""
    found, scheduler = _TCP.fullmatch(address), _TCP.fullmatch(local_address(scheduler_address))
    if found is None or found["host"] not in _WILDCARDS:
        return address
    return f"tcp://{scheduler['host'] if scheduler else _LOOPBACK}:{found['port']}"
