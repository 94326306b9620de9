"""Shared parts of both ends of a ZeroMQ connection: the process's context, and reading and writing envelopes.

ZeroMQ is for connections between hosts, and for platforms without the local transport. Large frames are not copied if
that is safe. A connector opens a new socket for each connection, instead of using ZeroMQ's reconnects. Unencrypted
envelopes have a checksum, because a proxy or network card may corrupt data unnoticed. The checksum replaces the
header's flags. 0 means no checksum, because peers in other languages may omit it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

import zmq
from zmq.utils import (
    garbage,  # pyzmq would import this for the first large frame, when perhaps no descriptor is free
    z85,
)

from scaler.net import transport as t
from scaler.net.kernel import are_descriptors_scarce
from scaler.net.keys import ServerKeys
from scaler.net.transport import EnvelopeReceived, Input, MalformedReceived
from scaler.net.wakeups import Wakeups
from scaler.processes import after_fork
from scaler.protocol.messages import MAX_ATTACHED_BYTES, MAX_BATCH_BYTES, Attachments, Buffer
from scaler.protocol.session import HEADER_BYTES, MAX_ATTACHMENTS, Envelope

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

MAX_FRAME_BYTES = max(MAX_BATCH_BYTES, MAX_ATTACHED_BYTES)
"""Maximum frame size. If a connection announces a larger frame, ZeroMQ cuts it before allocating memory."""
HIGH_WATER_MESSAGES = 500
"""Maximum messages that ZeroMQ queues per connection and direction. The transport queues the rest."""
MAX_MESSAGES_PER_ITERATION = 1000
MAX_BYTES_PER_ITERATION = 1024 * 1024
"""Bytes to read before timers and other sockets get a turn."""
COPY_BYTES = 64 * 1024
"""Buffers below this size are copied into the frame, which is cheaper than a callback on release."""
SHARED_BYTES = 8 * 1024
"""Received frames below this size share a ZeroMQ buffer with other frames, so a view would pin the whole buffer."""
MESSAGE_OVERHEAD_BYTES = 256
FRAME_OVERHEAD_BYTES = 64
MONITOR_SECONDS = 2.0
"""Maximum time for ZeroMQ to close a socket after its linger time."""

_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
LAST = int(zmq.DONTWAIT)
# As ints: enum operations are slow.
EVENTS, READABLE, WRITABLE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.POLLOUT)
MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
_MONITORED = int(
    zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_MONITOR_STOPPED
)
_MONITOR_EVENT = struct.Struct("=HI")
_monitor_numbers = itertools.count()

_lock = threading.Lock()
_contexts: list[tuple[Context, int]] = []
_users = 0
_authenticator: tuple[Context, Authenticator] | None = None


def acquire_context() -> Context:
    """Return the process's context. Release it with `release_context`."""
    global _users  # noqa: PLW0603 (there is one context in a process)
    with _lock:
        if not _contexts or _contexts[-1][1] != os.getpid():
            _contexts.append((zmq.Context(), os.getpid()))
            _users = 0
        _users += 1
        return _contexts[-1][0]


def release_context() -> None:
    """Release the context. The last release waits for closed sockets to deliver within their linger time."""
    global _users  # noqa: PLW0603
    with _lock:
        _users -= 1
        if _users:
            return
        context, _ = _contexts.pop()
    context.term()


def authenticator_of(context: Context) -> Authenticator:
    global _authenticator  # noqa: PLW0603 (there is one in a context)
    with _lock:
        if _authenticator is None or _authenticator[0] is not context:
            _authenticator = context, Authenticator(context)
        return _authenticator[1]


def _after_fork() -> None:
    global _lock  # noqa: PLW0603
    # Another thread of the parent process may have held the lock.
    _lock = threading.Lock()


after_fork(_after_fork)


def is_readable(socket: Socket) -> bool:
    """Return whether a message is available. Resets the descriptor's readiness, so this must be the socket's last
    use."""
    return bool(int(socket.getsockopt(EVENTS)) & READABLE)


