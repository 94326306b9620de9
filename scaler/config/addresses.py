"""Addresses as people write them: `tcp://host:port` and `ipc://path`."""

from __future__ import annotations

import ipaddress
import re

from scaler.errors import UsageError
from scaler.processes import absolute

MAX_IPC_PATH_BYTES = 107  # what the kernel allows for the path of a unix socket
MAX_PORT = 65535
MONITOR_PORT_OFFSET = 2

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s\[\]:/]+):(?P<port>[0-9]{1,5})")
_ANY = "0.0.0.0"  # noqa: S104 (it is told, not bound)
_WILDCARDS = ("*", _ANY, "[::]")
_LOOPBACK = "127.0.0.1"  # which [::] serves, too, also on hosts without IPv6


def check_address(text: str) -> str:
    """Return the address as it is. Raises UsageError that says what an address looks like."""
    if not isinstance(text, str):
        raise UsageError(f"an address is a text such as 'tcp://127.0.0.1:8516', not {text!r}")
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
    """Return the address of a server to connect to as it is. Raises UsageError when it can only be listened on."""
    found = _TCP.fullmatch(check_address(text))
    if found is not None and int(found["port"]) == 0:
        raise UsageError(
            f"address {text!r}: port 0 means any free one, to listen on; give the port that the server has"
        )
    if found is not None and found["host"] == "*":
        raise UsageError(f"address {text!r}: * means every address of a host, to listen on; give the server's host")
    return text


def port_of(address: str) -> int | None:
    """Return the port of a tcp address, None for ipc."""
    found = _TCP.fullmatch(address)
    return int(found["port"]) if found else None


def monitor_address_beside(bind_address: str) -> str:
    """Return where a scheduler that listens here serves its monitors: two ports on, or `.monitor` after an ipc path.

    Port 0 (any free one) stays 0. Raises UsageError when there is no such port.
    """
    found = _TCP.fullmatch(bind_address)
    if found is None:
        return f"{bind_address}.monitor"
    port = int(found["port"])
    if port == 0:
        return bind_address
    if port + MONITOR_PORT_OFFSET > MAX_PORT:
        raise UsageError(
            f"no port is left for monitors {MONITOR_PORT_OFFSET} above {bind_address}: set monitor_address"
        )
    return f"tcp://{found['host']}:{port + MONITOR_PORT_OFFSET}"


def is_loopback(address: str) -> bool:
    """Return True when only processes of this host can connect to what listens here."""
    found = _TCP.fullmatch(address)
    return found is None or not is_open_to_others(found["host"])


def is_open_to_others(host: str) -> bool:
    """Return whether other machines can connect to a server that listens on this host."""
    name, is_loopback = parsed_host(host)
    return not is_loopback and name != "localhost"


def parsed_host(host: str) -> tuple[str, bool]:
    """Return a host for comparisons, and whether it is a loopback address.

    It has no brackets and no dot at the end, and addresses have their short form.
    """
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name, False
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address), address.is_loopback


def dialled(address: str) -> str:
    """Return one text for all ways to write an address of this host; a host's name has none of them."""
    local = local_address(address)
    found = _TCP.fullmatch(local)
    if found is None:
        return str(absolute(local.removeprefix("ipc://")))
    return f"{'127.0.0.1' if found['host'] == 'localhost' else found['host']}:{found['port']}"


def is_name(address: str) -> bool:
    """Return whether the host of a tcp address is a name, which may stand for addresses of IPv4 and IPv6."""
    found = _TCP.fullmatch(address)
    if found is None or found["host"] == "*":
        return False
    try:
        ipaddress.ip_address(found["host"].strip("[]").partition("%")[0])
    except ValueError:
        return True
    return False


def local_address(bind_address: str) -> str:
    """Return how a process on the same host reaches a server that listens here: a wildcard becomes loopback."""
    found = _TCP.fullmatch(bind_address)
    if found is None or found["host"] not in _WILDCARDS:
        return bind_address
    return f"tcp://{_LOOPBACK}:{found['port']}"


def shared_address(bind_address: str) -> str:
    """Return the address that peers receive of a server that listens here: any wildcard is 0.0.0.0; see `reached`."""
    return bind_address if local_address(bind_address) == bind_address else f"tcp://{_ANY}:{port_of(bind_address)}"


def reached(address: str, scheduler_address: str) -> str:
    """Return where a peer that uses this address of the scheduler reaches a server that the scheduler names.

    A wildcard stands for the scheduler's host. Only the peer knows how it reaches that: the scheduler may be on several
    networks, and behind forwarded ports.
    """
    found, scheduler = _TCP.fullmatch(address), _TCP.fullmatch(local_address(scheduler_address))
    if found is None or found["host"] not in _WILDCARDS:
        return address
    return f"tcp://{scheduler['host'] if scheduler else _LOOPBACK}:{found['port']}"
