"""Exactly-once, in-order delivery over unreliable connections: the state machine of one peer's session. Pure.

A session numbers the messages that it sends and counts the ones that it receives. Sequenced messages are kept until
acknowledged, and resent after a break. Duplicates are dropped, and gaps are detected. Unsequenced messages (heartbeats,
handshake) are sent at most once. Invariants: kept messages have consecutive numbers; messages in flight on the current
connection precede waiting messages; `received` only grows by one; an acknowledgement never exceeds the last number
sent.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from scaler.errors import LimitError, ProtocolError
from scaler.ids import PEER_ID_BYTES
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import (
    CARRIERS,
    MAX_ATTACHED_BYTES,
    PROTOCOL_VERSION,
    UNSEQUENCED,
    Acknowledge,
    Attachments,
    Buffer,
    Descriptors,
    Message,
)

HEADER_BYTES = 40
SESSION_ID_BYTES = 16
MAX_ATTACHMENTS = 1024
MAX_DESCRIPTORS = 16
"""Maximum file descriptors per message. The kernel's limit is 253."""
MAX_LOOSE_MESSAGES = 64
"""Maximum unsequenced messages waiting for one connection. Beyond this, the oldest is dropped."""
ACKNOWLEDGE_MESSAGES = 64
ACKNOWLEDGE_BYTES = 1024 * 1024
ACKNOWLEDGE_SECONDS = 0.05
"""An acknowledgement is due after this many unacknowledged messages or bytes, or this long after the first of them."""
ACKNOWLEDGE_BODY = encode(Acknowledge())
ENVELOPE_OVERHEAD_BYTES = 256
"""Assumed overhead of an envelope in the outbox, so that empty messages also count."""

_HEADER = struct.Struct("<II16sQQ")


class OutboxFullError(LimitError):
    pass


class UnreadableError(ProtocolError):
    """A message is unreadable or missing. Close the connection, so that the peer resends the message."""


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """Limits on unacknowledged data kept for a peer. A listener closes a session that exceeds these limits."""

    messages: int = 100_000
    size_bytes: int = 1024 * 1024 * 1024


class Envelope(NamedTuple):
    """One message on a connection: header frame, body frame, attachments, and file descriptors."""

    header: bytes
    body: bytes
    attachments: Attachments = ()
    descriptors: Descriptors = ()
    """Dropped on connections that cannot pass file descriptors."""


class Header(NamedTuple):
    version: int
    flags: int
    """0, except for the checksum flag of `net.checksum`."""
    session: bytes
    sequence: int
    """0: unsequenced."""
    acknowledged: int

    @classmethod
    def read(cls, frame: Buffer) -> Header:
        """Parse a header of any protocol version. Raises ProtocolError unless it has 40 bytes."""
        if len(frame) != HEADER_BYTES:
            raise ProtocolError(f"an envelope's header has {HEADER_BYTES} bytes, not {len(frame)}")
        return cls._make(_HEADER.unpack(frame))

    def pack(self) -> bytes:
        return _HEADER.pack(*self)

    @property
    def peer(self) -> bytes:
        return self.session[:PEER_ID_BYTES]


def check_attachments(attachments: Attachments, descriptors: Descriptors = ()) -> None:
    """Raise LimitError if these exceed the limits for one message, and ValueError for a non-contiguous view."""
    if len(attachments) > MAX_ATTACHMENTS:
        raise LimitError(f"{len(attachments)} attachments are more than MAX_ATTACHMENTS = {MAX_ATTACHMENTS}")
    if len(descriptors) > MAX_DESCRIPTORS:
        raise LimitError(f"{len(descriptors)} descriptors are more than MAX_DESCRIPTORS = {MAX_DESCRIPTORS}")
    size = 0
    for attachment in attachments:
        if isinstance(attachment, memoryview):
            size += attachment.nbytes
            if not attachment.c_contiguous:
                raise ValueError("an attachment must be contiguous in memory")
        else:
            size += len(attachment)
    if size > MAX_ATTACHED_BYTES:
        raise LimitError(f"attachments of {size} bytes are larger than MAX_ATTACHED_BYTES = {MAX_ATTACHED_BYTES}")


