"""What components see of the network: events in, messages out. Implemented over sockets and in memory.

A *peer* is one process, named by its 8-byte peer id. Its *session* (peer id + 8 bytes) lasts until a handshake that
does not resume it. Delivery within a session is exactly once and in order, over any number of broken connections, until
one side forgets the session; messages in `messages.UNSEQUENCED` are sent once and may be lost. Each iteration takes
everything that has arrived, calls `on_events` once, and flushes once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from scaler.net.identity import LOCAL, Identity
from scaler.protocol.messages import Hello, Message, Refused, Welcome

if TYPE_CHECKING:
    from scaler.protocol.session import Buffer, Descriptor


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a peer. attachments: read-only views of its frames, not copied. descriptors: passed files, closed
    with their last reference; none when the connection could not carry them."""

    peer: bytes
    message: Message
    attachments: Sequence[memoryview] = ()
    descriptors: Sequence[Descriptor] = ()


class Opened(NamedTuple):
    """Listener: a peer was welcomed with a new session; messages of its earlier session are void."""

    peer: bytes
    hello: Hello
    identity: Identity = LOCAL


class Resumed(NamedTuple):
    """Listener: a peer whose connection broke is back, and nothing was lost. Connector: the same of the server."""

    peer: bytes


class Broken(NamedTuple):
    """The connection is gone, the session is not: messages are kept meanwhile, within the outbox's limit."""

    peer: bytes


class LinkFigures(NamedTuple):
    """Bytes of numbered messages, and of unacknowledged ones. latency_seconds: last round trip, 0 if unknown."""

    sent_bytes: int = 0
    received_bytes: int = 0
    outbox_bytes: int = 0
    latency_seconds: float = 0.0


class Closed(NamedTuple):
    """Listener: the session is over, by a Goodbye (is_orderly), malformed messages, or a full outbox."""

    peer: bytes
    text: str
    is_orderly: bool = True


class Welcomed(NamedTuple):
    """Connector: the server opened a new session. At any time but the first, it has forgotten the old one."""

    welcome: Welcome


class ConnectionRefused(NamedTuple):
    """Connector: the server refused this peer, and the connector has stopped trying."""

    refused: Refused


class TryAgain(NamedTuple):
    """Listener: cuts the connection of a Hello, as the peer may be welcome over its other transport: a process of the
    server's user is LOCAL over the local listener and has a key over ZeroMQ."""

    text: str


ListenerEvent = Opened | Resumed | Received | Broken | Closed
ConnectorEvent = Welcomed | Resumed | Received | Broken | ConnectionRefused


class Connector(Protocol):
    """A peer's end: one server. Connects in the background and again after every break, until closed or refused."""

    @property
    def connected(self) -> bool:
        """True between Welcomed or Resumed and Broken."""

    @property
    def passes_descriptors(self) -> bool:
        """True when the present connection carries descriptors. The next one may not: then they are dropped."""

    @property
    def last_error(self) -> str:
        """Why there is no connection, or why there was none the last time."""

    def send(
        self, message: Message, attachments: Sequence[Buffer] = (), descriptors: Sequence[Descriptor] = ()
    ) -> None:
        """Queue a message, also without a connection; attachments must not change until acknowledged.

        Raises LimitError for a full outbox or too large a message. Drops it after ConnectionRefused and `close`.
        """

    def together(self, work: Callable[[], object]) -> None:
        """Call this in the loop, and transmit what it sends when it returns, not in the next iteration."""

    def outbox_bytes(self) -> int:
        """Bytes kept until the server acknowledges them."""

    def close(self, reason: str = "") -> None:
        """Say Goodbye, deliver what is queued within the linger time, and close."""
