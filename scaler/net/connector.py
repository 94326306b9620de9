"""A connector on the running event loop: a fresh connection for every attempt, through a door or over ZeroMQ."""

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
from scaler.net.connection import Buffer, ConnectorEvent, OutboxLimits
from scaler.net.connector_core import ConnectorCore, Phase
from scaler.net.envelopes import LINGER_SECONDS, Counters, Taken
from scaler.net.frames import Context
from scaler.net.lines import Line
from scaler.net.local import connect, door_of
from scaler.net.local_line import LocalLine
from scaler.net.turns import Turns
from scaler.net.zmq_line import ZmqLine
from scaler.protocol.messages import Hello, Message, Welcome
from scaler.protocol.session import SESSION_ID_BYTES


class SocketConnector:
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
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._address = check_server_address(address)
        self._on_events = on_events
        session_id = peer + os.urandom(SESSION_ID_BYTES - PEER_ID_BYTES)
        jitter = random.Random(session_id).random  # noqa: S311 (spreads attempts, hides nothing)
        self._core = ConnectorCore(session_id, hello, outbox or OutboxLimits(), self._loop.time(), jitter)
        self._io_threads = io_threads
        self._context: Context | None = None
        self._line: Line | None = None
        self._tries_door = True
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
    def last_error(self) -> str:
        """Why there is no connection, in words; what was the matter last when there is one."""
        return self._core.last_error

    @property
    def counters(self) -> Counters:
        """What went wrong so far."""
        return self._core.counters

    def outbox_bytes(self) -> int:
        """Return the bytes kept until the server acknowledges them."""
        return self._core.outbox_bytes()

    def send(self, message: Message, attachments: Sequence[Buffer] = ()) -> None:
        """Queue a message; attachments must stay as they are until they are acknowledged.

        Raises LimitError when the outbox is full or the message larger than the protocol allows. After
        ConnectionRefused and after `close`, it is dropped.
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
                raise RefusedError(f"{self._address} refused this peer: {self._core.last_error}")
            left = begun + timeout_seconds - self._loop.time()
            if left <= 0 or self._closed:
                waited = self._loop.time() - begun
                raise UnreachableError(
                    f"no answer from {self._address} within {waited:.1f} s ({self._core.last_error}): "
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
        self._closed = True
        self._turns.close()
        now = self._loop.time()
        if self._line is not None:
            # Through a door a greeting is there as soon as it is sent, and what was greeted must be taken leave of.
            if self.connected or isinstance(self._line, LocalLine):
                self._say_goodbye(self._line, reason, now)
                self._line.finish(LINGER_SECONDS)
            else:
                self._line.drop()
        self._core.stop()
        if self._context is not None:
            context.release(self._context)
        self._wake()

    def _say_goodbye(self, line: Line, reason: str, now: float) -> None:
        until = now + LINGER_SECONDS
        blocked = self._core.flush(self._transmit, now)
        while blocked and (left := until - self._loop.time()) > 0 and line.wait_writable(left):
            blocked = self._core.flush(self._transmit, now)
        self._core.say_goodbye(reason)
        self._core.flush(self._transmit, now)

    # -- the turn ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        now = self._loop.time()
        core = self._core
        if self._line is None and core.phase is Phase.WAITING and now >= core.dial_at:
            self._dial(now)
        line = self._line
        drained = True
        if line is not None:
            drained = line.drain(core, now)
            if drained and line.broken:
                self._hang_up(line.broken, now)
        core.tick(now)
        if core.hang_up:
            self._hang_up(core.last_error, now)
        if core.phase is Phase.STOPPED and self._line is not None:
            self._drop_line()
        events = core.take_events()
        if events:
            self._in_turn = True
            try:
                self._on_events(events)
            finally:
                self._in_turn = False
            self._wake()
        if not self._closed:
            self._finish(drained, now)

    def _finish(self, drained: bool, now: float) -> None:
        core = self._core
        if self._line is not None:
            blocked = core.flush(self._transmit, now)
            if self._line.rest(blocked) or not drained:
                self._turns.soon()
        if core.hang_up or core.has_events:
            self._turns.soon()
        self._turns.at(core.next_at())

    def _transmit(self, peer: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
        assert self._line is not None, "the core flushes only over a connection"
        return self._line.transmit(peer, header, body, attachments)

    def _dial(self, now: float) -> None:
        self._core.dialled(now)
        try:
            self._line = self._local_line() or self._zmq_line()
        except (OSError, zmq.ZMQError) as error:  # the process has no descriptor left, and may have one later
            self._core.broken(f"this process could not make a connection: {error}", now)

    def _local_line(self) -> Line | None:
        door = door_of(self._address) if self._tries_door else None
        stream = connect(door) if door is not None else None
        return LocalLine(self._loop, self._turn, stream) if stream is not None else None

    def _zmq_line(self) -> Line:
        if self._context is None:
            self._context = context.acquire(self._io_threads)
        return ZmqLine(self._loop, self._turn, self._context, self._address)

    def _hang_up(self, why: str, now: float) -> None:
        # Should somebody be behind the door who does not welcome this peer, the server itself may.
        self._tries_door = self.connected or not isinstance(self._line, LocalLine)
        self._drop_line()
        self._core.broken(why, now)

    def _drop_line(self) -> None:
        if self._line is not None:
            self._line.drop()
            self._line = None

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
