"""ZeroMQ's frames: read without copies where that pays, written without copies where that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import zmq

from scaler.net.connection import Buffer
from scaler.net.envelopes import Taken
from scaler.protocol.messages import MAX_BATCH_BYTES, MAX_CHUNK_BYTES
from scaler.protocol.session import MAX_ATTACHMENTS

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

MAX_FRAME_BYTES = max(MAX_BATCH_BYTES, MAX_CHUNK_BYTES)
"""ZeroMQ cuts a connection that announces a larger frame, before it takes memory for it."""
HIGH_WATER_MESSAGES = 500
"""Messages that ZeroMQ queues per connection and direction; beyond it they wait in the outbox, or at the sender."""
MAX_MESSAGES_PER_TURN = 1000
MAX_BYTES_PER_TURN = 64 * 1024 * 1024
"""A turn ends after this many messages or bytes, so that timers and other sockets get theirs."""
COPY_BYTES = 64 * 1024
"""Smaller buffers are copied into the frame: cheaper than telling Python later that they are free again."""
SHARED_BYTES = 8 * 1024
"""Smaller received frames share a buffer of ZeroMQ with their neighbours, and a view would keep all of it."""
_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_LAST = int(zmq.DONTWAIT)
_EVENTS = int(zmq.EVENTS)
_READABLE = int(zmq.POLLIN)


class Parts(NamedTuple):
    """One received message. problem: why it is no envelope, or empty."""

    route: bytes
    frame: zmq.Frame
    """Any of its frames: it knows which connection brought it."""
    header: bytes
    body: bytes
    attachments: Sequence[memoryview]
    size_bytes: int
    problem: str

    def file_descriptor(self) -> int:
        """Return the descriptor of the connection that brought this, which may be closed by now.

        -1 when ZeroMQ does not say, as for peers that speak an older version of its protocol than any of ours.
        """
        try:
            return int(self.frame.get(zmq.SRCFD))
        except zmq.ZMQError:
            return -1


def is_readable(socket: Socket) -> bool:
    """Tell whether there is a message: cheaper than to be told by an exception.

    This takes in what the socket's descriptor has announced.
    """
    return bool(int(socket.getsockopt(_EVENTS)) & _READABLE)


def receive_parts(socket: Socket, routed: bool) -> Parts | None:
    """Return the next message, or None when there is none now. routed: a routing id comes first (ROUTER)."""
    if not is_readable(socket):
        return None
    try:
        route = socket.recv(_LAST) if routed else b""
        header = socket.recv(_LAST, copy=False)
    except zmq.Again:
        return None  # its connection has just ended
    if not header.more:
        return Parts(route, header, b"", b"", (), len(header), "an envelope has two frames at least")
    body = socket.recv(_LAST, copy=False)
    size = len(body)
    if not body.more:
        return Parts(route, header, header.bytes, body.bytes, (), size, "")
    attachments: list[memoryview] = []
    excess = 0
    more = True
    while more:
        frame = socket.recv(_LAST, copy=False)
        more = frame.more
        if len(attachments) < MAX_ATTACHMENTS:
            attachments.append(frame.buffer.toreadonly() if len(frame) > SHARED_BYTES else memoryview(frame.bytes))
            size += len(frame)
        else:
            excess += 1
    problem = f"{excess} attachments more than MAX_ATTACHMENTS = {MAX_ATTACHMENTS}" if excess else ""
    return Parts(route, header, header.bytes, body.bytes, attachments, size, problem)


def send_parts(socket: Socket, route: bytes, header: bytes, body: bytes, attachments: Sequence[Buffer]) -> Taken:
    """Send one message without waiting; route is empty for a socket with one peer."""
    try:
        if route:
            socket.send(route, _MORE)
        socket.send(header, _MORE)
        _send(socket, body, _MORE if attachments else _LAST)
        if attachments:
            for attachment in attachments[:-1]:
                _send(socket, attachment, _MORE)
            _send(socket, attachments[-1], _LAST)
    except zmq.Again:
        return Taken.BLOCKED
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            return Taken.GONE
        raise
    return Taken.SENT


def _send(socket: Socket, buffer: Buffer, flags: int) -> None:
    if isinstance(buffer, memoryview):
        whole = buffer.obj
        if isinstance(whole, zmq.Frame) and buffer.nbytes == len(whole):
            # It was received as it is: ZeroMQ counts the users of its own memory, and Python need not hear of it.
            socket.send(whole, flags, copy=False)
            return
        socket.send(buffer, flags, copy=buffer.nbytes < COPY_BYTES)
    else:
        socket.send(buffer, flags, copy=len(buffer) < COPY_BYTES)
