"""Finds the cluster of a client (by address, by name, by SCALER_ADDRESS, or a private one), and connects to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import get_args

from scaler.client.connect import opened, say
from scaler.client.loop import ClientLoop, OnEvents
from scaler.client.options import check_integer
from scaler.client.transfers import Storage
from scaler.config.addresses import addresses_of
from scaler.config.values import COMPRESSION_VARIABLE, Compression
from scaler.errors import RefusedError, UnreachableError, UsageError
from scaler.grammar import counted
from scaler.ids import cache_owner, session_peer_id
from scaler.net.access import Access
from scaler.net.connection import Connector
from scaler.protocol.messages import ClientDetails, Role, Server, Welcome
from scaler.registry import find, is_name, page_at
from scaler.security import CREDENTIALS_VARIABLE, INSECURE_VARIABLE

ADDRESS_VARIABLE = "SCALER_ADDRESS"
"""Address or name of the cluster for clients without an address."""
_TRUE = ("1", "true", "yes", "on")


def open_cluster(
    address: str | None,
    name: str,
    timeout_seconds: float,
    given_access: tuple[str | Access | None, bool | None, str | None],
    session: str,
    n_workers: int | None,
) -> ClientLoop:
    """Connect a client to the cluster with an address or name; with None, to SCALER_ADDRESS or a new local cluster.

    Prints the choice to stderr, except for an explicit address. given_access: the arguments `credentials`,
    `insecure_no_auth`, and `compression` of `Client`; an Access as `credentials` overrides the others. Raises
    UsageError, ConfigError, UnreachableError, RefusedError, and ComponentError if a new cluster cannot start.
    """
    access = _access(*given_access)
    if n_workers is not None:
        check_integer("n_workers", n_workers, 1)
    chosen = os.environ.get(ADDRESS_VARIABLE, "").strip()
    if n_workers is not None and (address is not None or chosen):
        other = "the address" if address is not None else f"{ADDRESS_VARIABLE}={chosen}"
        raise UsageError(f"n_workers={n_workers} applies only to a cluster that the client starts: leave out {other}")
    if address is not None:
        return _connect(address, name, timeout_seconds, access, session, is_given=not is_name(address))
    if not chosen and session:
        text = "without an address, the client starts its own cluster, and the session would end with it"
        raise UsageError(f"session {session!r} needs an address, or {ADDRESS_VARIABLE}: {text}")
    if not chosen:
        return _start(name, timeout_seconds, n_workers)
    try:
        return _connect(chosen, name, timeout_seconds, access, session)
    except (UsageError, UnreachableError, RefusedError) as error:
        raise type(error)(f"{ADDRESS_VARIABLE}={chosen}: {error}") from None


def _access(credentials: str | Access | None, insecure_no_auth: bool | None, compression: str | None) -> Access:
    if isinstance(credentials, Access):
        return credentials
    compression = compression or os.environ.get(COMPRESSION_VARIABLE) or "auto"
    if compression not in get_args(Compression):
        raise UsageError(f"compression is {', '.join(get_args(Compression))}; {compression!r} is not one of them")
    if credentials is None and not insecure_no_auth:
        credentials = os.environ.get(CREDENTIALS_VARIABLE) or None
    if insecure_no_auth is None and credentials is None:
        insecure_no_auth = os.environ.get(INSECURE_VARIABLE, "").lower() in _TRUE
    if credentials and insecure_no_auth:
        raise UsageError("credentials and insecure_no_auth are mutually exclusive: set only one")
    return Access.of(credentials, bool(insecure_no_auth), Role.CLIENT, "client", compression)


def _connect(
    address: str, name: str, timeout_seconds: float, access: Access, session: str, *, is_given: bool = False
) -> ClientLoop:
    cluster = address if is_name(address) else ""
    loop = _open(find(cluster).address if cluster else address, name, timeout_seconds, access, session)
    if not is_given:
        _say(f"connected to {f'cluster {cluster} at ' if cluster else ''}{loop.address}", page_at(loop.address))
    return loop


def _start(name: str, timeout_seconds: float, n_workers: int | None) -> ClientLoop:
    """Start a cluster that ends with the client's loop, and connect to it. Raises UsageError on systems other than
    Linux."""
    if sys.platform != "linux":
        text = "a client without an address starts a cluster, which requires Linux"
        raise UsageError(f"{text}: give the address of one, such as tcp://host:8516, or set {ADDRESS_VARIABLE}")
    from scaler.cluster.combo import SchedulerClusterCombo  # noqa: PLC0415 (rarely used)
    from scaler.config.monitors import WebUiConfig  # noqa: PLC0415
    from scaler.host import usable_cpus  # noqa: PLC0415

    workers = n_workers or usable_cpus()
    cluster = SchedulerClusterCombo(
        n_workers=workers, name=f"client-{os.getpid()}", web_port=WebUiConfig.web_port, protected=False
    )
    try:
        # The loop outlasts executor calls, and shuts the cluster down when the program ends.
        cluster._end.atexit = False
        loop = _open(cluster.get_address(), name, timeout_seconds, Access(), ended=cluster.shutdown)
    except BaseException:
        cluster.shutdown()
        raise
    named = f"cluster {cluster.get_name()}".rstrip()  # unnamed if names cannot be stored
    _say(f"started local {named} with {counted(workers, 'worker')}", cluster.get_page())
    return loop


def _say(text: str, page: str) -> None:
    say(f"{text}{'; web page ' if page else ''}{page}")


def _open(
    address: str,
    name: str,
    timeout_seconds: float,
    access: Access,
    session: str = "",
    ended: Callable[[], object] = lambda: None,
) -> ClientLoop:
    """Connect to the scheduler at an address. Raises UsageError, UnreachableError, or RefusedError."""
    from scaler.net.connector import SocketConnector  # noqa: PLC0415 (clients inside tasks need no sockets)
    from scaler.net.versions import own_hello  # noqa: PLC0415

    if session:
        access = _of_session(access, address)

    def connect(peer: bytes, on_events: OnEvents) -> Connector:
        hello = own_hello(Role.CLIENT, ClientDetails(name, session))
        return SocketConnector(address, Server.SCHEDULER, access, hello, on_events, peer=peer)

    key = access.credential.name if access.credential is not None else ""
    return opened(
        connect,
        partial(connect_storage, Role.CLIENT, access, timeout_seconds),
        address,
        timeout_seconds,
        name=name,
        session_id=session_peer_id(key, session) if session else b"",
        cache_owner=cache_owner(key),
        ended=ended,
    )


def _of_session(access: Access, address: str) -> Access:
    """Return the access of a durable session's client, which uses its key even on the server's own machine.

    Exception: a server that created temporary keys does not accept the client's credential.
    """
    if access.credential is None:
        return access
    from scaler.security.run import find  # noqa: PLC0415 (only for clients with a credential)

    has_run_keys = any(find(each) is not None for each in addresses_of(address))
    return access._replace(credential=None) if has_run_keys else access._replace(uses_local=False)


def connect_storage(role: Role, access: Access, timeout_seconds: float, welcome: Welcome, peer: bytes) -> Storage:
    """Return a client of the scheduler's object storage on the running loop. Raises UsageError if there is none."""
    from scaler.object_storage.client import StorageClient  # noqa: PLC0415

    if not welcome.object_storage_address:
        raise UsageError("the scheduler has no object storage: large arguments and objects are not supported")
    address = welcome.object_storage_address
    return StorageClient(address, peer, role, access, owner_token=welcome.owner_token, timeout_seconds=timeout_seconds)
