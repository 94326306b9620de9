"""A connector over ZeroMQ: a fresh DEALER socket for every attempt, on the running event loop."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence

import zmq

from scaler.config.addresses import check_server_address
from scaler.errors import RefusedError, UnreachableError
from scaler.ids import PEER_ID_BYTES
from scaler.net import context
from scaler.net.address import is_ipv6
from scaler.net.connection import Buffer, ConnectorEvent, OutboxLimits
from scaler.net.connector_core import ConnectorCore, Phase
from scaler.net.envelopes import HANDSHAKE_SECONDS, LINGER_SECONDS, Counters, Taken
from scaler.net.frames import (
    HIGH_WATER_MESSAGES,
    MAX_BYTES_PER_TURN,
    MAX_FRAME_BYTES,
    MAX_MESSAGES_PER_TURN,
    Socket,
    receive_parts,
    send_parts,
)
from scaler.net.monitoring import Monitor
from scaler.net.turns import Turns
from scaler.protocol.messages import Hello, Message, Welcome
from scaler.protocol.session import SESSION_ID_BYTES

NEVER_MILLISECONDS = 24 * 3600 * 1000

_BREAKS = {
    zmq.EVENT_CLOSED: "connection refused or host unreachable: nothing listens there",
    # Of an attempt that did not even come to a socket; after any of the others it is not the first any more.
    zmq.EVENT_CONNECT_RETRIED: "no host of this name is known",
    zmq.EVENT_DISCONNECTED: "the connection broke",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "what listens there does not speak ZeroMQ",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "what listens there does not speak ZeroMQ",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "what listens there does not accept this peer",
}


class _Line:
    """One connection, or an attempt at one: its socket and what is told of it."""

    __slots__ = ("monitor", "socket")

    def __init__(self, zmq_context: zmq.Context[Socket], address: str) -> None:
        self.socket = socket = zmq_context.socket(zmq.DEALER)
        socket.linger = 0
        # Never by itself; but with -1, "never", it would throw away what it has received when the connection breaks.
        socket.reconnect_ivl = NEVER_MILLISECONDS
        socket.maxmsgsize = MAX_FRAME_BYTES
        socket.sndhwm = socket.rcvhwm = HIGH_WATER_MESSAGES
        socket.handshake_ivl = round(HANDSHAKE_SECONDS * 1000)
        socket.connect_timeout = round(HANDSHAKE_SECONDS * 1000)
        socket.ipv6 = is_ipv6(address)
        self.monitor = Monitor(socket)

    def drop(self) -> None:
        """Close it without another word."""
        self.monitor.close()
        self.socket.close()


class ZmqConnector:
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
        on_turn: Callable[[list[ConnectorEvent]], None],
        outbox: OutboxLimits | None = None,
        io_threads: int = 1,
    ) -> None:
        """Begin to connect. on_turn is called from the loop, never from here. hello.resume is set by the connector.

        io_threads: of the process's ZeroMQ context, when this is the first to use it. Raises UsageError when the
        address is malformed.
        """
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._address = check_server_address(address)
        self._on_turn = on_turn
        session_id = peer + os.urandom(SESSION_ID_BYTES - PEER_ID_BYTES)
        jitter = random.Random(session_id).random  # noqa: S311 (spreads attempts, hides nothing)
        self._core = ConnectorCore(session_id, hello, outbox or OutboxLimits(), self._loop.time(), jitter)
        self._context = context.acquire(io_threads)
        self._line: _Line | None = None
        self._broken = ""
        self._has_news = False
        self._closed = False
        self._in_turn = False
        self._waiters: list[asyncio.Future[None]] = []
        self._turns = Turns(self._loop, self._turn)
        self._turns.soon()

    # -- Connector -----------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._address

    @property
    def peer(self) -> bytes:
        """This process's own peer id."""
        return self._core.peer

    @property
    def connected(self) -> bool:
        """True between Welcomed or Resumed and Broken."""
        return self._core.phase is Phase.CONNECTED

    @property
    def welcome(self) -> Welcome | None:
        """What the server said last when it welcomed this peer, also after a break."""
        return self._core.welcome

    @property
    def trouble(self) -> str:
        """Why there is no connection, in words; what was the matter last when there is one."""
        return self._core.trouble

    @property
    def counters(self) -> Counters:
        """What went wrong so far."""
        return self._core.counters

    def outbox_bytes(self) -> int:
        """Return the bytes kept until the server acknowledges them."""
        return self._core.outbox_bytes()

    def send(self, message: Message, attachments: Sequence[Buffer] = ()) -> None:
        """Queue a message; attachments must stay as they are until they are acknowledged.

        Raises LimitError when the outbox is full or the message larger than the protocol allows. After Turned and
        after `close`, it is dropped.
        """
        if self._closed:
            return
        self._core.send(message, attachments)
        if not self._in_turn:
            self._turns.soon()

    async def wait_connected(self, timeout_seconds: float) -> Welcome:
        """Return the Welcome as soon as there is a connection.

        Raises UnreachableError when there is none in time, or when the connector is closed, and RefusedError when the
        server refuses this peer.
        """
        begun = self._loop.time()
        while not self.connected:
            if self._core.phase is Phase.STOPPED and not self._closed:
                raise RefusedError(f"{self._address} refused this peer: {self._core.trouble}")
            left = begun + timeout_seconds - self._loop.time()
            if left <= 0 or self._closed:
                waited = self._loop.time() - begun
                raise UnreachableError(
                    f"no answer from {self._address} within {waited:.1f} s ({self._core.trouble}): "
                    f"is it running, and is the address right?"
                )
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await asyncio.wait([waiter], timeout=left)
            self._waiters.remove(waiter)
        welcome = self._core.welcome
        assert welcome is not None, "connected by a Welcome"
        return welcome

    def close(self, farewell: str = "") -> None:
        """Say Goodbye, deliver what is queued within the linger time, and close."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._turns.close()
        now = self._loop.time()
        if self._line is not None:
            if self.connected:
                self._say_goodbye(self._line, farewell, now)
                self._line.monitor.close_both(LINGER_SECONDS)
            else:
                self._line.drop()
        self._core.stop()
        context.release(self._context)
        self._wake()

    def _say_goodbye(self, line: _Line, farewell: str, now: float) -> None:
        until = now + LINGER_SECONDS
        blocked = self._core.flush(self._transmit, now)
        while blocked and (left := until - self._loop.time()) > 0:
            line.socket.poll(round(left * 1000), zmq.POLLOUT)
            blocked = self._core.flush(self._transmit, now)
        self._core.say_goodbye(farewell)
        self._core.flush(self._transmit, now)

    # -- the turn ------------------------------------------------------------------------------------------------

    def _news(self) -> None:
        self._has_news = True
        self._turn()

    def _turn(self) -> None:
        now = self._loop.time()
        core = self._core
        if self._line is None and core.phase is Phase.WAITING and now >= core.dial_at:
            self._dial(now)
        line = self._line
        drained = True
        if line is not None:
            # Before the messages: what a connection brought before it broke can be read after the news of the break.
            if self._has_news:
                self._look_at_connection(line)
            drained = self._drain(line, now)
            if drained and self._broken:
                self._hang_up(self._broken, now)
        core.tick(now)
        if core.hang_up:
            self._hang_up(core.trouble, now)
        if core.phase is Phase.STOPPED and self._line is not None:
            self._drop_line()
        events = core.take_events()
        if events:
            self._in_turn = True
            try:
                self._on_turn(events)
            finally:
                self._in_turn = False
            self._wake()
        if not self._closed:
            self._finish(drained, now)

    def _finish(self, drained: bool, now: float) -> None:
        core = self._core
        if self._line is not None:
            blocked = core.flush(self._transmit, now)
            # Reading EVENTS takes in what the descriptor has announced: it must be the last word of a turn.
            ready = int(self._line.socket.getsockopt(zmq.EVENTS))
            if not drained or ready & zmq.POLLIN or (blocked and ready & zmq.POLLOUT):
                self._turns.soon()
        if core.hang_up or core.has_events:
            self._turns.soon()
        self._turns.at(core.next_at())

    def _drain(self, line: _Line, now: float) -> bool:
        size = 0
        for _ in range(MAX_MESSAGES_PER_TURN):
            parts = receive_parts(line.socket, routed=False)
            if parts is None:
                return True
            if parts.problem:
                self._core.malformed(parts.problem)
            else:
                self._core.receive(parts.header, parts.body, parts.attachments, now)
            size += parts.size_bytes
            if size > MAX_BYTES_PER_TURN:
                break
        return False

    def _transmit(self, _peer: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
        assert self._line is not None, "the core flushes only over a connection"
        return send_parts(self._line.socket, b"", header, body, attachments)

    def _dial(self, now: float) -> None:
        self._broken = ""
        self._line = line = _Line(self._context, self._address)
        self._has_news = True
        self._turns.watch((int(line.socket.getsockopt(zmq.FD)), self._turn), (line.monitor.file_descriptor, self._news))
        self._core.dialled(now)
        try:
            line.socket.connect(self._address)
        except zmq.ZMQError as error:
            self._hang_up(str(error), now)

    def _look_at_connection(self, line: _Line) -> None:
        self._has_news = False
        for event in line.monitor.take():
            if not self._broken:
                self._broken = _BREAKS.get(zmq.Event(event.kind), "")

    def _hang_up(self, why: str, now: float) -> None:
        self._drop_line()
        self._core.broken(why, now)

    def _drop_line(self) -> None:
        if self._line is not None:
            self._turns.watch()
            self._line.drop()
            self._line = None

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
