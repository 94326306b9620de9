"""Exactly-once, in-order delivery over connections that break: the sequence numbers of one peer's session.

Pure: bytes and times in, envelopes out. A session counts what it sends and what it has received. Sequenced messages
are kept until the other side has acknowledged them, and repeated after a break; what comes twice is dropped; what is
missing is noticed. Unsequenced messages (heartbeats and the handshake) are sent once or never.

Laws: what is kept has consecutive numbers, first those in flight (handed to the present connection), then those that
wait. `received` only grows by one. An acknowledgement never names what was not sent.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from scaler.errors import LimitError, ProtocolError
from scaler.ids import PEER_ID_BYTES
from scaler.protocol.messages import MAX_CHUNK_BYTES, PROTOCOL_VERSION

HEADER_BYTES = 40
SESSION_ID_BYTES = 16
MAX_ATTACHMENTS = 1024
"""Most attachments of one message."""
MAX_LOOSE_MESSAGES = 64
"""Most unsequenced messages that wait for one connection; beyond it, the oldest is dropped."""
ACKNOWLEDGE_MESSAGES = 64
ACKNOWLEDGE_BYTES = 1024 * 1024
ACKNOWLEDGE_SECONDS = 0.05
"""An acknowledgement is owed after this many messages or bytes, or this long after the first of them."""
ENVELOPE_OVERHEAD_BYTES = 256
"""What an envelope in the outbox counts beside its bytes, so that empty messages do not come for free."""

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct("<II16sQQ")


class Header(NamedTuple):
    """The first frame of every envelope."""

    version: int
    flags: int
    session: bytes
    sequence: int
    """0: outside the sequence."""
    acknowledged: int

    def pack(self) -> bytes:
        return _HEADER.pack(*self)


def read_header(frame: Buffer) -> Header:
    """Return the header of an envelope, of whatever protocol version. Raises ProtocolError unless it has 40 bytes."""
    if len(frame) != HEADER_BYTES:
        raise ProtocolError(f"an envelope's header has {HEADER_BYTES} bytes, not {len(frame)}")
    return Header._make(_HEADER.unpack(frame))


def peer_of(session_id: bytes) -> bytes:
    """Return the peer id that a session id begins with."""
    return session_id[:PEER_ID_BYTES]


def check_attachments(attachments: Sequence[Buffer]) -> None:
    """Raise LimitError when one message may not carry these, and ValueError for a view that is not contiguous."""
    if len(attachments) > MAX_ATTACHMENTS:
        raise LimitError(f"{len(attachments)} attachments are more than MAX_ATTACHMENTS = {MAX_ATTACHMENTS}")
    for attachment in attachments:
        size = len(attachment)
        if isinstance(attachment, memoryview):
            size = attachment.nbytes
            if not attachment.c_contiguous:
                raise ValueError("an attachment must be contiguous in memory")
        if size > MAX_CHUNK_BYTES:
            raise LimitError(f"an attachment of {size} bytes is larger than MAX_CHUNK_BYTES = {MAX_CHUNK_BYTES}")


class Envelope(NamedTuple):
    """A message as it is sent, without its header. sequence 0: sent once, and not kept."""

    sequence: int
    body: bytes
    attachments: Sequence[Buffer]
    size_bytes: int


class Receipt(Enum):
    """What a received sequence number means."""

    NEW = "new"
    """The next one, or outside the sequence: to be delivered."""
    DUPLICATE = "duplicate"
    """Delivered before: to be dropped."""
    GAP = "gap"
    """Something before it is missing: the connection must be broken, so that the other side repeats."""


class Session:
    """One side of a session. Times are seconds of any one monotonic clock."""

    __slots__ = (
        "_flying",
        "_kept_bytes",
        "_last",
        "_loose",
        "_max_bytes",
        "_max_messages",
        "_owed_bytes",
        "_owed_messages",
        "_owed_since",
        "_waiting",
        "id",
        "received",
    )

    def __init__(self, session_id: bytes, *, max_messages: int, max_bytes: int) -> None:
        if len(session_id) != SESSION_ID_BYTES:
            raise ValueError(f"a session id has {SESSION_ID_BYTES} bytes, not {len(session_id)}")
        self.id = session_id
        self.received = 0
        """The last sequence number that was received in order."""
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._last = 0
        self._flying: deque[Envelope] = deque()
        self._waiting: deque[Envelope] = deque()
        self._loose: deque[Envelope] = deque(maxlen=MAX_LOOSE_MESSAGES)
        self._kept_bytes = 0
        self._owed_messages = 0
        self._owed_bytes = 0
        self._owed_since = 0.0

    # -- sending -----------------------------------------------------------------------------------------------

    @property
    def outbox_bytes(self) -> int:
        """Bytes kept until they are acknowledged."""
        return self._kept_bytes

    @property
    def outbox_messages(self) -> int:
        """Messages kept until they are acknowledged."""
        return len(self._flying) + len(self._waiting)

    def keep(self, body: bytes, attachments: Sequence[Buffer] = ()) -> None:
        """Number a message and keep it. Raises LimitError, and keeps nothing, when the outbox is full."""
        size = ENVELOPE_OVERHEAD_BYTES + len(body)
        for attachment in attachments:
            size += attachment.nbytes if isinstance(attachment, memoryview) else len(attachment)
        if self.outbox_messages >= self._max_messages:
            raise LimitError(f"the outbox is full: {self._max_messages} messages wait to be acknowledged")
        if self._kept_bytes + size > self._max_bytes:
            raise LimitError(
                f"the outbox is full: {self._kept_bytes} bytes wait to be acknowledged, "
                f"and {size} more do not fit into {self._max_bytes}"
            )
        self._last += 1
        self._kept_bytes += size
        self._waiting.append(Envelope(self._last, body, attachments, size))

    def post(self, body: bytes) -> None:
        """Queue an unsequenced message for the present connection."""
        self._loose.append(Envelope(0, body, (), 0))

    def next_envelope(self) -> Envelope | None:
        """Return what is to be sent next, or None. It stays next until `sent` is called."""
        if self._loose:
            return self._loose[0]
        return self._waiting[0] if self._waiting else None

    def header(self, envelope: Envelope) -> bytes:
        """Return the header frame of an envelope that is sent now."""
        return _HEADER.pack(PROTOCOL_VERSION, 0, self.id, envelope.sequence, self.received)

    def sent(self, envelope: Envelope) -> None:
        """Note that the connection has taken the next envelope. Its header acknowledged all that was received."""
        if envelope.sequence == 0:
            self._loose.popleft()
        else:
            self._flying.append(self._waiting.popleft())
        self.acknowledge_sent()

    # -- receiving ---------------------------------------------------------------------------------------------

    def receive(self, header: Header, size_bytes: int, now: float) -> Receipt:
        """Take in the header of an envelope of this session and say what to do with the rest of it.

        Raises ProtocolError, and changes nothing, when it acknowledges what was never sent.
        """
        acknowledged = header.acknowledged
        if acknowledged > self._last:
            raise ProtocolError(f"message {acknowledged} is acknowledged, but {self._last} was the last one sent")
        self._drop_through(acknowledged)
        sequence = header.sequence
        if sequence == 0:
            return Receipt.NEW
        if sequence > self.received + 1:
            return Receipt.GAP
        if not self._owed_messages:
            self._owed_since = now
        self._owed_messages += 1
        self._owed_bytes += size_bytes
        if sequence <= self.received:
            return Receipt.DUPLICATE
        self.received = sequence
        return Receipt.NEW

    @property
    def owes(self) -> bool:
        """True when something was received that nothing sent since has acknowledged."""
        return self._owed_messages > 0

    @property
    def acknowledge_at(self) -> float:
        """When what is owed must be acknowledged at the latest; only meaningful while `owes`."""
        return self._owed_since + ACKNOWLEDGE_SECONDS

    def acknowledge_due(self, now: float) -> bool:
        """Tell whether an Acknowledge must be sent now, as nothing else has carried the number."""
        return self._owed_messages > 0 and (
            self._owed_messages >= ACKNOWLEDGE_MESSAGES
            or self._owed_bytes >= ACKNOWLEDGE_BYTES
            or now >= self.acknowledge_at
        )

    def acknowledge_sent(self) -> None:
        """Note that a header with all that was received is on its way."""
        self._owed_messages = 0
        self._owed_bytes = 0

    # -- connections -------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """The connection is gone: what flew waits again, what was not to be kept is dropped."""
        self._loose.clear()
        self._flying.extend(self._waiting)
        self._waiting = self._flying
        self._flying = deque()
        self.acknowledge_sent()

    def can_resume(self, acknowledged: int) -> bool:
        """Tell whether the other side, having received this much, can be given everything after it."""
        return self._last - self.outbox_messages <= acknowledged <= self._last

    def resume(self, acknowledged: int) -> None:
        """Go on over a new connection: drop what the other side has. Raises ProtocolError unless `can_resume`."""
        if not self.can_resume(acknowledged):
            raise ProtocolError(f"the session cannot go on after message {acknowledged}: {self!r}")
        self._drop_through(acknowledged)

    def _drop_through(self, acknowledged: int) -> None:
        for envelopes in (self._flying, self._waiting):
            while envelopes and envelopes[0].sequence <= acknowledged:
                self._kept_bytes -= envelopes.popleft().size_bytes

    def __repr__(self) -> str:
        return (
            f"<Session {self.id.hex()} received={self.received} sent={self._last} "
            f"flying={len(self._flying)} waiting={len(self._waiting)}>"
        )
