"""The rules of a connector: when to dial, what the handshake means, when a silent server counts as gone.

No socket and no clock: frames, breaks and times go in; events for the component and envelopes for the transport come
out, and `hang_up` says that the present connection has no future.

Laws: only a Hello (and at the end a Goodbye) is sent before the Welcome; after ConnectionRefused nothing is sent; the
component sees Welcomed or Resumed, then Broken, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import assert_never

from scaler.errors import ProtocolError
from scaler.net.connection import (
    Broken,
    Buffer,
    ConnectionRefused,
    ConnectorEvent,
    OutboxLimits,
    Received,
    Resumed,
    Welcomed,
)
from scaler.net.envelopes import (
    ACKNOWLEDGE_BODY,
    HANDSHAKE_SECONDS,
    MAX_MALFORMED_IN_A_ROW,
    UNSEQUENCED_TYPES,
    Counters,
    Taken,
    Transmit,
    check_header,
    size_of,
)
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    Acknowledge,
    Goodbye,
    Heartbeat,
    HeartbeatEcho,
    Hello,
    Message,
    RefusalReason,
    Refused,
    Role,
    Welcome,
)
from scaler.protocol.session import Envelope, Receipt, Session, check_attachments, peer_of, read_header

MIN_BACKOFF_SECONDS = 0.02
MAX_BACKOFF_SECONDS = 1.0
SETTLED_SECONDS = 1.0
"""A connection that lived this long was a good one: after it, the back-off begins anew."""

_SAYS_MORE = frozenset({Role.WORKER, Role.MANAGER})
"""Roles whose components send heartbeats of their own, richer ones."""


class Phase(Enum):
    WAITING = "waiting"
    """There is no connection; the next attempt is due at `dial_at`."""
    DIALLING = "dialling"
    """There is a connection, or an attempt at one, and no Welcome yet."""
    CONNECTED = "connected"
    STOPPED = "stopped"
    """Refused, or closed: for good."""


class ConnectorCore:
    """One peer's session with one server. jitter gives numbers from 0 to 1 that spread the attempts of many peers."""

    def __init__(
        self, session_id: bytes, hello: Hello, limits: OutboxLimits, now: float, jitter: Callable[[], float]
    ) -> None:
        self.peer = peer_of(session_id)
        self.counters = Counters()
        self.phase = Phase.WAITING
        self.dial_at = now
        self.hang_up = False
        """True when the transport must close the present connection and call `broken`."""
        self.last_error = "no connection was made"
        """Why there is no Welcome, for people."""
        self._id = session_id
        self._hello = hello
        self._pings = hello.role not in _SAYS_MORE
        self._limits = limits
        self._jitter = jitter
        self._session = self._new_session()
        self._resume = False
        self._welcome: Welcome | None = None
        self._events: list[ConnectorEvent] = []
        self._failures = 0
        self._malformed_in_a_row = 0
        self._since = now
        self._asked_at: float | None = None
        """When the first thing was sent that the server has to answer, and has not."""
        self._heartbeat_at = now

    # -- what the transport brings -------------------------------------------------------------------------------

    def dialled(self, now: float) -> None:
        """Note that the transport has opened a connection: it is to be greeted."""
        assert self.phase is Phase.WAITING, "one connection at a time"
        if not self._failures:
            self.last_error = "there is no answer yet"
        self.phase = Phase.DIALLING
        self.hang_up = False
        self._since = now
        self._malformed_in_a_row = 0
        self._session.post(encode(replace(self._hello, resume=self._resume)))

    def receive(self, header: bytes, body: bytes, attachments: Sequence[memoryview], now: float) -> None:
        """Take in one envelope."""
        if self.hang_up or self.phase is Phase.STOPPED:
            return
        self._asked_at = None
        try:
            match self.phase:
                case Phase.DIALLING:
                    self._answered(header, body, now)
                case Phase.CONNECTED:
                    self._take(header, body, attachments, now)
                case Phase.WAITING:
                    raise AssertionError("an envelope came without a connection")
                case _:
                    assert_never(self.phase)
        except ProtocolError as error:
            self.malformed(str(error))

    def malformed(self, why: str) -> None:
        """Count an envelope that could not be read; too many in a row end the connection."""
        self.counters.malformed += 1
        self._malformed_in_a_row += 1
        if self._malformed_in_a_row >= MAX_MALFORMED_IN_A_ROW or self.phase is Phase.DIALLING:
            self.last_error = f"what answers there does not speak this protocol: {why}"
            self.hang_up = True

    def broken(self, why: str, now: float) -> None:
        """Note that the connection, or the attempt at one, is gone; plan the next attempt."""
        if self.phase not in {Phase.DIALLING, Phase.CONNECTED}:
            return
        if self.phase is Phase.CONNECTED:
            self._events.append(Broken(self.peer))
            if now - self._since >= SETTLED_SECONDS:
                self._failures = 0
        if not self.hang_up:
            self.last_error = why
        self.phase = Phase.WAITING
        self.hang_up = False
        self._asked_at = None
        self._session.disconnect()
        delay = min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2 ** min(self._failures, 10))
        self._failures += 1
        self.dial_at = now + delay * (0.5 + 0.5 * self._jitter())

    # -- what the component says ---------------------------------------------------------------------------------

    def send(self, message: Message, attachments: Sequence[Buffer] = ()) -> None:
        """Queue a message; see `Connector.send`. After ConnectionRefused it is dropped and counted."""
        if self.phase is Phase.STOPPED:
            self.counters.undeliverable += 1
            return
        body = encode(message)
        if type(message) in UNSEQUENCED_TYPES:
            if attachments:
                raise ValueError(f"a {type(message).__name__} carries no attachments")
            if self.phase is Phase.CONNECTED:
                self._session.post(body)
            return
        if attachments:
            check_attachments(attachments)
        self._session.keep(body, attachments)

    def say_goodbye(self, text: str) -> None:
        """Queue a Goodbye behind what has been flushed, be it only the Hello."""
        if self.phase in {Phase.DIALLING, Phase.CONNECTED}:
            self._session.post(encode(Goodbye(text)))

    def stop(self) -> None:
        """End for good."""
        self.phase = Phase.STOPPED
        self.last_error = "it was closed"

    # -- what the transport asks for -----------------------------------------------------------------------------

    def take_events(self) -> list[ConnectorEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def flush(self, transmit: Transmit, now: float) -> bool:
        """Give the transport all that it takes. Returns True when the connection was full and more waits."""
        if self.hang_up or self.phase not in {Phase.DIALLING, Phase.CONNECTED}:
            return False
        session = self._session
        while (envelope := session.next_envelope()) is not None:
            if self.phase is Phase.DIALLING and envelope.sequence:
                return False
            taken = transmit(self.peer, session.header(envelope), envelope.body, envelope.attachments)
            if taken is not Taken.SENT:
                # A connection that is gone looks full from here; that it is gone is told in another way.
                return True
            session.sent(envelope)
            if self._asked_at is None and envelope.body is not ACKNOWLEDGE_BODY:
                self._asked_at = now
        if session.acknowledge_due(now):
            acknowledge = Envelope(0, ACKNOWLEDGE_BODY, (), 0)
            if transmit(self.peer, session.header(acknowledge), ACKNOWLEDGE_BODY, ()) is Taken.SENT:
                session.acknowledge_sent()
        return False

    def tick(self, now: float) -> None:
        """Do what time alone calls for: ping, and give up on a handshake or a server that takes too long."""
        match self.phase:
            case Phase.DIALLING:
                if now - self._since >= HANDSHAKE_SECONDS:
                    self.last_error = "no answer came to the greeting"
                    self.hang_up = True
            case Phase.CONNECTED:
                assert self._welcome is not None, "connected by a Welcome"
                if self._asked_at is not None and now - self._asked_at >= self._welcome.lease_seconds / 2:
                    self.last_error = f"the server has been silent for {now - self._asked_at:.1f} s"
                    self.hang_up = True
                elif self._pings and now >= self._heartbeat_at:
                    self._session.post(encode(Heartbeat(now)))
                    self._heartbeat_at = now + self._welcome.heartbeat_seconds
            case Phase.WAITING | Phase.STOPPED:
                pass
            case _:
                assert_never(self.phase)

    def next_at(self) -> float | None:
        """Return when `tick`, `flush` or the transport (to dial) has something to do; None once stopped."""
        match self.phase:
            case Phase.WAITING:
                return self.dial_at
            case Phase.DIALLING:
                return self._since + HANDSHAKE_SECONDS
            case Phase.CONNECTED:
                assert self._welcome is not None, "connected by a Welcome"
                times = [self._heartbeat_at] if self._pings else []
                if self._asked_at is not None:
                    times.append(self._asked_at + self._welcome.lease_seconds / 2)
                if self._session.owes:
                    times.append(self._session.acknowledge_at)
                return min(times, default=None)
            case Phase.STOPPED:
                return None
            case _:
                assert_never(self.phase)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def welcome(self) -> Welcome | None:
        """The last Welcome, also after a break."""
        return self._welcome

    def outbox_bytes(self) -> int:
        """Return the bytes kept until the server acknowledges them."""
        return self._session.outbox_bytes

    # -- rules ---------------------------------------------------------------------------------------------------

    def _answered(self, frame: bytes, body: bytes, now: float) -> None:
        header = read_header(frame)
        if header.version != PROTOCOL_VERSION:
            text = (
                f"the server speaks protocol {header.version}, this {self._hello.role} (scaler "
                f"{self._hello.scaler_version}) speaks protocol {PROTOCOL_VERSION}: install the same version on both"
            )
            self._turned(Refused(RefusalReason.VERSION, text))
            return
        check_header(header, self._id)
        message = decode(body)
        match message:
            case Welcome():
                self._welcomed(message, header.acknowledged, now)
            case Refused():
                self._turned(message)
            case Goodbye():
                self.last_error = f"the server said goodbye: {message.text}"
                self.hang_up = True
            case _:
                raise ProtocolError(f"a {type(message).__name__} came before the Welcome")

    def _welcomed(self, welcome: Welcome, acknowledged: int, now: float) -> None:
        if welcome.lease_seconds <= 0 or welcome.heartbeat_seconds <= 0:
            raise ProtocolError("a Welcome without a lease, or without time between heartbeats")
        if welcome.resumed:
            if not self._resume or not self._session.can_resume(acknowledged):
                # The two sides disagree on what was said: forget the session on both, and begin anew.
                self._resume = False
                self.last_error = "the server resumed a session that cannot go on"
                self.hang_up = True
                return
            self._session.resume(acknowledged)
            self._events.append(Resumed(self.peer))
        else:
            if self._welcome is not None:
                self._session = self._new_session()
            # Anything said in the new session tells the server that this side knows of it.
            self._session.post(ACKNOWLEDGE_BODY)
            self._events.append(Welcomed(welcome))
        self._welcome = welcome
        self._resume = True
        self.phase = Phase.CONNECTED
        self._since = now
        self._heartbeat_at = now + welcome.heartbeat_seconds

    def _take(self, frame: bytes, body: bytes, attachments: Sequence[memoryview], now: float) -> None:
        header = read_header(frame)
        check_header(header, self._id)
        receipt = self._session.receive(header, size_of(body, attachments), now)
        if receipt is Receipt.DUPLICATE:
            self.counters.duplicates += 1
            return
        if receipt is Receipt.GAP:
            self.counters.gaps += 1
            self.last_error = "messages were lost on the way"
            self.hang_up = True
            return
        message = decode(body)
        self._malformed_in_a_row = 0
        match message:
            case Acknowledge():
                pass
            case HeartbeatEcho() if self._pings:
                pass
            case Refused():
                self._turned(message)
            case Goodbye():
                self.last_error = f"the server said goodbye: {message.text}"
                self.hang_up = True
            case Hello() | Welcome() | Heartbeat():
                raise ProtocolError(f"a server does not send {type(message).__name__} here")
            case _:
                self._events.append(Received(self.peer, message, attachments))

    def _turned(self, refused: Refused) -> None:
        self.counters.refused += 1
        self.last_error = refused.text
        self.phase = Phase.STOPPED
        self._events.append(ConnectionRefused(refused))

    def _new_session(self) -> Session:
        return Session(self._id, max_messages=self._limits.messages, max_bytes=self._limits.size_bytes)
