"""A connector on the running event loop: a fresh connection for every attempt, local or over ZeroMQ."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scaler.config.addresses import check_server_address
from scaler.errors import RefusedError, UnreachableError
from scaler.ids import PEER_ID_BYTES
from scaler.net.connection import ConnectorEvent, OutboxLimits
from scaler.net.connector_core import ConnectorCore, Phase
from scaler.net.local import LocalTransport, connect_local
from scaler.net.shell import Shell, Wakeups
from scaler.net.transport import (
    LINGER_SECONDS,
    CloseRequested,
    Command,
    Cut,
    Dial,
    LinkFailed,
    LinkOpened,
    Transmit,
    Transport,
)
from scaler.protocol.messages import Hello, Message, Welcome
from scaler.protocol.session import SESSION_ID_BYTES, Buffer, Descriptor

if TYPE_CHECKING:
    from scaler.net.zmq_transport import Context, ZmqConnection


class ConnectorShell(Shell[ConnectorCore]):
    """What connectors over sockets and in memory share; see `connection.Connector`."""

    def __init__(
        self, core: ConnectorCore, on_events: Callable[[list[ConnectorEvent]], None], clock: Callable[[], float]
    ) -> None:
        super().__init__(core, on_events, clock)
        self._transport: Transport | None = None

    @property
    def peer(self) -> bytes:
        """The peer id of this process."""
        return self._core.peer

    @property
    def connected(self) -> bool:
        """True between Welcomed or Resumed and Broken."""
        return self._core.phase is Phase.CONNECTED

    @property
    def passes_descriptors(self) -> bool:
        """True when the present connection carries descriptors."""
        return self._transport is not None and self._transport.passes_descriptors

    @property
    def welcome(self) -> Welcome | None:
        """The server's last Welcome, also after a break."""
        return self._core.welcome

    @property
    def last_error(self) -> str:
        """Why there is no connection, or why there was none the last time."""
        return self._core.last_error

    def outbox_bytes(self) -> int:
        """Return the bytes kept until the server acknowledges them."""
        return self._core.outbox_bytes

    def close(self, reason: str = "") -> None:
        """Say Goodbye, deliver what is queued within the linger time, and close."""
        if self._closed:
            return
        self._closed = True
        was_connected, transport = self.connected, self._transport
        commands = self._core.step([CloseRequested(reason)], self._clock())
        if transport is None:
            return
        # A local connection delivers the Hello at once, so a Goodbye must follow it even before the Welcome.
        if was_connected or isinstance(transport, LocalTransport):
            for command in commands:
                if isinstance(command, Transmit):
                    transport.transmit(command.envelopes)
            transport.close(LINGER_SECONDS)
        else:
            transport.cut()
        self._transport = None

    def _perform(self, command: Command, now: float) -> None:
        if isinstance(command, Dial):
            try:
                self._transport = self._dial(now)
            except OSError as error:
                self._inputs.append(LinkFailed(str(error)))
            else:
                self._inputs.append(LinkOpened(self._transport))
        else:
            super()._perform(command, now)
            if isinstance(command, Cut):
                self._transport = None

    def _dial(self, now: float) -> Transport:
        """Return a new connection to the server, or an attempt at one. Raises OSError."""
        raise NotImplementedError


