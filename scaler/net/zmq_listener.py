"""A listener over ZeroMQ: its connections, and limits for data received before a message is complete."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import socket as sockets
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import zmq

from scaler.component import ORPHAN_GRACE_SECONDS
from scaler.config.addresses import is_loopback
from scaler.errors import UsageError
from scaler.net import transport as t
from scaler.net.address import SocketFile, check_not_in_use, needs_ipv6
from scaler.net.connection import ANYONE, NOBODY
from scaler.net.kernel import borrowed, is_scarce, received_bytes, resident_bytes
from scaler.net.keys import ServerKeys
from scaler.net.packing import expanded, packing
from scaler.net.wakeups import Wakeups
from scaler.net.zmq_transport import (
    LAST,
    Outgoing,
    ZmqEnd,
    acquire_context,
    authenticator_of,
    checked,
    is_readable,
    receive_envelope,
    release_context,
)
from scaler.ports import cannot_bind, is_orphaned
from scaler.protocol.messages import MAX_BATCH_BYTES, MAX_HELLO_BYTES
from scaler.protocol.session import Envelope, OutboxLimits

_log = logging.getLogger(__name__)

BACKLOG = 1024
BIND_SECONDS = ORPHAN_GRACE_SECONDS + 2.0
"""Seconds to wait for an address that an orphaned server still uses. The server exits by itself."""
BIND_PAUSE_SECONDS = 0.1
BLOCKED_RETRY_SECONDS = 0.02
MAX_ITERATIONS_AFTER_BREAK = 8
"""Maximum iterations to read a lost connection's messages before its end is reported."""
MEMORY_CHECK_SECONDS = 0.05
GROWTH_BYTES = 16 * 1024 * 1024
"""Growth of this process's memory that triggers a check of the bytes received on each connection."""
UNIDENTIFIED_CHECK_SECONDS = 0.01
UNIDENTIFIED_GROWTH_BYTES = 2 * 1024 * 1024
"""Growth of this process's memory that triggers a check of connections that are not welcomed yet."""
MAX_UNIDENTIFIED_BYTES = MAX_HELLO_BYTES + 4096
"""Maximum bytes from a connection before its welcome, including the transport handshake."""
MAX_INCOMPLETE_BYTES = MAX_BATCH_BYTES + 32 * 1024 * 1024
"""Maximum bytes received for an incomplete message: one message plus kernel buffers."""
MAX_UNREAD_BYTES = OutboxLimits().size_bytes
"""Maximum received but unread bytes while this process is slow. Unacknowledged Scaler peers stop sending earlier."""
NO_KEY = (
    "its handshake failed: it has no key for this cluster (`scaler keys add` creates one), or it is not a scaler peer"
)
HAS_A_KEY = (
    "its handshake failed: it uses keys, but this server runs with insecure_no_auth, which the peer must set as well; "
    "or it is not a scaler peer"
)
_domains = itertools.count()


class ZmqLink:
    passes_descriptors = False

    def __init__(self, listener: ZmqListener, descriptor: int) -> None:
        self.descriptor = descriptor
        self.identity = NOBODY
        self.refusal = ""
        self.route = b""
        """ROUTER's id for the connection; empty before its first message."""
        self.is_blocked = False
        self.outgoing = Outgoing(has_checksums=not listener.is_encrypted)
        self.may_compress = False
        self._listener = listener
        self.is_limited = True
        self.read_bytes = 0
        self._received_bytes = self._unread_bytes = 0
        self.source, self.origin = "a process on this host", "an unknown place"
        self._inode = -1
        # The connection may already be closed; then its close event is next.
        with contextlib.suppress(OSError), borrowed(descriptor) as connection:
            self._inode = os.fstat(descriptor).st_ino
            name = connection.getpeername()
            self.origin = self.source
            if isinstance(name, tuple):
                host = name[0].removeprefix("::ffff:")  # IPv4 on a dual-stack socket
                self.source, self.origin = host, f"{host} port {name[1]}"

    def transmit(self, envelopes: Sequence[Envelope]) -> None:
        self.outgoing.add(envelopes)
        self._listener.push(self)

    def start_session(self, *, compresses: bool) -> None:
        self.is_limited = False
        self._listener.welcome(self)
        if compresses:
            self.may_compress = True
            self.outgoing.packer = packing().packer_of(self.descriptor, self._listener.compression)

    def cut(self) -> None:
        self._listener.drop(self)

    def shut_down(self) -> None:
        """Shut down the socket, which ZeroMQ cannot do. Descriptor numbers are reused, so a duplicate is verified to be
        the same socket first. If no descriptor is free, verifies and shuts down the original."""
        duplicate = None
        try:
            duplicate = os.dup(self.descriptor)
        except OSError as error:
            if error.errno != errno.EMFILE:
                return
        checked = self.descriptor if duplicate is None else duplicate
        try:
            with contextlib.suppress(OSError), borrowed(checked) as connection:
                if os.fstat(checked).st_ino == self._inode:
                    connection.shutdown(sockets.SHUT_RDWR)
        finally:
            if duplicate is not None:
                os.close(duplicate)

    def exceeds(self) -> bool:
        """Return whether too many unread bytes have arrived. Call periodically."""
        received = received_bytes(self.descriptor)
        # read_bytes is a slight overestimate, which must not accumulate as credit.
        self._unread_bytes = max(0, self._unread_bytes + received - self._received_bytes - self.read_bytes)
        self._received_bytes = received
        was_read, self.read_bytes = self.read_bytes > 0, 0
        if self.is_limited:
            return received > MAX_UNIDENTIFIED_BYTES
        return self._unread_bytes > (MAX_UNREAD_BYTES if was_read else MAX_INCOMPLETE_BYTES)