def receive_envelope(socket: Socket, link: t.Transport, header: zmq.Frame) -> tuple[t.Input, int]:
    """Read the rest of an envelope after its header frame. Returns it as an input, and its size in bytes."""
    if not header.more:
        return t.MalformedReceived(link, "an envelope has at least two frames"), len(header)
    body = socket.recv(LAST, copy=False)
    size = len(body) + MESSAGE_OVERHEAD_BYTES
    if not body.more:
        return t.EnvelopeReceived(link, header.bytes, body.bytes), size
    attachments: list[memoryview] = []
    excess = 0
    more = True
    while more:
        frame = socket.recv(LAST, copy=False)
        more = frame.more
        if len(attachments) < MAX_ATTACHMENTS:
            attachments.append(frame.buffer.toreadonly() if len(frame) > SHARED_BYTES else memoryview(frame.bytes))
            size += len(frame) + FRAME_OVERHEAD_BYTES
        else:
            excess += 1
    if excess:
        text = f"MAX_ATTACHMENTS = {MAX_ATTACHMENTS} is exceeded by {excess}"
        return t.MalformedReceived(link, text), size
    return t.EnvelopeReceived(link, header.bytes, body.bytes, attachments), size


def send_envelopes(socket: Socket, route: bytes, unsent: deque[Envelope]) -> bool:
    """Send envelopes. Returns False if the connection is full. route: empty for DEALER."""
    while unsent:
        header, body, attachments, _ = unsent[0]
        try:
            if route:
                socket.send(route, _MORE)
            socket.send(header, _MORE)
            _send_frame(socket, body, _MORE if attachments else LAST)
            for number, attachment in enumerate(attachments, 1):
                _send_frame(socket, attachment, _MORE if number < len(attachments) else LAST)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            unsent.clear()  # the connection is lost; the monitor reports it
            return True
        unsent.popleft()
    return True


_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


