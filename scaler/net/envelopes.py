"""What the cores of listener and connector share: limits of a conversation, and how a transport takes an envelope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from scaler.errors import ProtocolError
from scaler.net.connection import Buffer
from scaler.protocol.codec import encode
from scaler.protocol.messages import PROTOCOL_VERSION, UNSEQUENCED, Acknowledge
from scaler.protocol.session import Header

HANDSHAKE_SECONDS = 5.0
"""A connection that has not finished its handshake after this long is given up."""
SILENCE_SECONDS = 10.0
"""A connection that has said nothing at all for this long is cut."""
FAREWELL_SECONDS = 1.0
"""How long the other side has to go by itself after Refused or Goodbye, before its connection is cut."""
LINGER_SECONDS = 0.5
"""How long closing waits for queued messages to be delivered."""
MAX_MALFORMED_IN_A_ROW = 5
"""A peer that sends this many malformed or forbidden messages one after another is cut off."""

UNSEQUENCED_TYPES = frozenset(UNSEQUENCED)
ACKNOWLEDGE_BODY = encode(Acknowledge())


class Taken(Enum):
    """What became of an envelope that was given to the transport."""

    SENT = "sent"
    BLOCKED = "blocked"
    """The connection is full: to be tried again."""
    GONE = "gone"
    """There is no such connection any more."""


Transmit = Callable[[bytes, bytes, bytes, Sequence[Buffer]], Taken]
"""Takes the link's name, header, body and attachments of one envelope."""


@dataclass(slots=True)
class Counters:
    """What went wrong on all connections of one listener or connector since its start."""

    malformed: int = 0
    """Messages that were dropped as they were malformed, or not allowed for their sender."""
    duplicates: int = 0
    gaps: int = 0
    refused: int = 0
    undeliverable: int = 0
    """Messages for peers without a session, or for a server that refused this peer."""


def check_header(header: Header, session_id: bytes) -> None:
    """Raise ProtocolError when this envelope does not belong to the session."""
    if header.version != PROTOCOL_VERSION or header.flags:
        raise ProtocolError(f"an envelope of protocol {header.version} with flags {header.flags:#x}")
    if header.session != session_id:
        raise ProtocolError(f"an envelope of session {header.session.hex()} in session {session_id.hex()}")


def size_of(body: bytes, attachments: Sequence[memoryview]) -> int:
    """Return the bytes of a received envelope, as they count for acknowledgements."""
    return len(body) + sum(attachment.nbytes for attachment in attachments) if attachments else len(body)
