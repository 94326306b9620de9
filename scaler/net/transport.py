"""Between the cores and what carries their envelopes: the `Transport` interface, inputs, commands and shared rules.

Pure. A *link* is one connection: a transport object that the cores only compare and put into commands. Inputs and
commands are those of `ListenerCore.step` and `ConnectorCore.step`; `connector.Shell` performs the commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from scaler.errors import ProtocolError
from scaler.net.connection import ConnectorEvent, ListenerEvent, TryAgain
from scaler.net.identity import Identity
from scaler.protocol.codec import decode
from scaler.protocol.messages import CARRIERS, Goodbye, Hello, Message, Refused, Welcome
from scaler.protocol.session import Descriptor, Envelope, Session

HANDSHAKE_SECONDS = 5.0
"""A connection that has not finished its handshake after this long is given up."""
IDENTIFY_SECONDS = 10.0
"""A connection without a session is cut after this long."""
CLOSE_SECONDS = 1.0
"""How long the other side has to disconnect after Refused or Goodbye, before its connection is cut."""
LINGER_SECONDS = 0.5
"""How long closing waits for queued messages to be delivered."""
MAX_MALFORMED_IN_A_ROW = 5
"""A peer that sends this many malformed or forbidden messages one after another is cut off."""


class Transport(Protocol):
    """One connection over a unix socket, ZeroMQ, or in memory. It never waits."""

    passes_descriptors: bool
    """False: the descriptors of envelopes are dropped."""
    identity: Identity
    """Of the other side, as a listener knows it when it has received something."""

    def transmit(self, envelopes: Sequence[Envelope]) -> bool:
        """Send envelopes; False if the connection keeps some, until `WritingChanged`. A lost connection drops all."""

    def lift_limits(self) -> None:
        """Take messages of any size from now on: the peer is welcome. Before, a listener's link takes a Hello only."""

    def compress(self) -> None:
        """Compress frames from now on where that pays, and take in compressed ones: both sides have announced it."""

    def cut(self) -> None:
        """Close at once. No input comes from this link any more. Harmless when repeated."""


class Connection(Transport, Protocol):
    @property
    def received_bytes(self) -> int:
        """What has come, as far as the kernel counts it before all of a message is here; else 0."""

    def close(self, linger_seconds: float) -> None:
        """Wait up to `linger_seconds` until everything is delivered, then close."""

    def receive(self, inputs: list[Input]) -> None:
        """Add what has happened to `inputs`: envelopes up to a limit, and whether the connection has ended."""


class Watcher(Protocol):
    """Has a transport read when its descriptor is readable, and write when it is writable and that is wanted."""

    def watch(self, descriptor: int) -> None: ...

    def watch_writing(self, descriptor: int, is_wanted: bool) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...


class EnvelopeReceived(NamedTuple):
    """A named tuple, as there is one per message and it is the cheapest record."""

    link: Transport
    header: bytes
    body: bytes
    attachments: Sequence[memoryview] = ()
    descriptors: Sequence[Descriptor] = ()


class LinkOpened(NamedTuple):
    """A connection opened. origin: for logs. source: host. is_scarce: few file descriptors are left."""

    link: Transport
    origin: str = ""
    source: str = ""
    is_scarce: bool = False


class LinkLost(NamedTuple):
    """The connection is gone; no input comes from it any more. None: a connector failed to make one."""

    link: Transport | None
    reason: str = "the connection broke"
    refused_after: int = 0
    """The server refuses this peer, if it happens this often in a row; 0: it says nothing about that."""


class WritingChanged(NamedTuple):
    """is_blocked: the transport keeps envelopes that the connection does not take yet."""

    link: Transport
    is_blocked: bool


class MalformedReceived(NamedTuple):
    """is_damaged: bytes were changed on the way, so the other side is not to blame."""

    link: Transport
    reason: str
    is_damaged: bool = False


class PeerRefused(NamedTuple):
    """A listener's transport refused a peer. key: the name of its key, where that is known."""

    reason: str
    key: str = ""
    origin: str = ""


class AccessEnded(NamedTuple):
    """These identities are no longer admitted, and why."""

    reasons: Mapping[Identity, str]


class Admitted(NamedTuple):
    answer: Welcome | Refused | TryAgain


class SessionEndRequested(NamedTuple):
    """The component ends a peer's session; reason is sent if there is a connection."""

    peer: bytes
    reason: Refused | Goodbye | None


class CloseRequested(NamedTuple):
    """The component closes this end. The step returns all that waits, and a Goodbye behind it."""

    reason: str


Input = (
    EnvelopeReceived
    | LinkOpened
    | LinkLost
    | WritingChanged
    | MalformedReceived
    | PeerRefused
    | AccessEnded
    | Admitted
    | SessionEndRequested
    | CloseRequested
)


class Transmit(NamedTuple):
    link: Transport
    envelopes: Sequence[Envelope]


class Deliver(NamedTuple):
    """Give these events to the component, then step again: what it sends in answer is transmitted by that step."""

    events: list[ListenerEvent] | list[ConnectorEvent]


class Admit(NamedTuple):
    """Ask the component about a peer; the core waits for `Admitted`. hello.resume: the session is its own."""

    peer: bytes
    hello: Hello
    identity: Identity


class Dial(NamedTuple):
    """Connect to the server."""


class LiftLimits(NamedTuple):
    """Let this link bring more than a Hello: its peer is about to be welcomed."""

    link: Transport


class Compress(NamedTuple):
    """Let this link carry compressed frames: both sides can read them."""

    link: Transport


class Cut(NamedTuple):
    """Close this connection. was_welcomed: a connector's session was on it."""

    link: Transport
    was_welcomed: bool = True


class Report(NamedTuple):
    """Log a refused peer, or a connection without our protocol. key: proved by the peer, or empty."""

    text: str
    is_refusal: bool
    key: str = ""
    origin: str = ""


Command = Transmit | Deliver | Admit | Dial | LiftLimits | Compress | Cut | Report


class UnreadableError(Exception):
    """A message of a session cannot be read: it is not acknowledged, and the other side sends it again."""


class Unreadable:
    """Counts how often in a row the same message of a session could not be read."""

    __slots__ = ("_received", "_times")

    def __init__(self) -> None:
        self._received = self._times = -1

    def is_final(self, session: Session) -> bool:
        """Count an attempt to read the next message; True when there were `MAX_MALFORMED_IN_A_ROW`."""
        self._times = self._times + 1 if self._received == session.received else 1
        self._received = session.received
        return self._times >= MAX_MALFORMED_IN_A_ROW


def accept(session: Session, envelope: EnvelopeReceived, now: float) -> Message | None:
    """Return the message of an envelope, None for a duplicate. Raises ProtocolError, UnreadableError, and GapError."""
    size = len(envelope.body)
    for attachment in envelope.attachments:
        size += attachment.nbytes
    try:
        message = decode(envelope.body)
        if envelope.attachments and type(message) not in CARRIERS:
            raise ProtocolError(f"{type(message).__name__} carries no attachments")
    except ProtocolError as error:
        if session.awaits(envelope.header):
            raise UnreadableError(str(error)) from None
        raise
    return message if session.receive(envelope.header, size, now) else None
