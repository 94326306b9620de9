"""A connector on the running event loop. Every attempt uses a new connection, local or over ZeroMQ."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scaler.config.addresses import check_server_addresses, is_name
from scaler.ids import PEER_ID_BYTES, new_peer_id
from scaler.net import transport as t
from scaler.net.connection import ConnectorEvent
from scaler.net.connector_core import ConnectorCore, Phase
from scaler.net.local import LocalTransport, connect_local
from scaler.net.packing import announced
from scaler.net.wakeups import Wakeups
from scaler.protocol.messages import Attachments, Descriptors, Hello, Message, Server
from scaler.protocol.session import SESSION_ID_BYTES, OutboxLimits

if TYPE_CHECKING:
    from scaler.net.access import Access
    from scaler.net.listener_core import ListenerCore
    from scaler.net.zmq_transport import Context


_CoreT = TypeVar("_CoreT", bound="ConnectorCore | ListenerCore")


class Shell(Generic[_CoreT]):
    """Steps a core, performs its commands, and passes its events to the component. Transmits once per iteration."""

    def __init__(self, core: _CoreT, on_events: Callable[[list[Any]], None], wakeups: Wakeups) -> None:
        self._core = core
        self._on_events = on_events
        self._wakeups = wakeups
        self._inputs: list[t.Input] = []
        self._in_iteration = False
        self._closed = False
        self._pid = os.getpid()

    def _iterate(self) -> bool:
        now = self._wakeups.now()
        did_anything = bool(self._inputs)
        step = self._core.step
        again = not self._closed
        self._in_iteration = True
        try:
            while again:
                inputs, self._inputs = self._inputs, []
                again = False
                for command in step(inputs, now):
                    did_anything = True
                    if isinstance(command, t.Transmit):
                        command.link.transmit(command.envelopes)
                    elif isinstance(command, t.Deliver):
                        again = True
                        self._on_events(command.events)
                    else:
                        self._perform(command, now)
                if self._closed:
                    return did_anything
                again = again or bool(self._inputs)
        finally:
            self._in_iteration = False
        if self._core.wake_at < self._wakeups.due_at:
            self._wakeups.at(self._core.wake_at)
        return did_anything

    def _perform(self, command: t.Command, _now: float) -> None:
        if isinstance(command, t.Cut):
            command.link.cut()
        elif isinstance(command, t.StartSession):
            command.link.start_session(compresses=command.compresses)

    def _stop(self, reason: str) -> list[t.Transmit] | None:
        if self._closed or self._pid != os.getpid():
            return None
        self._closed = True
        commands = self._core.step([*self._inputs, t.CloseRequested(reason)], self._wakeups.now())
        return [command for command in commands if isinstance(command, t.Transmit)]


class ConnectorShell(Shell[ConnectorCore]):
    """Base of the connectors over sockets and in memory. `connection.Connector` documents the methods."""

    _transport: t.Connection | None = None
    _dialled = ""

    def __init__(self, core: ConnectorCore, on_events: Callable[[list[Any]], None], wakeups: Wakeups) -> None:
        super().__init__(core, on_events, wakeups)
        self._remote: set[str] = set()
        """Addresses to try over ZeroMQ next, instead of locally."""
        self._ipv6: set[str] = set()

    @property
    def peer(self) -> bytes:
        return self._core.peer

    @property
    def connected(self) -> bool:
        return self._core.phase is Phase.CONNECTED

    @property
    def passes_descriptors(self) -> bool:
        return self._transport is not None and self._transport.passes_descriptors

    @property
    def received_bytes(self) -> int:
        """Bytes received on the current connection, including incomplete messages, as counted by the kernel."""
        return 0 if self._transport is None else self._transport.received_bytes

    @property
    def last_error(self) -> str:
        return self._core.last_error

    def outbox_bytes(self) -> int:
        return self._core.session.outbox_bytes

    def send(self, message: Message, attachments: Attachments = (), descriptors: Descriptors = ()) -> None:
        if not self._closed:
            self._core.send(message, attachments, descriptors)
            if not self._in_iteration:
                self._wakeups.soon()

    def together(self, work: Callable[[], object]) -> None:
        if self._in_iteration or self._closed:
            work()
            return
        self._in_iteration = True
        try:
            work()
        finally:
            self._in_iteration = False
        self._iterate()

    def close(self, reason: str = "") -> None:
        was_connected, transport = self.connected, self._transport
        last = self._stop(reason)
        if last is None:
            return
        self._transport = None
        if transport is not None:
            # A local connection delivers the Hello immediately, so a Goodbye must follow it even before the Welcome.
            if was_connected or isinstance(transport, LocalTransport):
                for command in last:
                    transport.transmit(command.envelopes)
                transport.close(t.LINGER_SECONDS)
            else:
                transport.cut()
        self._wakeups.close()

    def _wake(self) -> bool:
        if self._transport is not None:
            self._transport.receive(self._inputs)
        return self._iterate()

    def _perform(self, command: t.Command, now: float) -> None:
        super()._perform(command, now)
        if isinstance(command, t.Dial):
            self._dialled = self._core.address
            try:
                self._transport = self._dial()
            except OSError as error:
                self._inputs.append(t.LinkLost(None, str(error)))
            else:
                self._inputs.append(t.LinkOpened(self._transport))
        elif isinstance(command, t.Cut):
            # If the process behind the local listener rejects this peer, the server itself may accept it.
            is_local = isinstance(self._transport, LocalTransport)
            self._remote.discard(self._dialled)
            if is_local and not command.was_welcomed:
                self._remote.add(self._dialled)
            # Alternate address families: a name may resolve to both, although its server listens on only one.
            elif not command.was_welcomed and is_name(self._dialled):
                self._ipv6 ^= {self._dialled}
            self._transport = None

    def _dial(self) -> t.Connection:
        raise NotImplementedError


class SocketConnector(ConnectorShell):
    """A `connection.Connector` on the running loop. Sends heartbeats, unless the peer is a worker or manager."""

    def __init__(
        self,
        address: str,
        server: Server,
        access: Access,
        hello: Hello,
        on_events: Callable[[list[ConnectorEvent]], None],
        *,
        peer: bytes = b"",
        outbox: OutboxLimits | None = None,
    ) -> None:
        """Start connecting. on_events is called from the loop, never from the constructor. The connector sets
        hello.resume. address: one or more addresses, separated by commas. peer: default: a new id. Raises UsageError
        for a malformed address."""
        address = check_server_addresses(address)
        self._access, self._server = access, server
        self._context: Context | None = None
        self._at_close = ExitStack()
        wakeups = Wakeups(asyncio.get_running_loop(), self._wake)
        hello = replace(hello, compression=announced(access.compression))
        session_id = (peer or new_peer_id()) + os.urandom(SESSION_ID_BYTES - PEER_ID_BYTES)
        core = ConnectorCore(session_id, hello, outbox or OutboxLimits(), wakeups.now(), address)
        super().__init__(core, on_events, wakeups)
        wakeups.soon()

    def close(self, reason: str = "") -> None:
        super().close(reason)
        if self._closed:
            self._at_close.close()

    def _dial(self) -> t.Connection:
        try:
            if (local := self._dial_locally()) is not None:
                return local
            # Imported only for peers on other hosts: importing ZeroMQ takes 20 ms and several megabytes.
            from scaler.net.zmq_connection import ZmqConnection  # noqa: PLC0415
            from scaler.net.zmq_transport import acquire_context, release_context  # noqa: PLC0415

            # Kept between attempts: releasing the context waits for ZeroMQ's thread, which may be resolving a name.
            if self._context is None:
                self._context = acquire_context()
                self._at_close.callback(release_context)
                # A server that is starting at the same time may be listening by now.
                if (local := self._dial_locally()) is not None:
                    return local
            address, compression = self._dialled, self._access.compression
            keys, uses_ipv6 = self._access.keys(self._server, address), address in self._ipv6
            return ZmqConnection(self._context, address, self._wakeups, keys, compression, ipv6=uses_ipv6)
        except OSError as error:  # no descriptor is free; a later attempt may succeed
            raise OSError(f"cannot open a connection: {error}") from error

    def _dial_locally(self) -> t.Connection | None:
        tries_local = self._access.uses_local and self._dialled not in self._remote
        return connect_local(self._dialled, self._wakeups) if tries_local else None
