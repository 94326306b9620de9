"""The network interface for components: events in, messages out. Implemented over sockets and in memory.

A *peer* is a process with an 8-byte peer id. Its *session* (peer id + 8 bytes) lasts until one side drops it or a
handshake does not resume it. Within a session, each message is delivered exactly once and in order, however often the
connection breaks. Only messages in `messages.UNSEQUENCED` may be lost. Each iteration reads all input, calls
`on_events` once, and flushes once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scaler.protocol.messages import Attachments, Descriptors, Hello, Message, Refused, Role, Welcome

ALL_ROLES = frozenset(Role)


class Identity(NamedTuple):
    """A key's name, its roles, and whether it may see other keys' objects. Peers with the same key are one user."""

    key: str
    roles: frozenset[Role] = ALL_ROLES
    is_admin: bool = False

    @property
    def has_key(self) -> bool:
        """Return whether a key authenticated this peer. Peers without a key are one user: LOCAL or ANYONE."""
        return self not in {LOCAL, ANYONE}

    def may_see(self, owner_key: str) -> bool:
        return self.key == owner_key or self.is_admin


LOCAL = Identity("local")
"""A process of the server's own user on the server's host, as verified by the kernel."""
ANYONE = Identity("anyone", ALL_ROLES - {Role.ADMIN})
NOBODY = Identity("nobody", frozenset())


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a peer. attachments: read-only, zero-copy views of its frames. descriptors: passed files, which
    close when their last reference is dropped; empty if the connection could not pass them."""

    peer: bytes
    message: Message
    attachments: Sequence[memoryview] = ()
    descriptors: Descriptors = ()


class Opened(NamedTuple):
    """Listener: a peer was welcomed with a new session. Messages from its earlier session are void."""

    peer: bytes
    hello: Hello
    identity: Identity = LOCAL


class Resumed(NamedTuple):
    """A peer (listener) or the server (connector) has reconnected, and no message was lost."""

    peer: bytes


class Broken(NamedTuple):
    """The connection was lost, but the session continues. Messages are queued up to the outbox's limit."""

    peer: bytes


class LinkFigures(NamedTuple):
    """Bytes of sequenced and of unacknowledged messages. latency_seconds: last round trip; 0 if unknown."""

    sent_bytes: int = 0
    received_bytes: int = 0
    outbox_bytes: int = 0
    latency_seconds: float = 0.0


class Closed(NamedTuple):
    """Listener: the session ended because of a Goodbye (is_orderly), malformed messages, or a full outbox."""

    peer: bytes
    text: str
    is_orderly: bool = True


class Welcomed(NamedTuple):
    """Connector: the server opened a new session. Except for the first Welcomed, this means that the server has lost
    the previous session."""

    welcome: Welcome


class ConnectionRefused(NamedTuple):
    """Connector: the server refused this peer, and the connector has stopped retrying."""

    refused: Refused


class TryAgain(NamedTuple):
    """Answer that makes a listener cut the connection after its Hello, because the peer may be admitted over its other
    transport. A process of the server's user is LOCAL over the local listener, but has a key over ZeroMQ."""

    text: str


ListenerEvent = Opened | Resumed | Received | Broken | Closed
ConnectorEvent = Welcomed | Resumed | Received | Broken | ConnectionRefused


class Connector(Protocol):
    """A peer's connection to one server. Connects in the background and reconnects until closed or refused."""

    @property
    def connected(self) -> bool:
        """True between Welcomed or Resumed and Broken."""

    @property
    def passes_descriptors(self) -> bool:
        """Whether the current connection passes descriptors. If the next connection does not, descriptors are
        dropped."""

    @property
    def last_error(self) -> str:
        """Why the scheduler is not connected, or why the last attempt failed."""

    def send(self, message: Message, attachments: Attachments = (), descriptors: Descriptors = ()) -> None:
        """Queue a message, with or without a connection. Attachments must not change until acknowledged. Raises
        LimitError for a full outbox or an oversized message. Drops the message after ConnectionRefused and `close`."""

    def together(self, work: Callable[[], object]) -> None:
        """Call `work` in the loop, and transmit its messages immediately afterwards, not in the next iteration."""

    def outbox_bytes(self) -> int:
        """Return the number of bytes that the server has not acknowledged."""

    def close(self, reason: str = "") -> None:
        """Send a Goodbye, deliver queued messages within the linger time, and close."""
