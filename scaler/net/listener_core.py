"""The rules of a listener: which peers to admit, which sessions to resume, and which links to cut. Pure.

`step` takes link events and returns commands; `send` queues for the next step. Invariants: a link carries at most one
session, and a session uses at most one link; a peer id has at most one session; session ids are unique, so a recorded
envelope is void in any other session; the first envelope sent on a link is a Welcome or Refused; nothing follows a
Refused or Goodbye.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from scaler.errors import ProtocolError
from scaler.grammar import counted
from scaler.net import transport as t
from scaler.net.connection import (
    LOCAL,
    Broken,
    Closed,
    Identity,
    LinkFigures,
    ListenerEvent,
    Opened,
    Received,
    Resumed,
    TryAgain,
)
from scaler.net.transport import EnvelopeReceived
from scaler.net.versions import other_protocol
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode
from scaler.protocol.fields import MAX_DISPLAY_CHARACTERS
from scaler.protocol.messages import Attachments, Descriptors, Message
from scaler.protocol.session import Envelope, Header, OutboxFullError, OutboxLimits, Session, UnreadableError

Admission = Callable[[bytes, m.Hello, Identity], m.Welcome | m.Refused | TryAgain]
"""Answers a Hello, given the peer id, the Hello, and the connection's identity. hello.resume: the session belongs to
this peer. The core sets Welcome.resumed."""
MAX_PEERS = 65_536
MAX_UNIDENTIFIED = 4096
"""Maximum connections without a session per listener. Above the limit, each new connection replaces the oldest."""


@dataclass(slots=True, eq=False)
class _Peer:
    """A session and its link (None while disconnected). greeted_as: session id in its Hello, cleared once the peer uses
    this session's id. From then on, a Hello with an earlier id is a replay."""

    id: bytes
    session: Session
    role: m.Role
    identity: Identity
    allowed: Collection[type[Message]]
    link: _Link | None
    greeted_as: bytes
    unreadable: t.Unreadable = field(default_factory=t.Unreadable)
    latency_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Link:
    """is_closing: whether a Refused or Goodbye was sent, so that all further input is ignored."""

    transport: t.Transport
    origin: str
    peer: _Peer | None = None
    is_closing: bool = False
    malformed_in_a_row: int = 0


