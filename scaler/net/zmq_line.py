"""A connector's connection over ZeroMQ: a DEALER socket that connects once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

from scaler.net.address import is_ipv6
from scaler.net.connection import Buffer
from scaler.net.connector_core import ConnectorCore
from scaler.net.envelopes import HANDSHAKE_SECONDS, Taken
from scaler.net.frames import (
    HIGH_WATER_MESSAGES,
    MAX_BYTES_PER_TURN,
    MAX_FRAME_BYTES,
    MAX_MESSAGES_PER_TURN,
    Context,
    receive_parts,
    send_parts,
)
from scaler.net.monitoring import Monitor

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


class ZmqLine:
    """See `lines.Line`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, turn: Callable[[], None], zmq_context: Context, address: str
    ) -> None:
        self._loop = loop
        self._turn = turn
        self._socket = socket = zmq_context.socket(zmq.DEALER)
        self._has_news = True
        self.broken = ""
        socket.linger = 0
        # Never by itself; but with -1, "never", it would throw away what it has received when the connection breaks.
        socket.reconnect_ivl = NEVER_MILLISECONDS
        socket.maxmsgsize = MAX_FRAME_BYTES
        socket.sndhwm = socket.rcvhwm = HIGH_WATER_MESSAGES
        socket.handshake_ivl = round(HANDSHAKE_SECONDS * 1000)
        socket.connect_timeout = round(HANDSHAKE_SECONDS * 1000)
        socket.ipv6 = is_ipv6(address)
        try:
            self._monitor = Monitor(socket)
        except zmq.ZMQError:
            socket.close()
            raise
        self._descriptors = (int(socket.getsockopt(zmq.FD)), self._monitor.file_descriptor)
        loop.add_reader(self._descriptors[0], turn)
        loop.add_reader(self._descriptors[1], self._news)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            self.broken = str(error)

    def _news(self) -> None:
        self._has_news = True
        self._turn()

    def drain(self, core: ConnectorCore, now: float) -> bool:
        # Before the messages: what a connection brought before it broke can be read after the news of the break.
        if self._has_news:
            self._has_news = False
            for event in self._monitor.take():
                if not self.broken:
                    self.broken = _BREAKS.get(zmq.Event(event.kind), "")
        size = 0
        for _ in range(MAX_MESSAGES_PER_TURN):
            parts = receive_parts(self._socket, routed=False)
            if parts is None:
                return True
            if parts.problem:
                core.malformed(parts.problem)
            else:
                core.receive(parts.header, parts.body, parts.attachments, now)
            size += parts.size_bytes
            if size > MAX_BYTES_PER_TURN:
                break
        return False

    def transmit(self, _peer: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
        return send_parts(self._socket, b"", header, body, attachments)

    def rest(self, is_blocked: bool) -> bool:
        # Reading EVENTS takes in what the descriptor has announced: it must be the last word of a turn.
        ready = int(self._socket.getsockopt(zmq.EVENTS))
        return bool(ready & zmq.POLLIN or (is_blocked and ready & zmq.POLLOUT))

    def wait_writable(self, seconds: float) -> bool:
        self._socket.poll(round(seconds * 1000), zmq.POLLOUT)
        return True

    def finish(self, linger_seconds: float) -> None:
        self._unwatch()
        self._monitor.close_both(linger_seconds)

    def drop(self) -> None:
        self._unwatch()
        self._monitor.close()
        self._socket.close()

    def _unwatch(self) -> None:
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
