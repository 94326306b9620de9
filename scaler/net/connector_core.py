"""The rules of a connector: when to dial, how to interpret the handshake, and when a silent server counts as lost.
Pure. `step` takes connection events and returns commands. `send` queues for the next step. It is separate so that it
can raise an error immediately if the outbox is full. Invariants: before the Welcome, only a Hello and a final Goodbye
are sent; nothing follows ConnectionRefused; Welcomed or Resumed alternates with Broken."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from enum import Enum

from scaler.backoff import Backoff
from scaler.config.addresses import addresses_of, reached
from scaler.errors import ProtocolError
from scaler.ids import PEER_ID_BYTES
from scaler.net import transport as t
from scaler.net.connection import Broken, ConnectionRefused, ConnectorEvent, Received, Resumed, Welcomed
from scaler.net.transport import EnvelopeReceived
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Attachments, Descriptors, Message
from scaler.protocol.session import ACKNOWLEDGE_BODY, Header, OutboxLimits, Session

RECONNECT = Backoff(0.015, 0.75, jitter=1 / 3)
"""Delay between attempts at the same address. Grows from 0.01-0.02 s to 0.5-1 s."""
STABLE_SECONDS = 1.0
"""Duration of a connection after which the backoff is reset."""

_OWN_HEARTBEATS = m.WorkerDetails | m.ManagerDetails | m.StoreDetails


class Phase(Enum):
    WAITING = "waiting"
    DIALLING = "dialling"
    CONNECTED = "connected"
    STOPPED = "stopped"


class ConnectorCore:
    """One peer's session with one server. A server may have several addresses: after a failed attempt, or if the server
    there is on standby, the next address is tried. The random part of the session id spreads out the reconnects of many
    peers."""

    def __init__(self, session_id: bytes, hello: m.Hello, limits: OutboxLimits, now: float, address: str = "") -> None:
        self.peer = session_id[:PEER_ID_BYTES]
        self.phase = Phase.WAITING
        self.wake_at = now
        self.last_error = "no connection was made"
        self._welcome: m.Welcome | None = None
        self._epoch = 0
        """Latest epoch of the server."""
        self._hello = hello
        self._addresses = addresses_of(address)
        self._chance = int.from_bytes(session_id[-2:], "big") / 2**16
        self.session = Session(session_id, limits)
        self._latency_seconds = 0.0
        self._resume = False
        self._link: t.Transport | None = None
        self._commands: list[t.Command] = []
        self._events: list[ConnectorEvent] = []
        self._failures = 0
        self._refusals = 0
        self._unreadable = t.Unreadable()
        self._since = now
        self._dial_at = now
        self._sends_heartbeats = not isinstance(hello.details, _OWN_HEARTBEATS)
        self._heartbeat_at = math.inf
        self._unanswered_since = math.inf
        self._answer_seconds = t.HANDSHAKE_SECONDS
        """Seconds to wait for an answer: half the lease, once the server has announced the lease."""

    @property
    def address(self) -> str:
        """Address of the current or next attempt. Empty in memory."""
        return self._addresses[0]

    def send(self, message: Message, attachments: Attachments = (), descriptors: Descriptors = ()) -> None:
        if self.phase is not Phase.STOPPED:
            self.session.send(message, attachments, descriptors, self.phase is Phase.CONNECTED)

    def step(self, inputs: Iterable[t.Input], now: float) -> list[t.Command]:
        for item in inputs:
            if isinstance(item, EnvelopeReceived):
                if item.link is self._link:
                    self._receive(item, now)
            else:
                self._note(item, now)
        if now >= self.wake_at:
            self._expire(now)
        commands, self._commands = self._commands, []
        if self._events:
            events, self._events = self._events, []
            commands.append(t.Deliver(events))
            return commands
        link = self._link
        if link is not None and not link.is_blocked:
            envelopes = self.session.take(now, sequenced=self.phase is Phase.CONNECTED)
            if envelopes:
                commands.append(t.Transmit(link, envelopes))
                if self._unanswered_since == math.inf and envelopes[-1].body is not ACKNOWLEDGE_BODY:
                    self._unanswered_since = now
        if self.phase is Phase.WAITING:
            self.wake_at = self._dial_at
        elif self.phase is not Phase.STOPPED:
            acknowledge_at = math.inf if link is not None and link.is_blocked else self.session.acknowledge_at
            self.wake_at = min(self._heartbeat_at, self._unanswered_since + self._answer_seconds, acknowledge_at)
        return commands

    def _note(self, item: t.Input, now: float) -> None:
        match item:
            case t.LinkOpened(link):
                self._link = link
                self.session.post(encode(replace(self._hello, resume=self._resume)))
            case t.LinkLost(link, reason, refused_after) if link is self._link:
                self._refusals = self._refusals + 1 if refused_after else 0
                # After a Welcome, a restarting server may cause an uncertain refusal.
                is_certain = refused_after == 1 or self._welcome is None
                if refused_after and self._refusals >= refused_after and is_certain:
                    self._refused(m.Refused(m.RefusalReason.CREDENTIAL, reason))
                else:
                    self._hang_up(reason, now)
            case t.MalformedReceived(link, reason, is_damaged) if link is self._link:
                if is_damaged:
                    self._hang_up(reason, now)
                else:
                    self._malformed(reason, now)
            case t.CloseRequested(reason):
                self._close(reason)
            case _:
                pass  # from an abandoned connection, or `Unblocked`

    def _receive(self, envelope: EnvelopeReceived, now: float) -> None:
        self._unanswered_since = math.inf
        is_dialling = self.phase is Phase.DIALLING
        try:
            if is_dialling:
                message = self._first_message(envelope)
            else:
                message = self.session.accept(envelope.header, envelope.body, envelope.attachments, now)
            match message:
                case None:
                    pass  # a duplicate
                case m.Refused(m.RefusalReason.STANDBY, text) if len(self._addresses) > 1:
                    self._hang_up(text, now, elsewhere=True)
                case m.Refused():
                    self._refused(message)
                case m.Goodbye(text):
                    self._hang_up(f"the server closed the connection: {text}", now)
                case m.Welcome() if is_dialling:
                    self._welcomed(message, Header.read(envelope.header), now)
                case _ if is_dialling:
                    raise ProtocolError(f"{type(message).__name__} arrived before Welcome")
                case m.Acknowledge():
                    pass
                case m.HeartbeatEcho(sent_at) if self._sends_heartbeats:
                    self._latency_seconds = max(0.0, now - sent_at)
                case m.Hello() | m.Welcome() | m.Heartbeat():
                    raise ProtocolError(f"servers do not send {type(message).__name__} here")
                case _:
                    received = Received(self.peer, message, envelope.attachments, envelope.descriptors)
                    self._events.append(received)
        except ProtocolError as error:
            self._malformed(str(error), now)

    def _malformed(self, reason: str, now: float) -> None:
        """Hang up, so that the server resends a malformed message. Give up after several in a row."""
        if self.phase is Phase.DIALLING:
            self._hang_up(f"the program at that address does not speak this protocol: {reason}", now)
            return
        if not self._unreadable.is_final(self.session):
            self._hang_up(f"a message could not be read: {reason}", now)
            return
        text = f"the server sent {t.MAX_MALFORMED_IN_A_ROW} malformed messages in a row, the last one: {reason}"
        if self._link is not None:
            self.session.post(encode(m.Goodbye(text)))
            self._commands.append(t.Transmit(self._link, self.session.take(sequenced=False)))
        self._refused(m.Refused(m.RefusalReason.MALFORMED, text))

    def _first_message(self, envelope: EnvelopeReceived) -> Message | None:
        """Return the answer to the Hello, or None if the server speaks another protocol, which counts as a refusal."""
        header = Header.read(envelope.header)
        if header.version != m.PROTOCOL_VERSION:
            text = (
                f"the server speaks protocol {header.version}, this {self._hello.role} (scaler "
                f"{self._hello.scaler_version}) speaks protocol {m.PROTOCOL_VERSION}: install the same version on both"
            )
            with suppress(ProtocolError):  # all versions can read a Refused, whose text names both sides
                answer = decode(envelope.body)
                text = answer.text if isinstance(answer, m.Refused) else text
            self._refused(m.Refused(m.RefusalReason.VERSION, text))
            return None
        if header.flags or header.peer != self.peer:
            raise ProtocolError("an answer to another peer's Hello")
        return decode(envelope.body)

    def _welcomed(self, welcome: m.Welcome, header: Header, now: float) -> None:
        if welcome.epoch < self._epoch:
            self._hang_up("a newer scheduler has replaced the one that answered", now)
            return
        self._epoch = welcome.epoch
        if self.address:
            storage_address = reached(welcome.object_storage_address, self.address)
            welcome = replace(welcome, object_storage_address=storage_address)
        if welcome.lease_seconds <= 0 or welcome.heartbeat_seconds <= 0:
            raise ProtocolError("a Welcome without a lease or a heartbeat interval")
        if welcome.resumed:
            is_the_same = self._resume and header.session == self.session.id
            if not is_the_same or not self.session.can_resume(header.acknowledged):
                # The sides disagree about the messages sent: drop the session on both sides and start over.
                self._resume = False
                self._hang_up("the server resumed a session that cannot continue", now)
                return
            self.session.resume(header.acknowledged)
            self._events.append(Resumed(self.peer))
        else:
            if self._welcome is not None:
                self.session = Session(header.session, self.session.limits)
            self.session.id = header.session  # chosen by the server
            # Any message in the new session confirms the session to the server.
            self.session.post(ACKNOWLEDGE_BODY)
            self._events.append(Welcomed(welcome))
        if self._link is not None and welcome.compression and welcome.compression == self._hello.compression:
            self._commands.append(t.StartSession(self._link, compresses=True))
        self._welcome = welcome
        self._refusals = 0
        self._resume = True
        self.phase = Phase.CONNECTED
        self._since = now
        self._answer_seconds = welcome.lease_seconds / 2
        if self._sends_heartbeats:
            self._heartbeat_at = now + welcome.heartbeat_seconds

    def _close(self, reason: str) -> None:
        link = self._link
        if link is not None and self.phase is not Phase.STOPPED:
            waiting = self.session.take(sequenced=self.phase is Phase.CONNECTED)
            self.session.post(encode(m.Goodbye(reason)))
            self._commands.append(t.Transmit(link, [*waiting, *self.session.take(sequenced=False)]))
        self._stop("it was closed")

    def _expire(self, now: float) -> None:
        if self.phase is Phase.WAITING and now >= self._dial_at:
            if not self._failures:
                self.last_error = "no answer yet"
            self.phase = Phase.DIALLING
            self._since = self._unanswered_since = now
            self._answer_seconds = t.HANDSHAKE_SECONDS
            self._commands.append(t.Dial())
        elif now - self._unanswered_since >= self._answer_seconds:
            if self.phase is Phase.DIALLING:
                self._hang_up("Hello was not answered", now)
            else:
                text = f"the server has been silent for {now - self._unanswered_since:.1f} s"
                self._hang_up(text, now, elsewhere=len(self._addresses) > 1)
        elif now >= self._heartbeat_at:
            assert self._welcome is not None, "heartbeats start after Welcome"
            self.session.post(encode(m.Heartbeat(now, self._latency_seconds)))
            self._heartbeat_at = now + self._welcome.heartbeat_seconds

    def _hang_up(self, reason: str, now: float, *, elsewhere: bool = False) -> None:
        if self.phase not in {Phase.DIALLING, Phase.CONNECTED}:
            return
        was_welcomed = self.phase is Phase.CONNECTED
        if was_welcomed:
            self._events.append(Broken(self.peer))
            if now - self._since >= STABLE_SECONDS:
                self._failures = 0
        self.last_error = reason
        self.phase = Phase.WAITING
        self._drop_link(was_welcomed or elsewhere)
        self.session.disconnect()
        self._failures += 1
        if elsewhere or not was_welcomed:
            self._addresses.append(self._addresses.pop(0))
        self._dial_at = self.wake_at = now + RECONNECT.seconds(self._failures, self._chance) / len(self._addresses)

    def _refused(self, refused: m.Refused) -> None:
        self._events.append(ConnectionRefused(refused))
        self._drop_link(was_welcomed=True)
        self._stop(refused.text)

    def _stop(self, reason: str) -> None:
        self.phase = Phase.STOPPED
        self.wake_at = math.inf
        self.session = Session(self.session.id, self.session.limits)  # drops queued messages
        self.last_error = reason
        self._link = None
        self._heartbeat_at = self._unanswered_since = math.inf

    def _drop_link(self, was_welcomed: bool) -> None:
        self._heartbeat_at = self._unanswered_since = math.inf
        if self._link is not None:
            self._commands.append(t.Cut(self._link, was_welcomed))
            self._link = None