class ListenerCore:
    def __init__(
        self,
        server: m.Server,
        limits: OutboxLimits,
        admit: Admission,
        first_session: int = 0,
        max_unidentified: int = MAX_UNIDENTIFIED,
        compression: str = "",
    ) -> None:
        self._admit = admit
        self._compression = compression
        self._max_unidentified = max_unidentified
        self.wake_at = math.inf
        self._server = server
        self._limits = limits
        self._numbers = count(first_session)
        self._links: dict[t.Transport, _Link] = {}
        self._peers: dict[bytes, _Peer] = {}
        self._commands: list[t.Command] = []
        self._events: list[ListenerEvent] = []
        self._unsent: dict[bytes, _Peer] = {}
        self._full: dict[bytes, str] = {}  # peers with a full outbox, and the error text
        self._unacknowledged: dict[bytes, _Peer] = {}  # peers that await an acknowledgement, oldest first
        # Links without a session and closing links, with the time to cut them, earliest first.
        self._identifying: OrderedDict[_Link, float] = OrderedDict()
        self._closing: OrderedDict[_Link, float] = OrderedDict()

    def outbox_bytes(self, peer_id: bytes) -> int:
        peer = self._peers.get(peer_id)
        return peer.session.outbox_bytes if peer is not None else 0

    def figures(self, peer_id: bytes) -> LinkFigures:
        peer = self._peers.get(peer_id)
        if peer is None:
            return LinkFigures()
        session = peer.session
        return LinkFigures(session.sent_bytes, session.received_bytes, session.outbox_bytes, peer.latency_seconds)

    def send(self, peer: bytes, message: Message, attachments: Attachments = (), descriptors: Descriptors = ()) -> None:
        """Queue a message; see `Listener.send`. If the outbox is full, the next step closes the peer's session."""
        found = self._peers.get(peer)
        if found is None:
            return
        self._unsent[peer] = found
        try:
            found.session.send(message, attachments, descriptors, found.link is not None)
        except OutboxFullError as error:
            self._full[peer] = str(error)

    def step(self, inputs: Iterable[t.Input], now: float) -> list[t.Command]:
        links = self._links
        while self._full:
            peer_id, text = self._full.popitem()
            self._end(self._peers[peer_id], m.Goodbye(text), now)
            self._events.append(Closed(peer_id, text, is_orderly=False))
        for item in inputs:
            if isinstance(item, EnvelopeReceived):
                link = links.get(item.link)
                if link is not None and not link.is_closing:
                    self._receive(link, item, now)
            else:
                self._note(item, now)
        if now >= self.wake_at:
            self._expire(now)
        commands, self._commands = self._commands, []
        if self._events:
            events, self._events = self._events, []
            commands.append(t.Deliver(events))
            return commands
        if self._unsent:
            unsent, self._unsent = self._unsent, {}
            for peer in unsent.values():
                link = peer.link
                if link is not None and not link.transport.is_blocked:
                    envelopes = peer.session.take(now)
                    if envelopes:
                        self._unacknowledged.pop(peer.id, None)
                        commands.append(t.Transmit(link.transport, envelopes))
        self.wake_at = math.inf
        if self._identifying or self._closing:
            self.wake_at = min(next(iter(links.values())) for links in (self._identifying, self._closing) if links)
        if self._unacknowledged:
            self.wake_at = min(self.wake_at, next(iter(self._unacknowledged.values())).session.acknowledge_at)
        return commands

    def _note(self, item: t.Input, now: float) -> None:
        match item:
            case t.LinkOpened():
                self._opened(item, now)
            case t.LinkLost(transport, reason, refused_after) if transport in self._links:
                self._lost(self._links[transport], reason if refused_after else "")
            case t.Unblocked(transport) if transport in self._links:
                peer = self._links[transport].peer
                if peer is not None:
                    self._unsent[peer.id] = peer
            case t.MalformedReceived(transport, reason, is_damaged) if transport in self._links:
                link = self._links[transport]
                if is_damaged:
                    self._give_up(link)
                elif not link.is_closing:
                    self._malformed(link, reason, now, is_lost=True)
            case t.Report():
                self._commands.append(item)
            case t.AccessEnded(reasons):
                self._end_access(reasons, now)
            case t.SessionEndRequested(peer_id, reason) if peer_id in self._peers:
                self._end(self._peers[peer_id], reason, now)
            case t.CloseRequested(reason):
                for peer in list(self._peers.values()):
                    if peer.link is not None:
                        self._commands.append(t.Transmit(peer.link.transport, peer.session.take()))
                    self._end(peer, m.Goodbye(reason), now)
            case _:
                pass  # from a cut link or an ended session

    def _opened(self, opened: t.LinkOpened, now: float) -> None:
        link = self._links[opened.link] = _Link(opened.link, opened.origin)
        self._identifying[link] = now + t.IDENTIFY_SECONDS
        if opened.is_scarce or len(self._identifying) + len(self._closing) > self._max_unidentified:
            self._give_up(next(iter(self._closing or self._identifying)))
        if opened.is_scarce and opened.link in self._links:
            # To free descriptors, cut only connections that took one of the last descriptors.
            self._give_up(link)

    def _end_access(self, reasons: Mapping[Identity, str], now: float) -> None:
        for peer in [peer for peer in self._peers.values() if peer.identity in reasons]:
            refused = m.Refused(m.RefusalReason.CREDENTIAL, reasons[peer.identity])
            self._commands.append(t.Report(f"{peer.role} {refused.text}", True, peer.identity.key))
            self._end(peer, refused, now)
            self._events.append(Closed(peer.id, refused.text, is_orderly=False))

    def _give_up(self, link: _Link, refusal: str = "") -> None:
        self._lost(link, refusal)
        self._commands.append(t.Cut(link.transport))

    def _forget(self, link: _Link) -> None:
        self._links.pop(link.transport, None)
        self._keep(link)

    def _receive(self, link: _Link, envelope: EnvelopeReceived, now: float) -> None:
        peer = link.peer
        try:
            if peer is None:
                self._greet(link, envelope, now)
                return
            session = peer.session
            message: Message | None
            if peer.greeted_as and Header.read(envelope.header).session == peer.greeted_as:
                message = decode(envelope.body)
                if not isinstance(message, m.Goodbye):  # the only message allowed before the peer has read the Welcome
                    raise ProtocolError(f"{type(message).__name__} from an earlier session, or before the Welcome")
            else:
                message = session.accept(envelope.header, envelope.body, envelope.attachments, now)
                peer.greeted_as = b""
            if session.acknowledge_at <= now:
                self._unsent[peer.id] = peer
            if session.acknowledge_at < math.inf and peer.id not in self._unacknowledged:
                self._unacknowledged[peer.id] = peer
            if message is None:
                return
            kind = type(message)
            if kind not in peer.allowed or kind is m.Hello:
                raise ProtocolError(f"{peer.role}s may not send {kind.__name__} here")
        except ProtocolError as error:
            self._malformed(link, str(error), now, is_lost=isinstance(error, UnreadableError))
            return
        link.malformed_in_a_row = 0
        if isinstance(message, m.Acknowledge):
            return
        if isinstance(message, m.Goodbye):
            self._end(peer, None, now)
            self._events.append(Closed(peer.id, message.text))
            return
        if isinstance(message, m.Heartbeat | m.WorkerHeartbeat):
            peer.latency_seconds = message.latency_seconds
            session.post(encode(m.HeartbeatEcho(message.sent_at, now)))
            self._unsent[peer.id] = peer
        self._events.append(Received(peer.id, message, envelope.attachments, envelope.descriptors))

    def _malformed(self, link: _Link, reason: str, now: float, *, is_lost: bool) -> None:
        """Drop a malformed message, or refuse a peer without a session. is_lost: cut the session's link, so that the
        peer resends the message. Repeated malformed messages end the session."""
        peer = link.peer
        if peer is None:
            refused = m.Refused(m.RefusalReason.MALFORMED, f"no Hello: {reason}"[:MAX_DISPLAY_CHARACTERS])
            self._refuse(link, bytes(16), refused, now)
            return
        link.malformed_in_a_row += 1
        is_final = link.malformed_in_a_row >= t.MAX_MALFORMED_IN_A_ROW
        if peer.unreadable.is_final(peer.session) if is_lost else is_final:
            text = f"{t.MAX_MALFORMED_IN_A_ROW} malformed messages in a row, the last one: {reason}"
            text = text[:MAX_DISPLAY_CHARACTERS]
            self._end(peer, m.Refused(m.RefusalReason.MALFORMED, text), now)
            self._events.append(Closed(peer.id, text, is_orderly=False))
        elif is_lost:
            self._give_up(link)

    def _lost(self, link: _Link, refusal: str = "") -> None:
        self._forget(link)
        peer = link.peer
        if peer is not None and peer.link is link:
            peer.link = None
            self._unacknowledged.pop(peer.id, None)
            peer.session.disconnect()
            self._events.append(Broken(peer.id))
        elif peer is None and not link.is_closing:
            text = refusal or f"a connection from {link.origin} closed before it sent a message"
            self._commands.append(t.Report(text, bool(refusal), "", link.origin))

    def _greet(self, link: _Link, envelope: EnvelopeReceived, now: float) -> None:
        header = Header.read(envelope.header)
        if header.version != m.PROTOCOL_VERSION:
            self._refuse(link, header.session, _version_refusal(header.version, envelope.body), now)
            return
        hello = _hello_of(envelope, header)
        peer_id = header.peer
        known = self._peers.get(peer_id)
        identity = link.transport.identity
        is_its_own = known is not None and header.session in (known.session.id, known.greeted_as)
        if known is not None and is_its_own and identity is LOCAL:
            # The server's own user has more rights than any key, so the session keeps the key's identity.
            identity = known.identity
        elif known is not None and is_its_own and known.identity is LOCAL:
            # The peer lost its local connection and fell back briefly. The next attempt will be local.
            self._give_up(link, f"{identity.key} does not resume a session of {LOCAL.key}")
            return
        refused = _refusal_of(hello, identity, self._server)
        if refused is None and known is not None:
            # Any peer with the key may continue a durable session.
            is_durable = isinstance(hello.details, m.ClientDetails) and hello.details.session
            if known.identity != identity or not (is_its_own or is_durable):
                text = f"{hello.hostname[:64]} (pid {hello.pid}) claims peer id {peer_id.hex()}"
                refused = m.Refused(m.RefusalReason.DUPLICATE, f"{text}, which belongs to another session")
        elif refused is None and len(self._peers) >= MAX_PEERS:
            refused = m.Refused(m.RefusalReason.LIMIT, f"the server already has MAX_PEERS = {MAX_PEERS} peers")
        answer = refused or self._admit(peer_id, replace(hello, resume=is_its_own), identity)
        if isinstance(answer, TryAgain):
            self._give_up(link, answer.text)
        elif isinstance(answer, m.Refused):
            self._refuse(link, header.session, answer, now)
        else:
            self._welcome(link, header, hello, identity, answer)

    def _welcome(self, link: _Link, header: Header, hello: m.Hello, identity: Identity, welcome: m.Welcome) -> None:
        peer_id = header.peer
        peer = self._peers.get(peer_id)
        if peer is not None and peer.link is not None:
            self._give_up(peer.link)
        resumed = (
            peer is not None
            and hello.resume
            and peer.session.id == header.session
            and peer.role is hello.role
            and peer.session.can_resume(header.acknowledged)
        )
        if peer is not None and resumed:
            peer.session.resume(header.acknowledged)
            peer.link = link
            self._events.append(Resumed(peer_id))
        else:
            # The Welcome has a new session id, which envelopes of other sessions do not match.
            number = (next(self._numbers) % 2**64).to_bytes(8, "big")
            session, allowed = Session(peer_id + number, self._limits), m.MAY_SEND[self._server][hello.role]
            peer = self._peers[peer_id] = _Peer(peer_id, session, hello.role, identity, allowed, link, header.session)
            self._events.append(Opened(peer_id, hello, identity))
        link.peer = peer
        self._keep(link)
        compression = self._compression if hello.compression == self._compression else ""
        self._commands.append(t.StartSession(link.transport, compresses=bool(compression)))
        peer.session.post(encode(replace(welcome, resumed=resumed, compression=compression)))
        self._unsent[peer_id] = peer

    def _end(self, peer: _Peer, reason: m.Refused | m.Goodbye | None, now: float) -> None:
        """Drop a session. With a reason, its link has a grace period to close. Without a reason, the link is cut."""
        del self._peers[peer.id]
        self._full.pop(peer.id, None)
        link, peer.link = peer.link, None
        if link is not None and reason is None:
            self._forget(link)
            self._commands.append(t.Cut(link.transport))
        elif link is not None and reason is not None:
            self._close(link, Header(m.PROTOCOL_VERSION, 0, peer.session.id, 0, peer.session.received), reason, now)

    def _refuse(self, link: _Link, session_id: bytes, refused: m.Refused, now: float) -> None:
        key = link.transport.identity.key
        self._commands.append(t.Report(refused.text[:MAX_DISPLAY_CHARACTERS], True, key, link.origin))
        self._close(link, Header(m.PROTOCOL_VERSION, 0, session_id, 0, 0), refused, now)

    def _close(self, link: _Link, header: Header, reason: m.Refused | m.Goodbye, now: float) -> None:
        link.is_closing = True
        self._commands.append(t.Transmit(link.transport, [Envelope(header.pack(), encode(reason))]))
        self._keep(link)
        self._closing[link] = now + t.CLOSE_SECONDS

    def _keep(self, link: _Link) -> None:
        self._identifying.pop(link, None)
        self._closing.pop(link, None)

    def _expire(self, now: float) -> None:
        while self._unacknowledged:
            peer_id, peer = next(iter(self._unacknowledged.items()))
            if now < peer.session.acknowledge_at < math.inf:
                break
            del self._unacknowledged[peer_id]
            self._unsent[peer_id] = peer
        for links in (self._identifying, self._closing):
            while links and next(iter(links.values())) <= now:
                self._give_up(next(iter(links)))


