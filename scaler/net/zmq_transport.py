"""ZeroMQ as a transport: the wire between hosts, and on platforms without the local transport.

Frames are read without copies where that pays, and written without copies where that is safe. ZeroMQ's own reconnecting
is switched off: a connector uses a fresh socket for each connection, and a listener learns from a socket monitor which
connections there are, and when one ends.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket as sockets
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import zmq

from scaler.errors import UsageError
from scaler.net import transport as t
from scaler.net.address import SocketFile, cannot_bind, check_not_in_use
from scaler.net.identity import ANYONE, NOBODY, Identity
from scaler.net.kernel import is_scarce, received_bytes, resident_bytes
from scaler.net.keys import REVOKED, PeerKeys, ServerKeys
from scaler.net.zap import Authenticator
from scaler.protocol.messages import MAX_BATCH_BYTES, MAX_CHUNK_BYTES, MAX_HELLO_BYTES
from scaler.protocol.session import MAX_ATTACHMENTS, Buffer, Envelope, OutboxLimits


class LoopWaker(t.Watcher, Protocol):
    """Wakes the owner of transports on an event loop; see `connector.Wakeups`."""

    @property
    def wake(self) -> Callable[[], object]: ...

    def watch(self, descriptor: int, readable: Callable[[], None] | None = None) -> None: ...

    def soon(self, seconds: float = 0.0) -> None: ...

    def repeat(self, check: Callable[[], float]) -> None: ...


Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

MAX_FRAME_BYTES = max(MAX_BATCH_BYTES, MAX_CHUNK_BYTES)
"""ZeroMQ cuts a connection that announces a larger frame, before it takes memory for it."""
HIGH_WATER_MESSAGES = 500
"""Messages that ZeroMQ queues per connection and direction; beyond it they wait in the transport."""
MAX_MESSAGES_PER_ITERATION = 1000
MAX_BYTES_PER_ITERATION = 1024 * 1024
"""Reading pauses after this number of messages or bytes, so that timers and other sockets are served."""
COPY_BYTES = 64 * 1024
"""Smaller buffers are copied into the frame: cheaper than a notice to Python later that they are free again."""
SHARED_BYTES = 8 * 1024
"""Smaller received frames share a buffer of ZeroMQ with their neighbours, and a view would keep all of it."""
BACKLOG = 1024
"""Connections that the kernel keeps for each address until they are accepted."""
BLOCKED_RETRY_SECONDS = 0.02
"""ROUTER does not announce when a full connection has room again."""
MAX_ITERATIONS_AFTER_BREAK = 8
"""The end of a connection is reported when all it brought has been read, or after this number of iterations."""
MEMORY_CHECK_SECONDS = 0.05
GROWTH_BYTES = 16 * 1024 * 1024
"""While there are connections, and the process has grown by this, it is looked at what each of them has brought."""
UNIDENTIFIED_CHECK_SECONDS = 0.01
UNIDENTIFIED_GROWTH_BYTES = 2 * 1024 * 1024
"""The same while there are connections that are not welcomed yet, for these."""
MAX_UNIDENTIFIED_BYTES = MAX_HELLO_BYTES + 4096
"""Most that a connection may bring before its welcome, with the handshakes below it."""
MAX_INCOMPLETE_BYTES = MAX_BATCH_BYTES + 32 * 1024 * 1024
"""Most that may have come of a message that is not whole: a message, and what waits in the kernel."""
MAX_UNREAD_BYTES = OutboxLimits().size_bytes
"""Most that may have come and not been read while this process is slow: no peer of ours sends more unacknowledged."""
MESSAGE_OVERHEAD_BYTES = 256
"""What ZeroMQ and encryption add to a message, at most, beside its bodies. (So is the header.)"""
FRAME_OVERHEAD_BYTES = 64
MONITOR_SECONDS = 2.0
"""Longer than ZeroMQ ever takes to close a socket after its linger time."""
NEVER_MILLISECONDS = 24 * 3600 * 1000

_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_LAST = int(zmq.DONTWAIT)
# As numbers: operations of enumerations are slow.
_EVENTS, _READABLE, _WRITABLE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.POLLOUT)
_BREAKS: dict[int, str] = {
    zmq.EVENT_CLOSED: "connection refused or host unreachable: nothing listens there",
    # Of an attempt that did not even come to a socket; after any of the others it is not the first any more.
    zmq.EVENT_CONNECT_RETRIED: "no host of this name is known",
    zmq.EVENT_DISCONNECTED: "the connection broke",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the program that listens there does not speak ZeroMQ",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the server does not let this peer in",
}
_SHAKEN = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_NO_DETAIL = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
_WRONG_KEY = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
UNPROVEN_ATTEMPTS = 2
"""Any program that took the port of a server that has ended can say so: it ends no peer that was welcomed before."""
WRONG_SERVER_ATTEMPTS = 3
"""A server that ends in the middle of a handshake looks like one that has another key; not so often in a row."""
_MONITORED = int(
    sum(_BREAKS) | _NO_DETAIL | _SHAKEN | zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_MONITOR_STOPPED
)
_FAILURES = {
    _MISMATCH: "it has no key, and this server asks for one: give it a credential (scaler keys add)",
    _WRONG_KEY: "it expects another server: its credential is of another cluster, or it has none",
}
"""What a failed handshake says about the peer, by the value of the event."""
HAS_A_KEY = "it asks for keys, and this server runs with insecure_no_auth: the peer has to say so too"
ASKS_FOR_KEYS = "the server asks for keys: leave insecure_no_auth out here, and give a credential"
NO_CREDENTIAL = (
    "the server asks for a key, and this process has none: give the file that `scaler keys add` wrote on the server's "
    "side as credentials= or SCALER_CREDENTIALS (unless it runs with insecure_no_auth, or is no server of scaler)"
)
CLOSED_AT_ONCE = "connections there are closed at once: a forwarder, perhaps, whose server is away"
_MONITOR_EVENT = struct.Struct("=HI")
_monitor_numbers = itertools.count()

_lock = threading.Lock()
_contexts: list[tuple[Context, int]] = []
"""The context of this process with its pid, behind those of the processes that it was forked from.

