"""A listener on the running event loop: ZeroMQ for all peers, and a local listener for peers on the same host."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable

from scaler.logs import RateLimitedLog
from scaler.net import transport as t
from scaler.net.address import addresses_here
from scaler.net.connection import LinkFigures, ListenerEvent
from scaler.net.connector import Shell
from scaler.net.kernel import max_descriptors
from scaler.net.keys import ServerKeys
from scaler.net.listener_core import MAX_UNIDENTIFIED, Admission, ListenerCore
from scaler.net.local import LocalListener, local_name
from scaler.net.packing import announced
from scaler.net.wakeups import Wakeups
from scaler.net.zmq_listener import ZmqListener
from scaler.protocol.messages import Attachments, Descriptors, Goodbye, Message, Refused, Server
from scaler.protocol.session import OutboxLimits

KEYS_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Listener(Shell[ListenerCore]):
    """A server's end: many peers on one or more addresses. Base of the listeners over sockets and in memory."""

    addresses: tuple[str, ...]

    def __init__(self, core: ListenerCore, on_events: Callable[[list[ListenerEvent]], None], wakeups: Wakeups) -> None:
        super().__init__(core, on_events, wakeups)
        self.on_refused: Callable[[t.Report], None] = lambda _report: None

    def send(self, peer: bytes, message: Message, attachments: Attachments = (), descriptors: Descriptors = ()) -> None:
        """Queue a message until the end of the iteration. Attachments must not change until acknowledged. The message
        is dropped if the peer has no session. A full outbox closes the peer's session. Only some connections pass
        descriptors. Raises LimitError for an oversized message."""
        if not self._closed:
            self._core.send(peer, message, attachments, descriptors)
            if not self._in_iteration:
                self._wakeups.soon()

    def forget(self, peer: bytes, reason: Refused | Goodbye | None = None) -> None:
        """End a peer's session after its lease. reason: sent to the peer if connected; None: cut the connection."""
        if not self._closed:
            self._inputs.append(t.SessionEndRequested(peer, reason))
            if not self._in_iteration:
                self._wakeups.soon()

    def outbox_bytes(self, peer: bytes) -> int:
        return self._core.outbox_bytes(peer)

    def figures(self, peer: bytes) -> LinkFigures:
        return self._core.figures(peer)

    def close(self) -> None:
        """Send a Goodbye to all peers, deliver queued messages within the linger time, and free the addresses."""
        last = self._stop("the server ends")
        if last is not None:
            for command in last:
                command.link.transmit(command.envelopes)
            self._close_transports()

    def _perform(self, command: t.Command, now: float) -> None:
        super()._perform(command, now)
        if isinstance(command, t.Report) and command.is_refusal:
            self.on_refused(command)

    def _close_transports(self) -> None:
        raise NotImplementedError


class SocketListener(Listener):
    """Uses the event loop that is running at construction; call it only from that loop's thread."""

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        server_kind: Server | str,
        admit: Admission,
        on_events: Callable[[list[ListenerEvent]], None],
        outbox: OutboxLimits | None = None,
        has_local_listener: bool = False,
        keys: ServerKeys | None = None,
        compression: str = "off",
    ) -> None:
        """Bind to all addresses. on_events is called from the loop, never from the constructor. keys: None admits every
        peer, unencrypted. has_local_listener: lets peers with the same host and user connect without ZeroMQ. If an
        address is malformed, in use, or not on this host, binds nothing and raises UsageError."""
        self._loop = asyncio.get_running_loop()
        first_session = int.from_bytes(os.urandom(8), "big")
        most = min(MAX_UNIDENTIFIED, max_descriptors() // 4)
        limits = outbox or OutboxLimits()
        core = ListenerCore(Server(server_kind), limits, admit, first_session, most, announced(compression))
        super().__init__(core, on_events, Wakeups(self._loop, self._wake))
        self._keys = keys
        self._zmq = ZmqListener(addresses, self._wakeups, keys, compression)
        self.addresses = self._zmq.addresses
        # For a wildcard, local peers may use any of the host's addresses.
        known = {name for address in self.addresses for name in addresses_here(address)}
        has_local_listener = has_local_listener and local_name(self.addresses[0]) is not None
        self._local = LocalListener(known, self._wakeups) if has_local_listener else None
        # Not warnings: a Scaler process killed during startup looks the same.
        self._unidentified = RateLimitedLog(_log, logging.INFO, self._loop)
        self._refusals = RateLimitedLog(_log, logging.WARNING, self._loop)
        if keys is not None:
            self._loop.call_later(KEYS_SECONDS, self._check_keys)

    def _close_transports(self) -> None:
        if self._local is not None:
            self._local.close(t.LINGER_SECONDS)
        self._wakeups.close()
        self._zmq.close(t.LINGER_SECONDS)
        for log in (self._unidentified, self._refusals):
            log.flush()

    def _wake(self) -> None:
        if self._zmq.is_due:
            self._zmq.receive(self._inputs)
        if self._local is not None:
            self._local.receive(self._inputs)
        self._iterate()
        if self._zmq.was_used and not self._closed:
            self._zmq.rest()

    def _check_keys(self) -> None:
        if self._keys is None or self._closed:
            return
        ended = self._keys.revoked()
        if ended:
            self._inputs.append(t.AccessEnded(ended))
            self._wakeups.soon()
        self._loop.call_later(KEYS_SECONDS, self._check_keys)

    def _perform(self, command: t.Command, now: float) -> None:
        super()._perform(command, now)
        if isinstance(command, t.Report):
            log = self._refusals if command.is_refusal else self._unidentified
            text = f"refused a peer: {command.text}" if command.is_refusal else command.text
            log.add(f"{', '.join(self.addresses)}: {text}")