def _hello_of(envelope: EnvelopeReceived, header: Header) -> m.Hello:
    if len(envelope.body) > m.MAX_HELLO_BYTES or envelope.attachments:
        attachments = counted(len(envelope.attachments), "attachment")
        raise ProtocolError(f"a Hello cannot have size {len(envelope.body)} and {attachments}")
    hello = decode(envelope.body)
    if not isinstance(hello, m.Hello) or header.flags or header.sequence:
        raise ProtocolError(f"a connection starts with Hello, not {type(hello).__name__}")
    return hello


def _version_refusal(version: int, body: bytes) -> m.Refused:
    """Return the refusal for a peer with another protocol version. body: its Hello, which may be unreadable."""
    try:
        hello = decode(body) if len(body) <= m.MAX_HELLO_BYTES else None
    except ProtocolError:
        hello = None
    return other_protocol(version, hello if isinstance(hello, m.Hello) else None)


def _refusal_of(hello: m.Hello, identity: Identity, server: m.Server) -> m.Refused | None:
    if not identity.roles:
        return m.Refused(m.RefusalReason.CREDENTIAL, "this peer's key is no longer accepted")
    if hello.role not in identity.roles:
        is_worker = m.Role.WORKER in identity.roles  # a worker's key is also its store's key
        roles = identity.roles - ({m.Role.STORE} if is_worker else set())
        text = f"the key {identity.key} is for the role {' or '.join(sorted(roles))}, not {hello.role}"
        return m.Refused(m.RefusalReason.CREDENTIAL, text)
    if not m.MAY_SEND[server][hello.role]:
        text = f"{hello.role}s do not connect to the {server.replace('_', ' ')}, which listens at this address"
        return m.Refused(m.RefusalReason.ROLE, text)
    problem = m.wrong_details(server, hello)
    return m.Refused(m.RefusalReason.ROLE, problem) if problem else None
