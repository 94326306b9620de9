"""A connector's connection over ZeroMQ, and the interpretation of its failures."""

from __future__ import annotations

import socket as sockets
import time
from collections.abc import Sequence

import zmq

from scaler.net import transport as t
from scaler.net.connection import ANYONE
from scaler.net.kernel import is_connected_to_itself, received_bytes
from scaler.net.keys import REVOKED, PeerKeys
from scaler.net.packing import expanded, packing
from scaler.net.wakeups import Wakeups
from scaler.net.zmq_transport import (
    EVENTS,
    LAST,
    MISMATCH,
    READABLE,
    WRITABLE,
    Context,
    Outgoing,
    ZmqEnd,
    checked,
    receive_envelope,
)
from scaler.protocol.session import Envelope

NEVER_MILLISECONDS = 24 * 3600 * 1000
_SHAKEN = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_NO_DETAIL = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_BREAKS: dict[int, str] = {
    zmq.EVENT_CLOSED: "connection refused or host unreachable: nothing listens there",
    # Without an earlier event, no socket was created, because the name did not resolve.
    zmq.EVENT_CONNECT_RETRIED: "unknown host name",
    zmq.EVENT_DISCONNECTED: "the connection broke",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the program that listens there does not speak ZeroMQ",
}
UNPROVEN_ATTEMPTS = 2
"""Failures that count as a refusal of a new peer. Any program on a stopped server's port can cause them."""
WRONG_SERVER_ATTEMPTS = 3
"""Failures before a server counts as requiring keys. A server that stops in a handshake looks the same at first."""
WRONG_KEY_ATTEMPTS = 12
"""Failed attempts after which the server is assumed to have another key. A server without free descriptors, or with too
many connections without a session, also cuts connections during the handshake. This many attempts take 5 s."""
_GIVE_ONE = (
    "pass the file that `scaler keys add` wrote on the server as --credentials, credentials=, or SCALER_CREDENTIALS"
)
ASKS_FOR_KEYS = f"the server requires keys: remove insecure_no_auth here, and {_GIVE_ONE}"
NO_CREDENTIAL = (
    f"the server requires a key, and this process has none: {_GIVE_ONE} (unless it runs with insecure_no_auth, or is "
    "not a scaler server)"
)
ASKS_FOR_NO_KEYS = (
    "the server runs with insecure_no_auth, or its version has no keys: start it with keys (`scaler keys init` creates "
    "them); or, if no other user can reach it, pass --insecure-no-auth or insecure_no_auth=True for this peer as well"
)
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03"
_MECHANISM = slice(12, 32)
"""Position of the authentication mechanism in a greeting: CURVE with keys, NULL without."""
CLOSED_AT_ONCE = "connections are closed immediately, as by a port forwarder whose server is down"


