"""Authentication of a server's peers, and of the server to the other server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b

from scaler.config.addresses import is_loopback
from scaler.config.servers import SecurityConfig
from scaler.errors import UsageError
from scaler.ids import ID_BYTES
from scaler.net.access import Access
from scaler.net.connection import ListenerEvent
from scaler.net.keys import ServerKeys
from scaler.net.listener import SocketListener
from scaler.net.listener_core import Admission
from scaler.protocol.messages import Server
from scaler.security.run import RunKeys

LOCAL_SECURITY = SecurityConfig()
WARN_SECONDS = 60.0
_log = logging.getLogger(__name__)


class ServerAccess:
    """The keys of one server, for its listeners (None admits every peer) and for its connection to the storage."""

    def __init__(self, config: SecurityConfig, server: Server, addresses: Sequence[str]) -> None:
        self.keys: ServerKeys | None = None
        self._server, self._addresses = server, dict.fromkeys(addresses)
        self._timer: asyncio.Handle | None = None
        is_left_out = "-compression" in getattr(config, "extensions", ())
        self.compression = "off" if is_left_out else config.compression
        self.to_storage = Access(is_insecure=config.insecure_no_auth, compression=self.compression)
        self._run: RunKeys | None = None
        self._owner_secret = ""
        if config.credentials is not None:
            from scaler.security.directory import AllowList, KeysDirectory  # noqa: PLC0415 (8 ms, which few servers need)

            directory = KeysDirectory.open(config.credentials)
            pair = directory.scheduler if server is Server.SCHEDULER else directory.object_storage
            self.keys = ServerKeys(pair, AllowList(directory))
            self._owner_secret = directory.object_storage.secret
            self.to_storage = Access(directory.of_scheduler(), compression=self.compression)
        elif not config.insecure_no_auth:
            for address in addresses:
                if not is_loopback(address):
                    raise UsageError(_needs_keys(address, server))
            self._run = RunKeys()
            self.keys = ServerKeys(self._run.pair, self._run)
            # Publish keys before listening, so that a peer waiting for the address also finds the keys.
            self._publish()

    def listen(
        self,
        address: str,
        admit: Admission,
        on_events: Callable[[list[ListenerEvent]], None],
        *,
        has_local_listener: bool = True,
    ) -> SocketListener:
        """Open a port of the server on the running loop, and publish its keys. If every peer is admitted, logs a
        warning now and every `WARN_SECONDS`."""
        listener = SocketListener(
            [address],
            server_kind=self._server,
            admit=admit,
            on_events=on_events,
            has_local_listener=has_local_listener,
            keys=self.keys,
            compression=self.compression,
        )
        self._addresses.pop(address, None)
        self._addresses.update(dict.fromkeys(listener.addresses))
        self._publish()
        if self.keys is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._warn)
        return listener

    def _publish(self) -> None:
        if self._run is not None:
            try:
                self._run.publish(self._addresses)
            except UsageError as error:
                _log.warning("only processes that reach the local listener can connect: %s", error)

    def _warn(self) -> None:
        _log.warning(
            "insecure_no_auth: any process that can reach %s can run code on the workers and read all objects; "
            "nothing is encrypted",
            ", ".join(self._addresses),
        )
        self._timer = asyncio.get_running_loop().call_later(WARN_SECONDS, self._warn)

    def owner_token(self, peer: bytes) -> bytes:
        """Return the token that proves to the object storage that the scheduler admitted a client with this peer id.
        Clients choose their peer ids, which are not secret. The scheduler and the storage both derive the token from
        the storage's secret key, so either can restart. Empty if users are not distinguished by configured keys."""
        if not self._owner_secret:
            return b""
        return blake2b(peer, key=self._owner_secret.encode(), digest_size=ID_BYTES, person=b"scaler owner").digest()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._run is not None:
            self._run.close()


def _needs_keys(address: str, server: Server) -> str:
    from shlex import quote  # noqa: PLC0415

    from scaler.security.directory import default_directory  # noqa: PLC0415

    make, directory = "run `scaler keys init`, then ", "DIRECTORY"
    with contextlib.suppress(UsageError):  # the user has no home directory
        found = default_directory(os.environ)
        make, directory = "" if found.exists() else make, quote(str(found))
    command = "scaler_scheduler" if server is Server.SCHEDULER else "scaler_object_storage_server"
    return (
        f"{address} can be reached from other hosts, but no keys are configured: {make}start it with "
        f"`{command} {address} --credentials {directory}`; or listen on 127.0.0.1"
    )
