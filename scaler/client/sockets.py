"""The connections of a client to the scheduler and object storage over sockets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from scaler.client.connect import opened
from scaler.client.loop import ClientLoop, OnEvents
from scaler.client.transfers import Storage
from scaler.errors import UsageError
from scaler.ids import cache_owner, session_peer_id
from scaler.net.access import Access
from scaler.net.connection import Connector
from scaler.protocol.messages import ClientDetails, Role, Server, Welcome


def open_loop(
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
        return SocketConnector(
            address,
            peer=peer,
            hello=hello,
            on_events=on_events,
            keys=access.to(Server.SCHEDULER, address),
            uses_local=access.uses_local,
            compression=access.compression,
        )

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
    """Return the access of a durable session's client: with its key even on the server's own machine.

    Exception: a server with keys of its own run does not know the credential.
    """
    if access.credential is None:
        return access
    from scaler.security.run import find  # noqa: PLC0415 (only for clients with a credential)

    return access._replace(uses_local=False) if find(address) is None else access._replace(credential=None)


def connect_storage(role: Role, access: Access, timeout_seconds: float, welcome: Welcome, peer: bytes) -> Storage:
    """Return a client of the scheduler's object storage on the running loop. Raises UsageError without one."""
    from scaler.object_storage.client import StorageClient  # noqa: PLC0415

    if not welcome.object_storage_address:
        raise UsageError("the scheduler has named no object storage: it takes no large arguments and objects")
    address = welcome.object_storage_address
    return StorageClient(address, peer, role, access, owner_token=welcome.owner_token, timeout_seconds=timeout_seconds)