class SocketConnector(ConnectorShell):
    """See `connection.Connector`. Lives on the loop that runs when it is made, and belongs to its thread.

    Peers other than workers and worker managers need not send heartbeats: the connector does. `Received.peer` and the
    like hold the connector's own peer id.
    """

    def __init__(
        self,
        address: str,
        *,
        peer: bytes,
        hello: Hello,
        on_events: Callable[[list[ConnectorEvent]], None],
        outbox: OutboxLimits | None = None,
        io_threads: int = 1,
    ) -> None:
        """Begin to connect. on_events is called from the loop, never from here. hello.resume is set by the connector.

        io_threads: of the process's ZeroMQ context, when this is the first to use it. Raises UsageError when the
        address is malformed.
        """
        self.address = check_server_address(address)
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        session_id = peer + os.urandom(SESSION_ID_BYTES - PEER_ID_BYTES)
        jitter = random.Random(session_id).random  # noqa: S311 (spreads attempts, hides nothing)
        core = ConnectorCore(session_id, hello, outbox or OutboxLimits(), self._loop.time(), jitter)
        super().__init__(core, on_events, self._loop.time)
        self._io_threads = io_threads
        self._zmq_context: Context | None = None
        self._tries_local = True
        self._source: LocalTransport | ZmqConnection | None = None
        """The transport, as the source of inputs."""
        self._waiters: list[asyncio.Future[None]] = []
        self._wakeups = Wakeups(self._loop, self._wake)
        self._wakeups.soon()

    def send(
        self, message: Message, attachments: Sequence[Buffer] = (), descriptors: Sequence[Descriptor] = ()
    ) -> None:
        """See `Connector.send`."""
        if not self._closed:
            self._core.send(message, attachments, descriptors)
            if not self._in_iteration:
                self._wakeups.soon()

    async def wait_connected(self, timeout_seconds: float) -> Welcome:
        """Return the Welcome as soon as there is a connection.

        Raises UnreachableError when there is none in time, or when the connector is closed, and RefusedError when the
        server refuses this peer.
        """
        begun = self._loop.time()
        while not self.connected:
            if self._core.phase is Phase.STOPPED and not self._closed:
                raise RefusedError(f"{self.address} refused this peer: {self._core.last_error}")
            left = begun + timeout_seconds - self._loop.time()
            if left <= 0 or self._closed:
                waited = self._loop.time() - begun
                raise UnreachableError(
                    f"no answer from {self.address} within {waited:.1f} s ({self._core.last_error}): "
                    f"is it running, and is the address right?"
                )
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await asyncio.wait([waiter], timeout=left)
            self._waiters.remove(waiter)
        welcome = self._core.welcome
        assert welcome is not None, "connected by a Welcome"
        return welcome

    def close(self, reason: str = "") -> None:
        """Say Goodbye, deliver what is queued within the linger time, and close."""
        if self._closed or self._pid != os.getpid():
            return
        super().close(reason)
        self._wakeups.close()
        if self._zmq_context is not None:
            from scaler.net.zmq_transport import release_context  # noqa: PLC0415 (imported already)

            release_context(self._zmq_context)
        self._wake_waiters()

    def _wake(self) -> None:
        now = self._loop.time()
        if self._source is not None:
            self._source.receive(self._inputs)
        was_connected = self._core.phase
        self._iterate(now)
        if not self._closed:
            self._wakeups.at(self._core.wake_at)
            if self._waiters and self._core.phase is not was_connected:
                self._wake_waiters()

    def _perform(self, command: Command, now: float) -> None:
        if isinstance(command, Cut):
            # Where the process behind the local listener does not welcome this peer, the server itself may.
            self._tries_local = command.was_welcomed or not isinstance(self._transport, LocalTransport)
            self._source = None
        super()._perform(command, now)

    def _dial(self, _now: float) -> Transport:
        try:
            local = connect_local(self.address, self._wakeups) if self._tries_local else None
            self._source = local or self._connect_zmq()
        except OSError as error:  # the process has no descriptor left, and may have one later
            raise OSError(f"this process could not make a connection: {error}") from error
        return self._source

    def _connect_zmq(self) -> ZmqConnection:
        # Peers on the server's host need no ZeroMQ, whose import takes 20 ms and several megabytes.
        from scaler.net.zmq_transport import ZmqConnection, acquire_context  # noqa: PLC0415

        if self._zmq_context is None:
            self._zmq_context = acquire_context(self._io_threads)
        return ZmqConnection(self._zmq_context, self.address, self._wakeups)

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