class ZmqConnection(ZmqEnd):
    """A connector's connection: a DEALER socket that connects once. See `transport.Connection`."""

    passes_descriptors = False
    identity = ANYONE

    def __init__(
        self,
        context: Context,
        address: str,
        wakeups: Wakeups,
        keys: PeerKeys | None,
        compression: str,
        *,
        ipv6: bool = False,
    ) -> None:
        """Start connecting. keys: None without encryption. ipv6: resolve a name to IPv6. Raises OSError."""
        super().__init__(context, zmq.DEALER, wakeups, more_events=int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL))
        self._keys = keys
        self._refused_after = 0
        self._is_shaken = self._is_own_end = False
        self._descriptor = -1
        self._compression = compression
        self._is_to_compress = False
        """Whether to compress once the descriptor is known, which a busy ZeroMQ thread may report after messages."""
        self._outgoing = Outgoing(has_checksums=keys is None)
        self.is_blocked = False
        self._broken = ""
        self._address = address
        self._probe: sockets.socket | None = None
        self._greeting = b""
        self._family = sockets.AF_INET6 if ipv6 or address.startswith("tcp://[") else sockets.AF_INET
        self._set_options(ipv6=self._family == sockets.AF_INET6)
        # Effectively never. With -1 ("never"), ZeroMQ would drop received messages when the connection breaks.
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
        # Events precede messages, because messages received before a break can still be read after its event.
        if self._has_events:
            for kind, value in self._take_events():
                self._follow(kind, value)
        if self._is_own_end:  # the peer is connected to itself
            inputs.append(t.LinkLost(self, self._broken, 0))
            return
        if self._probe is not None and not self._has_read(self._probe):
            return
        if self.is_blocked:
            self.is_blocked = not self._outgoing.send(self._socket, b"")
            if not self.is_blocked:
                inputs.append(t.Unblocked(self))
            elif self._outgoing.is_packing:
                self._wakeups.soon()

        def read_one() -> int:
            envelope, size = receive_envelope(self._socket, self, self._socket.recv(LAST, copy=False))
            plain, growth = expanded(checked(envelope) if self._keys is None else envelope)
            inputs.append(plain)
            return size + growth

        if not self._read(read_one):
            self._wakeups.soon()
        elif self._broken:
            inputs.append(t.LinkLost(self, self._broken, self._refused_after))

    def _follow(self, kind: int, value: int) -> None:
        if kind == _SHAKEN:
            self._is_shaken = True
        elif kind == zmq.EVENT_CONNECTED:
            self._descriptor = value
            if is_connected_to_itself(value):
                self._broken, self._is_own_end = _BREAKS[zmq.EVENT_CLOSED], True
            if self._is_to_compress:
                self.start_session(compresses=True)
        elif self._broken:
            pass
        elif kind == zmq.EVENT_DISCONNECTED and not self._is_shaken:
            self._broken = "the program that listens there does not speak ZeroMQ"
        elif kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and self._is_shaken:
            self._broken = "bytes were damaged in transit"
        else:
            self._broken, self._refused_after = _meaning(kind, value, self._keys)
            if kind == _NO_DETAIL:
                self._probe = self._dial_plainly()

    def _dial_plainly(self) -> sockets.socket | None:
        """Connect again without ZeroMQ, and read the server's greeting to learn whether it requires keys. A port
        forwarder whose server is down accepts and closes connections, which does not count as a refusal."""
        if not self._address.startswith("tcp://"):
            return None
        host, _, port = self._address.removeprefix("tcp://").rpartition(":")
        try:
            name, flags = host.strip("[]").encode(), sockets.AI_V4MAPPED
            found = sockets.getaddrinfo(name, int(port), self._family, sockets.SOCK_STREAM, 0, flags)
            family, kind, *_, place = found[0]
            probe = sockets.socket(family, kind)
        except OSError:
            return None
        probe.setblocking(False)
        probe.connect_ex(place)
        self._wakeups.watch(probe.fileno())
        return probe

    def _has_read(self, probe: sockets.socket) -> bool:
        try:
            while len(self._greeting) < _MECHANISM.stop and (data := probe.recv(_MECHANISM.stop - len(self._greeting))):
                if not self._greeting:
                    probe.send(_GREETING)
                self._greeting += data
        except BlockingIOError:
            return False
        except OSError:
            pass
        self._close_probe()
        if not self._greeting:
            self._broken, self._refused_after = CLOSED_AT_ONCE, 0
        elif self._greeting[_MECHANISM].rstrip(b"\0") == (b"CURVE" if self._keys is None else b"NULL"):
            self._broken, self._refused_after = _mismatch(self._keys)
        return True

    def _close_probe(self) -> None:
        if self._probe is not None:
            self._wakeups.unwatch(self._probe.fileno())
            self._probe.close()
            self._probe = None

    def transmit(self, envelopes: Sequence[Envelope]) -> None:
        self._outgoing.add(envelopes)
        self.is_blocked = not self._outgoing.send(self._socket, b"")
        ready = int(self._socket.getsockopt(EVENTS))
        if ready & READABLE or (self.is_blocked and ready & WRITABLE):
            self._wakeups.soon()

    @property
    def received_bytes(self) -> int:
        return received_bytes(self._descriptor) if self._descriptor >= 0 else 0

    def start_session(self, *, compresses: bool) -> None:
        """See `Transport`. Compressed frames may arrive before this side has read the Welcome, and are decompressed."""
        self._is_to_compress = compresses and self._descriptor < 0
        if compresses and not self._is_to_compress:
            self._outgoing.packer = packing().packer_of(self._descriptor, self._compression)

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
            while not self._outgoing.send(self._socket, b"") and (left := until - time.monotonic()) > 0:
                self._socket.poll(round(left * 1000), zmq.POLLOUT)
            self._close(linger_seconds)


def _mismatch(keys: PeerKeys | None) -> tuple[str, int]:
    return ASKS_FOR_KEYS if keys is None else ASKS_FOR_NO_KEYS, UNPROVEN_ATTEMPTS


def _meaning(kind: int, value: int, keys: PeerKeys | None) -> tuple[str, int]:
    """Return why a connection failed, and the number of consecutive failures that count as a refusal."""
    key = "" if keys is None else keys.name
    if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        if str(value) == REVOKED and keys is not None:
            return f"the server rejected key {key}, which {keys.ending}; ask for a new credential", 1
        text = f"the server does not know key {key}: its credential belongs to another cluster, or was removed"
        return text, UNPROVEN_ATTEMPTS
    if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == MISMATCH:
        return _mismatch(keys)
    # The other side ended the handshake or the connection without giving a reason.
    if kind == _NO_DETAIL:
        if keys is None:
            return f"the program that listens there does not speak ZeroMQ, or {ASKS_FOR_KEYS}", WRONG_SERVER_ATTEMPTS
        if not key:
            return NO_CREDENTIAL, WRONG_SERVER_ATTEMPTS
        text = (
            f"the server there does not match credential {key}: it belongs to another cluster, is not a scaler server, "
            "or has no file descriptors left"
        )
        return text, WRONG_KEY_ATTEMPTS
    return _BREAKS.get(kind, ""), 0