Their threads are not here, so they must not be touched.
"""
_users = 0
_authenticator: tuple[Context, Authenticator] | None = None
_domains = itertools.count()


def acquire_context(io_threads: int) -> Context:
    """Return the one context of this process, to be given back by `release_context` after closing its sockets.

    io_threads holds when this call makes the context, so the first user in a process decides.
    """
    global _users  # noqa: PLW0603 (there is one context in a process)
    with _lock:
        if not _contexts or _contexts[-1][1] != os.getpid():
            _contexts.append((zmq.Context(io_threads=io_threads), os.getpid()))
            _users = 0
        _users += 1
        return _contexts[-1][0]


def release_context() -> None:
    """Give the context back. The last user waits until its closed sockets have delivered, within their linger time."""
    global _users  # noqa: PLW0603
    with _lock:
        _users -= 1
        if _users:
            return
        context, _ = _contexts.pop()
    context.term()


def _authenticator_of(context: Context) -> Authenticator:
    global _authenticator  # noqa: PLW0603 (there is one in a context)
    with _lock:
        if _authenticator is None or _authenticator[0] is not context:
            _authenticator = context, Authenticator(context)
        return _authenticator[1]


def _after_fork() -> None:
    global _lock  # noqa: PLW0603
    # Another thread of the parent may have held it.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _is_readable(socket: Socket) -> bool:
    """Return whether there is a message: cheaper than an exception that says so.

    This also resets what the socket's descriptor has announced, so it must be the last look at the socket.
    """
    return bool(int(socket.getsockopt(_EVENTS)) & _READABLE)


def _receive(socket: Socket, link: t.Transport, header: zmq.Frame) -> tuple[t.Input, int]:
    """Return the envelope whose header frame has been read, as an input, and its size in bytes."""
    if not header.more:
        return t.MalformedReceived(link, "an envelope has two frames at least"), len(header)
    body = socket.recv(_LAST, copy=False)
    size = len(body) + MESSAGE_OVERHEAD_BYTES
    if not body.more:
        return t.EnvelopeReceived(link, header.bytes, body.bytes), size
    attachments: list[memoryview] = []
    excess = 0
    more = True
    while more:
        frame = socket.recv(_LAST, copy=False)
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


def _send(socket: Socket, route: bytes, unsent: deque[Envelope]) -> bool:
    """Send envelopes until there are no more, or the connection is full: then False. route: empty for DEALER."""
    while unsent:
        header, body, attachments, _ = unsent[0]
        try:
            if route:
                socket.send(route, _MORE)
            socket.send(header, _MORE)
            _send_frame(socket, body, _MORE if attachments else _LAST)
            for number, attachment in enumerate(attachments, 1):
                _send_frame(socket, attachment, _MORE if number < len(attachments) else _LAST)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            unsent.clear()  # the connection is lost, which the monitor reports
            return True
        unsent.popleft()
    return True


def _send_frame(socket: Socket, buffer: Buffer, flags: int) -> None:
    size = len(buffer)
    if isinstance(buffer, memoryview):
        size = buffer.nbytes
        whole = buffer.obj
        if isinstance(whole, zmq.Frame) and size == len(whole):
            # A received frame as a whole: ZeroMQ counts the users of its own memory, and Python need not be notified.
            socket.send(whole, flags, copy=False)
            return
    socket.send(buffer, flags, copy=size < COPY_BYTES)


class _ZmqEnd:
    """A socket, and one that reports the events of its connections; both are watched from `_watch` on."""

    def __init__(self, context: Context, kind: int, wakeups: LoopWaker) -> None:
        """Raises OSError when this process has no descriptor for it."""
        self._wakeups = wakeups
        self._has_events = True
        address = f"inproc://monitor-{next(_monitor_numbers)}"
        try:
            self._socket: Socket = context.socket(kind)
            try:
                self._socket.monitor(address, _MONITORED)
                self._monitor: Socket = context.socket(zmq.PAIR)
            except zmq.ZMQError:
                self._socket.close()
                raise
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from error
        # With a limit, ZeroMQ's I/O thread would wait for us when many connect at once.
        self._monitor.rcvhwm = 0
        self._monitor.connect(address)

    def _set_options(self, address: str) -> None:
        socket = self._socket
        socket.linger = 0
        socket.maxmsgsize = MAX_FRAME_BYTES
        socket.sndhwm = socket.rcvhwm = HIGH_WATER_MESSAGES
        socket.handshake_ivl = round(t.HANDSHAKE_SECONDS * 1000)
        socket.ipv6 = address.startswith("tcp://[")

    def _watch(self) -> None:
        self._wakeups.watch(int(self._socket.getsockopt(zmq.FD)), self._wake)
        self._wakeups.watch(int(self._monitor.getsockopt(zmq.FD)), self._wake_for_events)
        # The descriptors announce changes only, and something may have happened before they were watched.
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
        """Yield all events since the last call: one of zmq.EVENT_..., and a file descriptor or an error number."""
        self._has_events = False
        while True:
            try:
                frames = self._monitor.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            kind, value = _MONITOR_EVENT.unpack(frames[0])
            yield kind, value

    def _close(self, linger_seconds: float) -> None:
        """Close the socket, and return when its messages are delivered or the linger time is over.

        Its addresses are free and its descriptors closed then, which a closed socket alone does not promise.
        """
        self._socket.close(linger=round(linger_seconds * 1000))
        # The socket's last event. Disconnecting before it could block ZeroMQ's thread, which sends it.
        while self._monitor.poll(round((linger_seconds + MONITOR_SECONDS) * 1000)):
            if any(kind == zmq.EVENT_MONITOR_STOPPED for kind, _ in self._take_events()):
                break
        self._monitor.close(linger=0)

    def _read(self, read_one: Callable[[], int]) -> bool:
        """Read messages with read_one, which returns their sizes; False when the share of one iteration is used up."""
        size = 0
        for _ in range(MAX_MESSAGES_PER_ITERATION):
            if size > MAX_BYTES_PER_ITERATION:
                break
            if not _is_readable(self._socket):
                return True
            with contextlib.suppress(zmq.Again):  # its connection has just ended
                size += read_one()
        return False


class ZmqConnection(_ZmqEnd):
    """A connector's connection: a DEALER socket that connects once. See `transport.Connection`."""

    passes_descriptors = False
    identity = ANYONE

    def __init__(self, context: Context, address: str, wakeups: LoopWaker, keys: PeerKeys | None) -> None:
        """Begin to connect. keys: None without encryption.

        Raises OSError when this process has no descriptor for it.
        """
        super().__init__(context, zmq.DEALER, wakeups)
        self._keys = keys
        self._refused_after = 0
        self._is_shaken = False
        """The handshake has succeeded."""
        self._unsent: deque[Envelope] = deque()
        self._is_blocked = False
        self._broken = ""
        self._address = address
        self._probe: sockets.socket | None = None
        self._set_options(address)
        # Never by itself; but with -1, "never", it would throw away what it has received when the connection breaks.
        self._socket.reconnect_ivl = NEVER_MILLISECONDS
        self._socket.connect_timeout = round(t.HANDSHAKE_SECONDS * 1000)
        if keys is not None:
            self._socket.curve_serverkey = keys.server.encode()
            self._socket.curve_publickey = keys.own.public.encode()
            self._socket.curve_secretkey = keys.own.secret.encode()
        self._watch()
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self._broken = str(error)

    def receive(self, inputs: list[t.Input]) -> None:
        # Before the messages: what a connection brought before it broke can be read after the event of the break.
        if self._has_events:
            for kind, value in self._take_events():
                if kind == _SHAKEN:
                    self._is_shaken = True
                elif kind == zmq.EVENT_DISCONNECTED and not (self._is_shaken or self._broken):
                    self._broken = "the program that listens there does not speak ZeroMQ"
                elif not self._broken:
                    self._broken, self._refused_after = _meaning(kind, value, self._keys)
                    if kind == _NO_DETAIL:
                        self._probe = self._dial_plainly()
        if self._probe is not None and not self._has_greeting(self._probe):
            return
        if self._is_blocked and _send(self._socket, b"", self._unsent):
            self._is_blocked = False
            inputs.append(t.WritingChanged(self, is_blocked=False))

        def read_one() -> int:
            envelope, size = _receive(self._socket, self, self._socket.recv(_LAST, copy=False))
            inputs.append(envelope)
            return size

        if not self._read(read_one):
            self._wakeups.soon()
        elif self._broken:
            inputs.append(t.LinkLost(self, self._broken, self._refused_after))

    def _dial_plainly(self) -> sockets.socket | None:
        """Connect once more, without ZeroMQ, which does not say whether the other side sent its greeting.

        A server with another key does. A forwarder whose server is away accepts and closes: it refuses nobody.
        """
        if not self._address.startswith("tcp://"):
            return None
        host, _, port = self._address.removeprefix("tcp://").rpartition(":")
        try:
            family, kind, *_, place = sockets.getaddrinfo(
                host.strip("[]").encode(), int(port), type=sockets.SOCK_STREAM
            )[0]
            probe = sockets.socket(family, kind)
        except OSError:
            return None
        probe.setblocking(False)
        probe.connect_ex(place)
        self._wakeups.watch(probe.fileno())
        return probe

    def _has_greeting(self, probe: sockets.socket) -> bool:
        """Return whether it is known what the plain connection brought; an empty one takes the refusal back."""
        try:
            greeting = probe.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            greeting = b""
        self._close_probe()
        if not greeting:
            self._broken, self._refused_after = CLOSED_AT_ONCE, 0
        return True

    def _close_probe(self) -> None:
        if self._probe is not None:
            self._wakeups.unwatch(self._probe.fileno())
            self._probe.close()
            self._probe = None

    def transmit(self, envelopes: Sequence[Envelope]) -> bool:
        self._unsent.extend(envelopes)
        self._is_blocked = not _send(self._socket, b"", self._unsent)
        ready = int(self._socket.getsockopt(_EVENTS))
        if ready & _READABLE or (self._is_blocked and ready & _WRITABLE):
            self._wakeups.soon()
        return not self._is_blocked

    def lift_limits(self) -> None:
        """Do nothing: a connector trusts its server."""

    def cut(self) -> None:
        self._close_probe()
        if not self._socket.closed:
            self._unwatch()
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close()

    def close(self, linger_seconds: float) -> None:
        self._close_probe()
        if not self._socket.closed:
            self._unwatch()
            until = time.monotonic() + linger_seconds
            while not _send(self._socket, b"", self._unsent) and (left := until - time.monotonic()) > 0:
                self._socket.poll(round(left * 1000), zmq.POLLOUT)
            self._close(linger_seconds)