class ZmqListener(ZmqEnd):
    """A ROUTER socket and its connections. Descriptor numbers are reused, but ZeroMQ reports a connection's end before
    closing it, and a new connection before delivering its messages. After all monitor events, a number refers to the
    latest connection."""

    def __init__(self, addresses: Iterable[str], wakeups: Wakeups, keys: ServerKeys | None, compression: str) -> None:
        """Bind to all addresses. If any fails, binds to none and raises UsageError. keys: None admits every peer,
        unencrypted."""
        context = acquire_context()
        super().__init__(context, zmq.ROUTER, wakeups)
        self._keys = keys
        self.compression = compression
        self.is_encrypted = keys is not None
        self._silent = 0
        """Number of connections that completed the handshake but have sent no message."""
        self._is_explained = False
        """Whether the next reported end has a cause other than invalid ZeroMQ data."""
        self._refused: Counter[str] = Counter()
        self._domain = f"listener-{next(_domains)}".encode()
        if keys is not None:
            self._authenticator = authenticator_of(context)
            self._authenticator.servers[self._domain] = keys
            self._socket.curve_server = 1
            self._socket.curve_publickey = keys.pair.public.encode()
            self._socket.curve_secretkey = keys.pair.secret.encode()
            self._socket.zap_domain = self._domain
        self._links: dict[int, ZmqLink] = {}  # links by descriptor
        self._routes: dict[bytes, ZmqLink] = {}
        self._breaking: dict[ZmqLink, int] = {}
        self._blocked: dict[ZmqLink, None] = {}
        self._inputs: list[t.Input] = []
        self._files: list[SocketFile] = []
        self._is_checking = False
        self._unidentified: dict[ZmqLink, None] = {}
        self._resident_bytes = self._resident_bytes_for_unidentified = resident_bytes()
        self.is_due = self.was_used = True
        try:
            self.addresses = tuple(self._bind(address) for address in addresses)
        except UsageError:
            self.close(0)
            raise
        self._watch()

    def _bind(self, address: str) -> str:
        """Listen. If an orphaned server still uses the address, waits for it to exit."""
        deadline = time.monotonic() + BIND_SECONDS
        while True:
            try:
                return self._bind_now(address)
            except UsageError:
                if time.monotonic() >= deadline or not is_orphaned(address):
                    raise
            time.sleep(BIND_PAUSE_SECONDS)

    def _bind_now(self, address: str) -> str:
        check_not_in_use(address)
        socket = self._socket
        self._set_options(ipv6=needs_ipv6(address))
        socket.router_mandatory = True
        socket.backlog = BACKLOG
        # Without keepalive, hosts that vanish would occupy descriptors forever.
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
            # Python gives no errno for a path that is too long.
            raise UsageError(cannot_bind(address, error.errno or errno.ENAMETOOLONG)) from error
        endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes), "pyzmq returns this option as bytes"
        bound = endpoint.rstrip(b"\0").decode()
        if is_loopback(bound) and not is_loopback(address):  # Debian's /etc/hosts does this
            _log.warning("%s is %s here, which other hosts cannot reach: listen on tcp://0.0.0.0:PORT", address, bound)
        return bound

    def receive(self, inputs: list[t.Input]) -> None:
        self.is_due, self.was_used = False, True
        if self._has_events:
            self._follow_connections()
        for link in list(self._blocked):
            self.push(link)
            if not link.is_blocked:
                self._inputs.append(t.Unblocked(link))
        is_drained = self._read(self._read_one)
        for link, left in list(self._breaking.items()):
            if is_drained or left == 0:
                del self._breaking[link]
                self._routes.pop(link.route, None)
                is_unknown = bool(link.refusal) and not link.route
                self._inputs.append(t.LinkLost(link, link.refusal, 1) if is_unknown else t.LinkLost(link))
            else:
                self._breaking[link] = left - 1
        inputs += self._inputs
        self._inputs.clear()

    def rest(self) -> None:
        """End an iteration: sending may have consumed the readiness event of a message."""
        self.was_used = False
        if is_readable(self._socket) or self._inputs or self._breaking:
            self.is_due = True
            self._wakeups.soon()
        elif self._blocked:
            self.is_due = True

    def push(self, link: ZmqLink) -> None:
        """Send a link's queue. If the connection is full, the rest is retried later."""
        self.was_used = True
        link.is_blocked = not link.outgoing.send(self._socket, link.route)
        if link.is_blocked:
            self._blocked[link] = None
            self._wakeups.soon(0.0 if link.outgoing.is_packing else BLOCKED_RETRY_SECONDS)
        else:
            self._blocked.pop(link, None)

    def drop(self, link: ZmqLink) -> None:
        self._follow_connections()
        self._routes.pop(link.route, None)
        self._breaking.pop(link, None)
        self._blocked.pop(link, None)
        if self._links.get(link.descriptor) is link:
            link.shut_down()

    def close(self, linger_seconds: float) -> None:
        until = time.monotonic() + linger_seconds
        while self._blocked and time.monotonic() < until:
            for link in list(self._blocked):
                self.push(link)
            time.sleep(BLOCKED_RETRY_SECONDS / 4)
        # Unbinding earlier would end the connections immediately and drop their queued messages.
        for file in self._files:
            file.remove()
        self._close(linger_seconds)
        if self._keys is not None:
            self._authenticator.servers.pop(self._domain, None)
        release_context()

    def _read_one(self) -> int:
        route = self._socket.recv(LAST)
        header = self._socket.recv(LAST, copy=False)
        link = self._routes.get(route) or self._link_of(route, header)
        if link is None:
            while header.more:
                header = self._socket.recv(LAST, copy=False)
            return 0
        envelope, size = receive_envelope(self._socket, link, header)
        link.read_bytes += size
        received = envelope if self.is_encrypted else checked(envelope)
        plain, growth = expanded(received) if link.may_compress else (received, 0)
        self._inputs.append(plain)
        return size + growth

    def _link_of(self, route: bytes, frame: zmq.Frame) -> ZmqLink | None:
        self._follow_connections()
        try:
            descriptor = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:  # the peer uses an unsupported, older ZMTP version
            return None
        link = self._links.get(descriptor)
        if link is None or link.route:
            return None
        link.route = route
        self._silent -= 1
        link.identity = ANYONE
        if self._keys is not None:
            link.identity = self._keys.identity(str(frame.get("User-Id"))) or NOBODY
        self._routes[route] = link
        return link

    def _follow_connections(self) -> None:
        for kind, descriptor in self._take_events():
            if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH and self._keys is not None:
                while self._keys.refusals:
                    refused = self._keys.refusals.popleft()
                    self._refused[refused.origin] += 1
                    self._inputs.append(refused)
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._is_explained = True
            elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._silent += 1
            elif kind == zmq.EVENT_ACCEPTED:
                link = self._links[descriptor] = ZmqLink(self, descriptor)
                self._unidentified[link] = None
                self._inputs.append(t.LinkOpened(link, link.origin, is_scarce(descriptor)))
                if not self._is_checking:
                    self._is_checking = True
                    self._wakeups.repeat(self._check_memory)
            elif kind == zmq.EVENT_DISCONNECTED and descriptor in self._links:
                link = self._links.pop(descriptor)
                self._unidentified.pop(link, None)
                if self._refused[link.source]:
                    self._refused -= Counter([link.source])
                elif not link.route and self._silent:
                    self._silent -= 1
                elif not self._is_explained:
                    link.refusal = f"a peer at {link.origin}: {HAS_A_KEY if self._keys is None else NO_KEY}"
                self._is_explained = False
                self._breaking[link] = MAX_ITERATIONS_AFTER_BREAK

    def welcome(self, link: ZmqLink) -> None:
        self._unidentified.pop(link, None)

    def _check_memory(self) -> float:
        """Shut down connections with large incomplete messages. Returns the seconds until the next check."""
        resident = resident_bytes()
        least = self._resident_bytes = min(self._resident_bytes, resident)
        unidentified = self._resident_bytes_for_unidentified = min(self._resident_bytes_for_unidentified, resident)
        links: list[ZmqLink] = []
        if resident >= least + GROWTH_BYTES:
            self._resident_bytes = resident
            # Complete messages count as read.
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
