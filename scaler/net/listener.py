"""A listener on the running event loop: one ROUTER socket of ZeroMQ, and beside it doors for peers of its host."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence

import zmq

from scaler.config.addresses import local_address
from scaler.errors import UsageError
from scaler.net import context
from scaler.net.address import SocketFile, advertised, cannot_bind, check_not_in_use, is_ipv6
from scaler.net.connection import Admit, Buffer, ListenerEvent, OutboxLimits
from scaler.net.door import LINK_BYTES, Door
from scaler.net.envelopes import HANDSHAKE_SECONDS, LINGER_SECONDS, SILENCE_SECONDS, Counters, Taken
from scaler.net.frames import (
    HIGH_WATER_MESSAGES,
    MAX_BYTES_PER_TURN,
    MAX_FRAME_BYTES,
    MAX_MESSAGES_PER_TURN,
    Parts,
    Socket,
    is_readable,
    receive_parts,
    send_parts,
)
from scaler.net.listener_core import ListenerCore
from scaler.net.local import door_of
from scaler.net.monitoring import Connections, Monitor
from scaler.net.repeats import Repeats
from scaler.net.turns import Turns
from scaler.protocol.messages import Message
from scaler.protocol.roles import Server

BLOCKED_RETRY_SECONDS = 0.02
MAX_TURNS_OF_GRACE = 8
"""A broken connection is reported when all it brought has been read, or after this many turns at the latest."""

_log = logging.getLogger(__name__)


class SocketListener:
    """See `connection.Listener`. Lives on the loop that runs when it is made, and belongs to its thread."""

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        server_kind: Server | str,
        admit: Admit,
        on_events: Callable[[list[ListenerEvent]], None],
        outbox: OutboxLimits | None = None,
        io_threads: int = 1,
        has_local_listener: bool = False,
    ) -> None:
        """Bind to all addresses. on_events is called from the loop, never from here.

        io_threads: of the process's ZeroMQ context, when this is the first to use it. has_local_listener: peers of this
        host and user come without ZeroMQ. Raises UsageError when an address is malformed, taken or not of this host;
        nothing stays bound then.
        """
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._on_events = on_events
        self._core = ListenerCore(Server(server_kind), admit, outbox or OutboxLimits())
        self._context = context.acquire(io_threads)
        self._socket: Socket = self._context.socket(zmq.ROUTER)
        self._connections = Connections()
        self._descriptors: dict[bytes, int] = {}
        self._routes: dict[int, bytes] = {}
        self._silent: dict[int, float] = {}
        self._breaking: dict[bytes, int] = {}
        self._closed = False
        self._in_turn = False
        self._files: list[SocketFile] = []
        self._strangers = Repeats(self._tell)
        self._refusals = Repeats(self._warn)
        self._monitor = Monitor(self._socket)
        try:
            self._addresses = tuple(self._bind(address) for address in addresses)
        except UsageError:
            self._close_socket(0)
            raise
        self._has_news = True
        self._turns = Turns(self._loop, self._turn)
        watched = [(int(self._socket.getsockopt(zmq.FD)), self._turn), (self._monitor.file_descriptor, self._news)]
        self._door = self._open_doors() if has_local_listener else None
        if self._door is not None:
            watched.append((self._door.fileno(), self._turn))
        self._turns.watch(*watched)
        # The descriptors tell of changes only, and something may have come since the address was bound.
        self._turns.soon()

    def _bind(self, address: str) -> str:
        check_not_in_use(address)
        socket = self._socket
        socket.linger = 0
        socket.router_mandatory = True
        socket.maxmsgsize = MAX_FRAME_BYTES
        socket.sndhwm = socket.rcvhwm = HIGH_WATER_MESSAGES
        socket.handshake_ivl = round(HANDSHAKE_SECONDS * 1000)
        socket.backlog = 1024
        # Hosts that vanish without a word would otherwise keep their descriptors here for ever.
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle = 30
        socket.tcp_keepalive_intvl = 10
        socket.tcp_keepalive_cnt = 3
        socket.ipv6 = is_ipv6(address)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise UsageError(cannot_bind(address, error.errno or 0)) from error
        endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
        if address.startswith("ipc://"):
            self._files.append(SocketFile(address))
        assert isinstance(endpoint, bytes), "pyzmq returns this option as bytes"
        return endpoint.rstrip(b"\0").decode()

    def _open_doors(self) -> Door | None:
        # Behind a wildcard, peers of this host may know it by either of these.
        known = {name(address) for address in self._addresses for name in (local_address, advertised)}
        names = [door for address in known if (door := door_of(address)) is not None]
        return Door(names, self._core, self._strangers) if names else None

    # -- Listener ------------------------------------------------------------------------------------------------

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses as bound."""
        return self._addresses

    @property
    def counters(self) -> Counters:
        """What went wrong so far."""
        return self._core.counters

    def malformed_of(self, peer: bytes) -> int:
        """Return how many messages of this peer's session were dropped as malformed or not allowed."""
        return self._core.malformed_of(peer)

    def outbox_bytes(self, peer: bytes) -> int:
        """Return the bytes that are kept for a peer until it acknowledges them."""
        return self._core.outbox_bytes(peer)

    def send(self, peer: bytes, message: Message, attachments: Sequence[Buffer] = ()) -> None:
        """Queue a message; attachments must stay as they are until they are acknowledged.

        Raises LimitError when it is larger than the protocol allows. A peer whose outbox is full is cut off (Closed).
        """
        if self._closed:
            return
        self._core.send(peer, message, attachments, self._loop.time())
        if not self._in_turn:
            self._turns.soon()

    def forget(self, peer: bytes, reason: Message | None = None) -> None:
        """End a peer's session, saying reason if it is still there; without a reason it is cut off."""
        if self._closed:
            return
        self._core.forget(peer, reason, self._loop.time())
        if not self._in_turn:
            self._turns.soon()

    def close(self) -> None:
        """Say Goodbye to all, deliver what is queued within the linger time, and free the addresses."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._turns.close()
        now = self._loop.time()
        until = now + LINGER_SECONDS
        while self._core.flush(self._transmit, now) and self._loop.time() < until:
            # ROUTER does not say when a full connection has room again.
            time.sleep(BLOCKED_RETRY_SECONDS / 4)
        self._core.end_all(now)
        self._core.flush(self._transmit, now)
        if self._door is not None:
            self._door.close(LINGER_SECONDS)
        self._close_socket(LINGER_SECONDS)
        self._strangers.flush()
        self._refusals.flush()

    def _tell(self, text: str) -> None:
        # No warning: one of ours that was killed before its first words were read looks the same.
        _log.info("%s: %s", ", ".join(self._addresses), text)

    def _warn(self, text: str) -> None:
        _log.warning("%s: %s", ", ".join(self._addresses), text)

    def _close_socket(self, linger_seconds: float) -> None:
        # Not unbound before: that would end the connections at once, with what is queued for them.
        for file in self._files:
            file.remove()
        self._monitor.close_both(linger_seconds)
        context.release(self._context)

    # -- the turn ------------------------------------------------------------------------------------------------

    def _news(self) -> None:
        self._has_news = True
        self._turn()

    def _turn(self) -> None:
        now = self._loop.time()
        core = self._core
        self._in_turn = True
        try:
            if self._has_news:
                self._look_at_connections(now)
            drained = self._drain(now)
            self._report_broken(drained)
            self._cut_silent(now)
            if self._door is not None:
                self._door.visit(now)
                self._door.cut_silent(now)
                self._turns.at(self._door.next_at())
            for refusal in core.take_refusals():
                self._refusals.add(f"refused a peer: {refusal}", now)
            for events_of_a_kind in (self._strangers, self._refusals):
                events_of_a_kind.tick(now)
                self._turns.at(events_of_a_kind.next_at())
            core.tick(now)
            events = core.take_events()
            if events:
                self._on_events(events)
        finally:
            self._in_turn = False
        if self._closed:
            return
        blocked = core.flush(self._transmit, now)
        self._cut(core.take_cuts())
        # Reading EVENTS takes in what the descriptor has announced: it must be the last word of a turn.
        if not drained or core.has_events or self._breaking or is_readable(self._socket):
            self._turns.soon()
        if blocked:
            self._turns.at(self._loop.time() + BLOCKED_RETRY_SECONDS)
        self._turns.at(core.next_at())
        for since in self._silent.values():
            self._turns.at(since + SILENCE_SECONDS)
            break

    def _drain(self, now: float) -> bool:
        """Give the core what has arrived; False when this turn's share was used up before the end of it."""
        core, socket, known = self._core, self._socket, self._descriptors
        size = 0
        for _ in range(MAX_MESSAGES_PER_TURN):
            parts = receive_parts(socket, routed=True)
            if parts is None:
                return True
            if parts.route not in known and not self._introduce(parts, now):
                continue
            if parts.problem:
                core.malformed(parts.route, parts.problem, now)
            else:
                core.receive(parts.route, parts.header, parts.body, parts.attachments, now)
            size += parts.size_bytes
            if size > MAX_BYTES_PER_TURN:
                break
        return False

    def _introduce(self, parts: Parts, now: float) -> bool:
        """Find the connection of a routing id that is new; False when there is none any more, and never was one."""
        self._look_at_connections(now)
        descriptor = parts.file_descriptor()
        if descriptor not in self._connections or descriptor in self._routes:
            return self._core.knows(parts.route)
        self._descriptors[parts.route] = descriptor
        self._routes[descriptor] = parts.route
        return True

    def _transmit(self, route: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
        if self._door is not None and len(route) == LINK_BYTES:
            return self._door.transmit(route, header, body, attachments)
        return send_parts(self._socket, route, header, body, attachments)

    def _look_at_connections(self, now: float) -> None:
        self._has_news = False
        for event in self._monitor.take():
            descriptor = event.value
            if event.kind == zmq.EVENT_ACCEPTED:
                self._connections.accepted(descriptor)
                self._silent[descriptor] = now
            elif event.kind == zmq.EVENT_DISCONNECTED:
                origin = self._connections.gone(descriptor)
                self._silent.pop(descriptor, None)
                route = self._routes.pop(descriptor, None)
                if route is None or self._core.is_stranger(route):
                    self._strangers.add(f"a connection from {origin} ended before anything of this protocol came", now)
                if route is not None:
                    del self._descriptors[route]
                    self._breaking[route] = MAX_TURNS_OF_GRACE

    def _report_broken(self, drained: bool) -> None:
        if not self._breaking:
            return
        for route, turns in list(self._breaking.items()):
            if drained or turns == 0:
                del self._breaking[route]
                self._core.broken(route)
            else:
                self._breaking[route] = turns - 1

    def _cut_silent(self, now: float) -> None:
        while self._silent:
            descriptor, since = next(iter(self._silent.items()))
            if since + SILENCE_SECONDS > now:
                return
            del self._silent[descriptor]
            route = self._routes.get(descriptor)
            if route is None or not self._core.has_session(route):
                self._connections.cut(descriptor)

    def _cut(self, routes: Iterable[bytes]) -> None:
        for route in routes:
            if self._door is not None and len(route) == LINK_BYTES:
                self._door.cut(route)
                continue
            self._look_at_connections(self._loop.time())
            descriptor = self._descriptors.get(route)
            if descriptor is not None:
                self._connections.cut(descriptor)