def _meaning(kind: int, value: int, keys: PeerKeys | None) -> tuple[str, int]:
    """Return what an event of a connection's end says, and how often in a row it means that this peer is refused."""
    key = "" if keys is None else keys.name
    if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        if str(value) == REVOKED and keys is not None:
            return f"the server refuses the key {key}: it {keys.ending}; ask for a new credential", 1
        text = f"the server does not know the key {key}: its credential is of another cluster, or was removed"
        return text, UNPROVEN_ATTEMPTS
    if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _MISMATCH:
        if keys is None:
            return ASKS_FOR_KEYS, UNPROVEN_ATTEMPTS
        text = "the server runs with insecure_no_auth, which this side has to say too, if that is what you want"
        return text, UNPROVEN_ATTEMPTS
    # The other side has ended the handshake, or the connection, before this side saw why.
    if kind == _NO_DETAIL:
        if keys is None:
            return f"the program that listens there does not speak ZeroMQ, or {ASKS_FOR_KEYS}", WRONG_SERVER_ATTEMPTS
        if not key:
            return NO_CREDENTIAL, WRONG_SERVER_ATTEMPTS
        text = f"the server there is not the one of the credential {key}: it is another cluster's, or none of scaler"
        return text, WRONG_SERVER_ATTEMPTS
    return _BREAKS.get(kind, ""), 0