class Authenticator:
    """Authenticates peers by key for ZeroMQ. One per context, created before its first listener with keys. Without an
    authenticator, ZeroMQ accepts every key. ZeroMQ sends requests over an internal socket (ZAP,
    https://rfc.zeromq.org/spec/27/). A thread answers them, so that peers do not wait for a busy server."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.servers: dict[bytes, ServerKeys] = {}
        """Server keys by ZAP domain."""
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ADDRESS)
        threading.Thread(target=self._run, name="scaler-authenticator", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                request = self._socket.recv_multipart()
                self._socket.send_multipart([_VERSION, request[1], *self._answer(request)])
            except zmq.ContextTerminated:
                self._socket.close()
                return

    def _answer(self, request: list[bytes]) -> tuple[bytes, bytes, bytes, bytes]:
        version, _, domain, origin, _, mechanism, *credentials = request
        keys = self.servers.get(domain)
        if keys is None or version != _VERSION or mechanism != b"CURVE" or len(credentials) != 1:
            return b"400", b"", b"", b""
        public_key = z85.encode(credentials[0])
        code = keys.decide(public_key.decode(), origin.decode(errors="replace"))
        return code.encode(), b"", public_key if code == "200" else b"", b""


_CHECKSUM = slice(4, 8)


def with_checksum(envelope: Envelope) -> Envelope:
    header, body, attachments, _ = envelope  # the header of compressed frames is longer
    checksum = _crc32(header, body, attachments).to_bytes(4, "little")
    return envelope._replace(header=header[: _CHECKSUM.start] + checksum + header[_CHECKSUM.stop :])


def checked(received: Input) -> Input:
    """Verify and remove the checksum. Returns a `MalformedReceived` if bytes are damaged."""
    if not isinstance(received, EnvelopeReceived):
        return received
    header = received.header
    checksum = int.from_bytes(header[_CHECKSUM], "little")
    if not checksum or len(header) < HEADER_BYTES:
        return received
    header = header[: _CHECKSUM.start] + bytes(4) + header[_CHECKSUM.stop :]
    if _crc32(header, received.body, received.attachments) != checksum:
        return MalformedReceived(received.link, "bytes of an envelope were damaged in transit", is_damaged=True)
    return received._replace(header=header)


def _crc32(header: bytes, body: bytes, attachments: Attachments) -> int:
    value = crc32(body, crc32(header))
    for attachment in attachments:
        value = crc32(attachment, value)
    return value


class Outgoing:
    def __init__(self, has_checksums: bool) -> None:
        self.packer: Any = None
        """A `scaler.extensions.compression.frames.Packer`, or None."""
        self.is_packing = False
        """Whether the queue waits for CPU time to compress, not for the connection."""
        self._has_checksums = has_checksums
        self._unpacked: deque[Envelope] = deque()
        self._unsent: deque[Envelope] = deque()

    def add(self, envelopes: Iterable[Envelope]) -> None:
        if self.packer is not None:
            self._unpacked.extend(envelopes)
        else:
            self._unsent.extend(map(with_checksum, envelopes) if self._has_checksums else envelopes)

    def send(self, socket: Socket, route: bytes) -> bool:
        self.is_packing = False
        if self.packer is not None:
            self.packer.begin()
        while send_envelopes(socket, route, self._unsent):
            if self.packer is None or not self._unpacked:
                return True
            if self.packer.is_used_up:
                self.is_packing = True
                return False
            packed = self.packer.pack(self._unpacked.popleft())
            self._unsent.append(with_checksum(packed) if self._has_checksums else packed)
        return False


def _send_frame(socket: Socket, buffer: Buffer, flags: int) -> None:
    size = len(buffer)
    if isinstance(buffer, memoryview):
        size = buffer.nbytes
        whole = buffer.obj
        if isinstance(whole, zmq.Frame) and size == len(whole):
            # A complete received frame: ZeroMQ counts references to its memory, without a callback to Python.
            socket.send(whole, flags, copy=False)
            return
    socket.send(buffer, flags, copy=size < COPY_BYTES or not _may_lend())


def _may_lend() -> bool:
    """Return whether frames may be sent without a copy. For the first such frame, pyzmq starts a thread with sockets,
    and ZeroMQ aborts the process if no descriptor is free."""
    return garbage.gc.is_alive() or not are_descriptors_scarce()


class ZmqEnd:
    def __init__(self, context: Context, kind: int, wakeups: Wakeups, more_events: int = 0) -> None:
        """Raises OSError if no descriptor is free. more_events: EVENT_HANDSHAKE_FAILED_PROTOCOL if the owner closes
        the socket on this event. While a monitor's mask contains this event, libzmq 4.3.5 never closes a connection
        whose stream is damaged after the handshake: see docs/libzmq-damaged-streams.md."""
        self._wakeups = wakeups
        self._has_events = True
        address = f"inproc://monitor-{next(_monitor_numbers)}"
        try:
            self._socket: Socket = context.socket(kind)
            try:
                self._socket.monitor(address, _MONITORED | more_events)
                self._monitor: Socket = context.socket(zmq.PAIR)
            except zmq.ZMQError:
                self._socket.close()
                raise
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from error
        # With a limit, ZeroMQ's I/O thread would block when many peers connect at once.
        self._monitor.rcvhwm = 0
        self._monitor.connect(address)

    def _set_options(self, *, ipv6: bool) -> None:
        socket = self._socket
        socket.linger = 0
        socket.maxmsgsize = MAX_FRAME_BYTES
        socket.sndhwm = socket.rcvhwm = HIGH_WATER_MESSAGES
        socket.handshake_ivl = round(t.HANDSHAKE_SECONDS * 1000)
        socket.ipv6 = ipv6

    def _watch(self) -> None:
        self._wakeups.watch(int(self._socket.getsockopt(zmq.FD)), self._wake)
        self._wakeups.watch(int(self._monitor.getsockopt(zmq.FD)), self._wake_for_events)
        # The descriptors are edge-triggered, and an event may predate the watch.
        self._wakeups.soon()

    def _unwatch(self) -> None:
        for socket in (self._socket, self._monitor):
            self._wakeups.unwatch(int(socket.getsockopt(zmq.FD)))

    def _wake(self) -> None:
        self._wakeups.wake()

    def _wake_for_events(self) -> None:
        self._has_events = True
        self._wake()

    def _take_events(self) -> Iterable[tuple[int, int]]:
        """Yield all events since the last call, each as a zmq.EVENT_... with a file descriptor or error number."""
        self._has_events = False
        while True:
            try:
                frames = self._monitor.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            kind, value = _MONITOR_EVENT.unpack(frames[0])
            yield kind, value

    def _close(self, linger_seconds: float) -> None:
        """Close the socket. Delivers messages for up to the linger time, and returns once the address is free."""
        self._socket.close(linger=round(linger_seconds * 1000))
        # Wait for the socket's last event. ZeroMQ's thread sends it, and could block if the monitor closed first.
        while self._monitor.poll(round((linger_seconds + MONITOR_SECONDS) * 1000)):
            if any(kind == zmq.EVENT_MONITOR_STOPPED for kind, _ in self._take_events()):
                break
        self._monitor.close(linger=0)

    def _read(self, read_one: Callable[[], int]) -> bool:
        """Read messages with read_one, which returns a message's size. Returns False at the limit for one iteration."""
        size = 0
        for _ in range(MAX_MESSAGES_PER_ITERATION):
            if size > MAX_BYTES_PER_ITERATION:
                break
            if not is_readable(self._socket):
                return True
            with contextlib.suppress(zmq.Again):  # the connection has just closed
                size += read_one()
        return False