class _OutboxEntry(NamedTuple):
    sequence: int
    body: bytes
    attachments: Attachments
    descriptors: Descriptors
    size_bytes: int


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """One side of a session. All times are seconds on one monotonic clock. received: last sequence number received in
    order. outbox_bytes: unacknowledged bytes. sent_bytes, received_bytes: total size of sequenced messages and
    attachments, before compression. acknowledge_at: time at which an Acknowledge is due unless another envelope
    acknowledges earlier; inf: none is due.
    """

    id: bytes
    limits: OutboxLimits
    received: int = field(init=False, default=0)
    outbox_bytes: int = field(init=False, default=0)
    sent_bytes: int = field(init=False, default=0)
    received_bytes: int = field(init=False, default=0)
    acknowledge_at: float = field(init=False, default=math.inf)
    _last: int = field(init=False, default=0)
    _in_flight: deque[_OutboxEntry] = field(init=False, default_factory=deque)
    _waiting: deque[_OutboxEntry] = field(init=False, default_factory=deque)
    _loose: deque[bytes] = field(init=False, default_factory=partial(deque, maxlen=MAX_LOOSE_MESSAGES))
    _unacknowledged_messages: int = field(init=False, default=0)
    _unacknowledged_bytes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if len(self.id) != SESSION_ID_BYTES:
            raise ValueError(f"a session id has {SESSION_ID_BYTES} bytes, not {len(self.id)}")

    @property
    def outbox_messages(self) -> int:
        return len(self._in_flight) + len(self._waiting)

    def send(self, message: Message, attachments: Attachments, descriptors: Descriptors, is_connected: bool) -> None:
        """Queue a message for `take`. Raises LimitError if it is too large or the outbox is full."""
        body = encode(message)
        if attachments and type(message) not in CARRIERS:
            raise ValueError(f"{type(message).__name__} carries no attachments")
        if type(message) not in UNSEQUENCED:
            if attachments or descriptors:
                check_attachments(attachments, descriptors)
            self.keep(body, attachments, descriptors)
        elif is_connected:
            self.post(body)

    def keep(self, body: bytes, attachments: Attachments = (), descriptors: Descriptors = ()) -> None:
        """Number a message, and keep it until acknowledged. Raises OutboxFullError instead if the outbox is full."""
        size = ENVELOPE_OVERHEAD_BYTES + len(body)
        for attachment in attachments:
            size += attachment.nbytes if isinstance(attachment, memoryview) else len(attachment)
        limits = self.limits
        if len(self._in_flight) + len(self._waiting) >= limits.messages:
            raise OutboxFullError(f"the outbox is full: unacknowledged messages: {limits.messages}")
        if self.outbox_bytes + size > limits.size_bytes:
            raise OutboxFullError(
                f"the outbox is full: unacknowledged bytes: {self.outbox_bytes}, "
                f"and {size} more would exceed {limits.size_bytes}"
            )
        self._last += 1
        self.outbox_bytes += size
        self.sent_bytes += size
        self._waiting.append(_OutboxEntry(self._last, body, attachments, descriptors, size))

    def post(self, body: bytes) -> None:
        self._loose.append(body)

    def take(self, now: float = -math.inf, *, sequenced: bool = True) -> list[Envelope]:
        """Return all waiting envelopes, unsequenced ones first. The sequenced ones are now in flight. If none is
        waiting, returns an Acknowledge that is due by `now`. sequenced: False leaves sequenced messages waiting."""
        pack, session_id, received = _HEADER.pack, self.id, self.received
        envelopes = []
        loose, waiting = self._loose, self._waiting
        if self.acknowledge_at <= now and not (loose or waiting):
            loose.append(ACKNOWLEDGE_BODY)
        while loose:
            envelopes.append(Envelope(pack(PROTOCOL_VERSION, 0, session_id, 0, received), loose.popleft()))
        if waiting and sequenced:
            for sequence, body, attachments, descriptors, _ in waiting:
                header = pack(PROTOCOL_VERSION, 0, session_id, sequence, received)
                envelopes.append(Envelope(header, body, attachments, descriptors))
            if self._in_flight:
                self._in_flight.extend(waiting)
                waiting.clear()
            else:
                self._in_flight, self._waiting = waiting, self._in_flight
        if envelopes:
            self._unacknowledged_messages = self._unacknowledged_bytes = 0
            self.acknowledge_at = math.inf
        return envelopes

    def accept(self, header: bytes, body: bytes, attachments: Sequence[memoryview], now: float) -> Message | None:
        """Return the message, or None for a duplicate. Raises ProtocolError."""
        size = len(body)
        for attachment in attachments:
            size += attachment.nbytes
        try:
            message = decode(body)
            if attachments and type(message) not in CARRIERS:
                raise ProtocolError(f"{type(message).__name__} carries no attachments")
        except ProtocolError as error:
            if self.awaits(header):
                raise UnreadableError(str(error)) from None
            raise
        return message if self.receive(header, size, now) else None

    def receive(self, header: bytes, size_bytes: int, now: float) -> bool:
        """Process a header. Returns False for a duplicate, which the caller drops. Raises UnreadableError if an earlier
        message is missing. For another session or an acknowledgement of an unsent message, raises ProtocolError and
        changes nothing."""
        if len(header) != HEADER_BYTES:
            raise ProtocolError(f"an envelope's header has {HEADER_BYTES} bytes, not {len(header)}")
        version, flags, session_id, sequence, acknowledged = _HEADER.unpack(header)
        if version != PROTOCOL_VERSION or flags:
            raise ProtocolError(f"an envelope of protocol {version} with flags {flags:#x}")
        if session_id != self.id:
            raise ProtocolError(f"an envelope of session {session_id.hex()} in session {self.id.hex()}")
        if acknowledged > self._last:
            raise ProtocolError(f"message {acknowledged} is acknowledged, but the last message sent is {self._last}")
        in_flight = self._in_flight
        while in_flight and in_flight[0].sequence <= acknowledged:
            self.outbox_bytes -= in_flight.popleft().size_bytes
        if sequence == 0:
            return True
        if sequence > self.received + 1:
            raise UnreadableError("an earlier message was lost in transit")
        if not self._unacknowledged_messages:
            self.acknowledge_at = now + ACKNOWLEDGE_SECONDS
        self._unacknowledged_messages += 1
        self._unacknowledged_bytes += size_bytes
        if (
            self._unacknowledged_messages >= ACKNOWLEDGE_MESSAGES or self._unacknowledged_bytes >= ACKNOWLEDGE_BYTES
        ) and now < self.acknowledge_at:
            self.acknowledge_at = now
        if sequence <= self.received:
            return False
        self.received = sequence
        self.received_bytes += size_bytes
        return True

    def awaits(self, header: bytes) -> bool:
        return len(header) == HEADER_BYTES and header[8:24] == self.id and Header.read(header).sequence > self.received

    def disconnect(self) -> None:
        """Handle a lost connection: requeue messages in flight, and drop unsequenced messages."""
        self._loose.clear()
        self._in_flight.extend(self._waiting)
        self._waiting = self._in_flight
        self._in_flight = deque()
        self._unacknowledged_messages = self._unacknowledged_bytes = 0
        self.acknowledge_at = math.inf

    def can_resume(self, acknowledged: int) -> bool:
        """Return whether all messages after this number are still available."""
        return self._last - self.outbox_messages <= acknowledged <= self._last

    def resume(self, acknowledged: int) -> None:
        """Continue on a new connection. Drops acknowledged messages. Raises ProtocolError unless `can_resume`."""
        if not self.can_resume(acknowledged):
            raise ProtocolError(f"the session cannot continue after message {acknowledged}: {self!r}")
        while self._waiting and self._waiting[0].sequence <= acknowledged:
            self.outbox_bytes -= self._waiting.popleft().size_bytes

    def __repr__(self) -> str:
        return (
            f"<Session {self.id.hex()} received={self.received} sent={self._last} "
            f"in_flight={len(self._in_flight)} waiting={len(self._waiting)}>"
        )