class ZmqLink:
    """One accepted connection of a `ZmqListener`; see `transport.Transport`."""

    __slots__ = (
        "_inode",
        "_listener",
        "_received_bytes",
        "_unread_bytes",
        "descriptor",
        "identity",
        "is_limited",
        "origin",
        "read_bytes",
        "refusal",
        "route",
        "source",
        "unsent",
    )

    passes_descriptors = False

    def __init__(self, listener: ZmqListener, descriptor: int) -> None:
        self.descriptor = descriptor
        self.identity = NOBODY
        self.refusal = ""
        """Why its handshake failed."""
        self.route = b""
        """What ROUTER calls it; empty until it has brought a message."""
        self.unsent: deque[Envelope] = deque()
        self._listener = listener
        self.is_limited = True
        self.read_bytes = 0
        """Since `exceeds` was last called."""
        self._received_bytes = self._unread_bytes = 0
        self.source = "a process of this host"
        self.origin = "an unknown place"
        self._inode = -1
        # It may be closed again already; then the event that says so comes next.
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
            self._inode = os.fstat(descriptor).st_ino
            name = connection.getpeername()
            if isinstance(name, tuple):
                self.source = name[0]
            self.origin = f"{name[0]} port {name[1]}" if isinstance(name, tuple) else self.source

    def transmit(self, envelopes: Sequence[Envelope]) -> bool:
        self.unsent.extend(envelopes)
        return self._listener.push(self)

    def lift_limits(self) -> None:
        self.is_limited = False
        self._listener.welcome(self)

    def cut(self) -> None:
        self._listener.drop(self)

    def shut_down(self) -> None:
        """Shut the connection down, so that ZeroMQ finds it broken: it has no call of its own for that.

        A duplicate of the descriptor, checked to be the same socket, is what is shut down, as the number may already
        name another file. With no descriptor left for that, closing comes first.
        """
        duplicate = None
        try:
            duplicate = os.dup(self.descriptor)
        except OSError as error:
            if error.errno != errno.EMFILE:
                return
        checked = self.descriptor if duplicate is None else duplicate
        try:
            with contextlib.suppress(OSError), _borrowed(checked) as connection:
                if os.fstat(checked).st_ino == self._inode:
                    connection.shutdown(sockets.SHUT_RDWR)
        finally:
            if duplicate is not None:
                os.close(duplicate)

    def exceeds(self) -> bool:
        """Return whether more has come than messages have brought and may bring yet. To be called now and then."""
        received = received_bytes(self.descriptor)
        # What is read counts a little more than it was, which must not add up to a credit.
        self._unread_bytes = max(0, self._unread_bytes + received - self._received_bytes - self.read_bytes)
        self._received_bytes = received
        was_read, self.read_bytes = self.read_bytes > 0, 0
        if self.is_limited:
            return received > MAX_UNIDENTIFIED_BYTES
        return self._unread_bytes > (MAX_UNREAD_BYTES if was_read else MAX_INCOMPLETE_BYTES)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[sockets.socket]:
    """Give a socket of this descriptor, and leave that open. Raises OSError when it is closed, or a file's."""
    connection = sockets.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()


