"""The interface between cores and transports: `Transport`, inputs, commands, and shared rules. Pure. A *link* is one
connection: a transport object that cores only compare and put into commands. `ListenerCore.step` and
`ConnectorCore.step` take the inputs and return the commands, which `connector.Shell` performs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from scaler.net.connection import ConnectorEvent, Identity, ListenerEvent
from scaler.protocol.messages import Descriptors, Goodbye, Refused
from scaler.protocol.session import Envelope, Session

HANDSHAKE_SECONDS = 5.0
IDENTIFY_SECONDS = 10.0
CLOSE_SECONDS = 1.0
"""Seconds that the other side has to disconnect after a Refused or Goodbye."""
LINGER_SECONDS = 0.5
MAX_MALFORMED_IN_A_ROW = 5
"""Number of consecutive malformed or forbidden messages after which a peer is cut off."""


class Transport(Protocol):
    """One connection over a unix socket, ZeroMQ, or in memory. Never blocks."""

    passes_descriptors: bool
    """Whether envelopes may carry descriptors. Otherwise, descriptors are dropped."""
    identity: Identity
    """Identity of the other side. On a listener, valid once any data has been received."""
    is_blocked: bool
    """Whether the connection is full, so that the transport queues envelopes until `Unblocked`."""

    def transmit(self, envelopes: Sequence[Envelope]) -> None:
        """Send or queue envelopes. A lost connection drops all envelopes."""

    def start_session(self, *, compresses: bool) -> None:
        """Accept messages of any size, from a welcomed peer. Until then, a listener's link accepts only a Hello.
        compresses: both sides compress outgoing frames where that pays off, and accept compressed frames."""

    def cut(self) -> None:
        """Close immediately. The link delivers no further input. Idempotent."""


class Connection(Transport, Protocol):
    @property
    def received_bytes(self) -> int:
        """Bytes received, including incomplete messages, as counted by the kernel; 0 if unknown."""

    def close(self, linger_seconds: float) -> None:
        """Wait up to `linger_seconds` for delivery, then close."""

    def receive(self, inputs: list[Input]) -> None:
        """Append to `inputs`: a limited number of envelopes, and the end of the connection."""


class Watcher(Protocol):
    """Wakes a transport when its descriptor is readable and, on request, when it is writable."""

    def watch(self, descriptor: int) -> None: ...

    def watch_writing(self, descriptor: int, is_wanted: bool) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...


class EnvelopeReceived(NamedTuple):
    """One per message, so a named tuple, which is the cheapest record."""

    link: Transport
    header: bytes
    body: bytes
    attachments: Sequence[memoryview] = ()
    descriptors: Descriptors = ()


class LinkOpened(NamedTuple):
    """A connection opened. origin: for logs. is_scarce: few file descriptors are left."""

    link: Transport
    origin: str = ""
    is_scarce: bool = False


class LinkLost(NamedTuple):
    """The connection is lost and delivers no more input. link: None if a connector could not create a link."""

    link: Transport | None
    reason: str = "the connection broke"
    refused_after: int = 0
    """Number of consecutive occurrences that count as a refusal; 0: never."""


class Unblocked(NamedTuple):
    link: Transport


class MalformedReceived(NamedTuple):
    """is_damaged: bytes were corrupted in transit, so the other side is not at fault."""

    link: Transport
    reason: str
    is_damaged: bool = False


class Report(NamedTuple):
    """Log a refused peer, or a connection that does not speak our protocol. key: proven by the peer, or empty. As an
    input: a listener's transport refused a peer."""

    text: str
    is_refusal: bool
    key: str = ""
    origin: str = ""


class AccessEnded(NamedTuple):
    reasons: Mapping[Identity, str]


class SessionEndRequested(NamedTuple):
    """The component ends a peer's session. reason: sent to the peer if connected."""

    peer: bytes
    reason: Refused | Goodbye | None


class CloseRequested(NamedTuple):
    """The component closes this end. The step returns all queued envelopes and a final Goodbye."""

    reason: str


Input = (
    EnvelopeReceived
    | LinkOpened
    | LinkLost
    | Unblocked
    | MalformedReceived
    | Report
    | AccessEnded
    | SessionEndRequested
    | CloseRequested
)


class Transmit(NamedTuple):
    link: Transport
    envelopes: Sequence[Envelope]


class Deliver(NamedTuple):
    """Pass these events to the component. Then step again to transmit its answers."""

    events: list[ListenerEvent] | list[ConnectorEvent]


class Dial(NamedTuple):
    """Connect to the server."""


class StartSession(NamedTuple):
    """Let this link receive more than a Hello, because its peer is about to be welcomed."""

    link: Transport
    compresses: bool


class Cut(NamedTuple):
    link: Transport
    was_welcomed: bool = True


Command = Transmit | Deliver | Dial | StartSession | Cut | Report


class Unreadable:
    __slots__ = ("_received", "_times")

    def __init__(self) -> None:
        self._received = self._times = -1

    def is_final(self, session: Session) -> bool:
        """Count an attempt to read the next message. Returns whether `MAX_MALFORMED_IN_A_ROW` is reached."""
        self._times = self._times + 1 if self._received == session.received else 1
        self._received = session.received
        return self._times >= MAX_MALFORMED_IN_A_ROW
