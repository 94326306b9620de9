"""What ZeroMQ tells about the connections of one socket: which are there, which are gone, and how to cut one."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket as sockets
import stat
import struct
from dataclasses import dataclass

import zmq

from scaler.net.frames import Socket

_numbers = itertools.count()
_EVENT = struct.Struct("=HI")
_WATCHED = int(
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_MONITOR_STOPPED
)
GRACE_SECONDS = 2.0
"""Longer than ZeroMQ ever takes to close a socket after its linger time."""


@dataclass(frozen=True, slots=True)
class SocketEvent:
    """kind is one of zmq.EVENT_...; value is a file descriptor, or an error number."""

    kind: int
    value: int


class Monitor:
    """The events of one socket, in order."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        address = f"inproc://monitor-{next(_numbers)}"
        socket.monitor(address, _WATCHED)
        self._events: Socket = socket.context.socket(zmq.PAIR)
        # With a limit, ZeroMQ's I/O thread would wait for us when many connect at once.
        self._events.rcvhwm = 0
        self._events.connect(address)

    @property
    def file_descriptor(self) -> int:
        """Becomes readable when there are events; `take` all of them then."""
        return int(self._events.getsockopt(zmq.FD))

    def take(self) -> list[SocketEvent]:
        """Return the events since the last call."""
        found: list[SocketEvent] = []
        while True:
            try:
                frames = self._events.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return found
            found.append(SocketEvent(*_EVENT.unpack(frames[0])))

    def close(self) -> None:
        """Stop watching; the socket lives on."""
        self._socket.disable_monitor()
        self._events.close(linger=0)

    def close_both(self, linger_seconds: float) -> None:
        """Close the socket, and return when its messages are delivered or the linger time is over.

        Its addresses are free and its descriptors closed then, which a closed socket alone does not promise.
        """
        self._socket.close(linger=round(linger_seconds * 1000))
        # The socket's last word. To stop listening before it could block ZeroMQ's thread, which speaks to us.
        while self._events.poll(round((linger_seconds + GRACE_SECONDS) * 1000)):
            if any(event.kind == zmq.EVENT_MONITOR_STOPPED for event in self.take()):
                break
        self._events.close(linger=0)


class Connections:
    """The accepted connections of one listening socket, by file descriptor.

    A descriptor's number is used again as soon as its connection is closed. ZeroMQ tells of the end before it closes,
    and of the next beginning before it delivers anything, so after taking all of the monitor's events a number that is
    here belongs to the connection that was last accepted under it.
    """

    def __init__(self) -> None:
        self._inodes: dict[int, int] = {}
        self._origins: dict[int, str] = {}

    def __contains__(self, file_descriptor: int) -> bool:
        return file_descriptor in self._inodes

    def __len__(self) -> int:
        return len(self._inodes)

    def accepted(self, file_descriptor: int) -> None:
        try:
            self._inodes[file_descriptor] = os.fstat(file_descriptor).st_ino
            self._origins[file_descriptor] = _origin(file_descriptor)
        except OSError:
            # It is closed again already; the event that says so comes next.
            self._inodes[file_descriptor] = -1

    def gone(self, file_descriptor: int) -> str:
        """Forget a connection; return where it came from, for people."""
        self._inodes.pop(file_descriptor, None)
        return self._origins.pop(file_descriptor, "an unknown place")

    def cut(self, file_descriptor: int) -> None:
        """Shut a connection down, so that ZeroMQ finds it broken: it has no call of its own for that.

        A duplicate of the descriptor, checked to be the same socket, is what is shut down, as the number may already
        name another file.
        """
        inode = self._inodes.get(file_descriptor)
        if inode is None:
            return
        try:
            duplicate = os.dup(file_descriptor)
        except OSError:
            return
        found = os.fstat(duplicate)
        if found.st_ino != inode or not stat.S_ISSOCK(found.st_mode):
            os.close(duplicate)
            return
        with sockets.socket(fileno=duplicate) as connection, contextlib.suppress(OSError):
            connection.shutdown(sockets.SHUT_RDWR)


def _origin(file_descriptor: int) -> str:
    duplicate = os.dup(file_descriptor)
    try:
        connection = sockets.socket(fileno=duplicate)
    except OSError:  # closed meanwhile, and its number given to something else
        os.close(duplicate)
        raise
    with connection:
        name = connection.getpeername()
    return f"{name[0]} port {name[1]}" if isinstance(name, tuple) else "a process of this host"