class ZmqListener(_ZmqEnd):
    """A ROUTER socket and its connections.

    A descriptor's number is used again as soon as its connection is closed. ZeroMQ reports the end before it closes,
    and the next beginning before it delivers anything, so after taking all of the monitor's events a number that is
    known here belongs to the connection that was last accepted under it.
    """

    def __init__(self, addresses: Iterable[str], io_threads: int, wakeups: LoopWaker, keys: ServerKeys | None) -> None:
        """Bind to all addresses. keys: None lets everybody in, without encryption.

        Raises UsageError, binding none, when an address is malformed, taken or not of this host.
        """
        context = acquire_context(io_threads)
        super().__init__(context, zmq.ROUTER, wakeups)
        self._keys = keys
        self._failure = ""
        """Of the handshake of the connection whose end is reported next."""
        self._domain = f"listener-{next(_domains)}".encode()
        if keys is not None:
            self._authenticator = _authenticator_of(context)
            self._authenticator.add(self._domain, keys)
            self._socket.curve_server = 1
            self._socket.curve_publickey = keys.pair.public.encode()
            self._socket.curve_secretkey = keys.pair.secret.encode()
            self._socket.zap_domain = self._domain
        self._links: dict[int, ZmqLink] = {}  # by descriptor
        self._routes: dict[bytes, ZmqLink] = {}
        self._breaking: dict[ZmqLink, int] = {}
        self._blocked: dict[ZmqLink, None] = {}
        self._inputs: list[t.Input] = []
        self._files: list[SocketFile] = []
        self._is_checking = False
        self._unidentified: dict[ZmqLink, None] = {}
        self._resident_bytes = self._resident_bytes_for_unidentified = resident_bytes()
        """The least since it was last looked at what the connections have brought."""
        self.is_due = self.was_used = True
        """When to call `receive`, and `rest`."""
        try:
            self.addresses = tuple(self._bind(address) for address in addresses)
        except UsageError:
            self.close(0)
            raise
        self._watch()

    def _bind(self, address: str) -> str:
        check_not_in_use(address)
        socket = self._socket
        self._set_options(address)
        socket.router_mandatory = True
        socket.backlog = BACKLOG
        # Hosts that vanish without a word would otherwise keep their descriptors here for ever.
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle = 30
        socket.tcp_keepalive_intvl = 10
        socket.tcp_keepalive_cnt = 3
        try:
            if address.startswith("ipc://"):
                self._files.append(SocketFile(address, BACKLOG))
                socket.use_fd = self._files[-1].descriptor
            socket.bind(address)
            socket.use_fd = -1
        except (zmq.ZMQError, OSError) as error:
            # Python gives no number for a path that is too long.
            raise UsageError(cannot_bind(address, error.errno or errno.ENAMETOOLONG)) from error
        endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes), "pyzmq returns this option as bytes"
        return endpoint.rstrip(b"\0").decode()

    def receive(self, inputs: list[t.Input]) -> None:
        """Add what has happened to `inputs`: envelopes up to a limit, and connections that began and ended."""
        self.is_due, self.was_used = False, True
        if self._has_events:
            self._follow_connections()
        for link in list(self._blocked):
            if self.push(link):
                self._inputs.append(t.WritingChanged(link, is_blocked=False))
        is_drained = self._read(self._read_one)
        for link, left in list(self._breaking.items()):
            if is_drained or left == 0:
                del self._breaking[link]
                self._routes.pop(link.route, None)
                self._inputs.append(t.LinkLost(link, link.refusal, 1) if link.refusal else t.LinkLost(link))
            else:
                self._breaking[link] = left - 1
        inputs += self._inputs
        self._inputs.clear()

    def rest(self) -> None:
        """End an iteration: what it sent may have taken in the announcement of a message."""
        self.was_used = False
        if _is_readable(self._socket) or self._inputs or self._breaking:
            self.is_due = True
            self._wakeups.soon()
        elif self._blocked:
            self.is_due = True

    def push(self, link: ZmqLink) -> bool:
        """Send what waits for a link; False when it takes no more, and is tried again later."""
        self.was_used = True
        if _send(self._socket, link.route, link.unsent):
            self._blocked.pop(link, None)
            return True
        self._blocked[link] = None
        self._wakeups.soon(BLOCKED_RETRY_SECONDS)
        return False

    def drop(self, link: ZmqLink) -> None:
        """Cut a connection and forget it."""
        self._follow_connections()
        self._routes.pop(link.route, None)
        self._breaking.pop(link, None)
        self._blocked.pop(link, None)
        if self._links.get(link.descriptor) is link:
            link.shut_down()

    def close(self, linger_seconds: float) -> None:
        """Wait up to `linger_seconds` until everything is delivered, then close, and free the addresses."""
        until = time.monotonic() + linger_seconds
        while self._blocked and time.monotonic() < until:
            for link in list(self._blocked):
                self.push(link)
            time.sleep(BLOCKED_RETRY_SECONDS / 4)
        # Not unbound before: that would end the connections at once, with what is queued for them.
        for file in self._files:
            file.remove()
        self._close(linger_seconds)
        if self._keys is not None:
            self._authenticator.remove(self._domain)
        release_context()

    def _read_one(self) -> int:
        route = self._socket.recv(_LAST)
        header = self._socket.recv(_LAST, copy=False)
        link = self._routes.get(route) or self._link_of(route, header)
        if link is None:
            while header.more:
                header = self._socket.recv(_LAST, copy=False)
            return 0
        envelope, size = _receive(self._socket, link, header)
        self._inputs.append(envelope)
        link.read_bytes += size
        return size

    def _link_of(self, route: bytes, frame: zmq.Frame) -> ZmqLink | None:
        """Return the connection of a new route; None when it has ended, or was cut."""
        self._follow_connections()
        try:
            descriptor = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:  # the peer speaks an older version of ZeroMQ's protocol than any of ours
            return None
        link = self._links.get(descriptor)
        if link is None or link.route:
            return None
        link.route = route
        link.identity = self._identity_of(frame)
        self._routes[route] = link
        return link

    def _identity_of(self, frame: zmq.Frame) -> Identity:
        if self._keys is None:
            return ANYONE
        return self._keys.identity(str(frame.get("User-Id"))) or NOBODY

    def _follow_connections(self) -> None:
        for kind, descriptor in self._take_events():
            if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH and self._keys is not None:
                while self._keys.refusals:
                    self._inputs.append(self._keys.refusals.popleft())
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                is_open = self._keys is None and descriptor == _MISMATCH
                self._failure = HAS_A_KEY if is_open else _FAILURES.get(descriptor, "")
            elif kind == zmq.EVENT_ACCEPTED:
                link = self._links[descriptor] = ZmqLink(self, descriptor)
                self._unidentified[link] = None
                self._inputs.append(t.LinkOpened(link, link.origin, link.source, is_scarce(descriptor)))
                if not self._is_checking:
                    self._is_checking = True
                    self._wakeups.repeat(self._check_memory)
            elif kind == zmq.EVENT_DISCONNECTED and descriptor in self._links:
                link = self._links.pop(descriptor)
                self._unidentified.pop(link, None)
                if self._failure:
                    link.refusal, self._failure = f"a peer at {link.origin}: {self._failure}", ""
                self._breaking[link] = MAX_ITERATIONS_AFTER_BREAK

    def welcome(self, link: ZmqLink) -> None:
        self._unidentified.pop(link, None)

    def _check_memory(self) -> float:
        """Shut down what fills the memory: ZeroMQ keeps the frames of a message, however many, until it is whole.

        Returns after how many seconds to look again.
        """
        resident = resident_bytes()
        least = self._resident_bytes = min(self._resident_bytes, resident)
        unidentified = self._resident_bytes_for_unidentified = min(self._resident_bytes_for_unidentified, resident)
        links: list[ZmqLink] = []
        if resident >= least + GROWTH_BYTES:
            self._resident_bytes = resident
            # What has come as a whole counts as read.
            self._wake()
            links = list(self._links.values())
        elif self._unidentified and resident >= unidentified + UNIDENTIFIED_GROWTH_BYTES:
            links = list(self._unidentified)
        if links:
            self._resident_bytes_for_unidentified = resident
        for link in links:
            if link.exceeds():
                link.shut_down()
        self._is_checking = bool(self._links)
        if self._unidentified:
            return UNIDENTIFIED_CHECK_SECONDS
        return MEMORY_CHECK_SECONDS if self._links else 0.0

    def _wake(self) -> None:
        self.is_due = True
        super()._wake()
