"""The rules of a listener: who is let in, whose session goes on, what is dropped, who is cut off.

No socket and no clock: frames, breaks and times go in; events for the component, envelopes for the transport and
connections to cut come out. A *link* is one connection, under the name that the transport gave it.

Laws: a link carries at most one session, and a session flies over at most one link; a peer id has at most one session;
a link's first envelope from here is a Welcome or a Refused, and its last one a Refused or a Goodbye, if any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from scaler.errors import LimitError, ProtocolError
from scaler.net.connection import Admit, Broken, Buffer, Closed, ListenerEvent, Opened, OutboxLimits, Received, Resumed
from scaler.net.envelopes import (
    ACKNOWLEDGE_BODY,
    FAREWELL_SECONDS,
    MAX_MALFORMED_IN_A_ROW,
    UNSEQUENCED_TYPES,
    Counters,
    Taken,
    Transmit,
    check_header,
    size_of,
)
from scaler.net.versions import python_version
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
    WorkerHeartbeat,
)
from scaler.protocol.roles import MAY_SEND, Server
from scaler.protocol.session import Envelope, Header, Receipt, Session, check_attachments, peer_of, read_header

MAX_PEERS = 65_536
"""Most sessions of one listener; beyond it, peers are refused."""


class _Peer:
    """A session and the link that it flies over; None while it is broken."""

    __slots__ = ("allowed", "confirmed", "id", "late", "link", "malformed", "role", "session")

    def __init__(
        self, session: Session, role: Role, allowed: frozenset[type[Message]], link: bytes, confirmed: bool
    ) -> None:
        self.id = peer_of(session.id)
        self.session = session
        self.role = role
        self.allowed = allowed
        self.link: bytes | None = link
        self.late: bytes | None = None
        """The link that broke last: what it brought before it broke may still come in."""
        self.confirmed = confirmed
        """True when a Hello that resumes can mean this session only, and not one before it that is forgotten here."""
        self.malformed = 0


class _Link:
    __slots__ = ("condemned", "id", "malformed_in_a_row", "peer")

    def __init__(self, link: bytes) -> None:
        self.id = link
        self.peer: _Peer | None = None
        self.condemned = False
        """True when it is to go: whatever it still brings is ignored."""
        self.malformed_in_a_row = 0


class ListenerCore:
    """All sessions of one listener."""

    def __init__(self, server: Server, admit: Admit, limits: OutboxLimits) -> None:
        self.counters = Counters()
        self._server = server
        self._admit = admit
        self._limits = limits
        self._links: dict[bytes, _Link] = {}
        self._peers: dict[bytes, _Peer] = {}
        self._events: list[ListenerEvent] = []
        self._dirty: dict[bytes, _Peer] = {}
        self._owing: dict[bytes, _Peer] = {}
        self._farewells: deque[tuple[bytes, bytes, bytes]] = deque()
        self._leaving: deque[tuple[float, bytes]] = deque()
        self._cuts: list[bytes] = []
        self._refusals: list[str] = []

    # -- what the transport brings -------------------------------------------------------------------------------

    def receive(
        self, link_id: bytes, header: bytes, body: bytes, attachments: Sequence[memoryview], now: float
    ) -> None:
        """Take in one envelope."""
        link = self._links.get(link_id)
        if link is None:
            link = self._links[link_id] = _Link(link_id)
        elif link.condemned:
            return
        try:
            if link.peer is None:
                self._greet(link, header, body, now)
            else:
                self._take(link, link.peer, header, body, attachments, now)
        except ProtocolError as error:
            self.malformed(link_id, str(error), now)

    def malformed(self, link_id: bytes, why: str, now: float) -> None:
        """Count an envelope that could not be read; too many in a row end the link, and the session on it."""
        link = self._links.setdefault(link_id, _Link(link_id))
        if link.condemned:
            return
        self.counters.malformed += 1
        link.malformed_in_a_row += 1
        if link.peer is not None:
            link.peer.malformed += 1
        if link.malformed_in_a_row < MAX_MALFORMED_IN_A_ROW:
            return
        text = f"{MAX_MALFORMED_IN_A_ROW} malformed messages in a row, the last one: {why}"
        reason = Refused(RefusalReason.MALFORMED, text)
        if link.peer is None:
            self._refuse(link, bytes(16), reason, now)
        else:
            self._end(link.peer, reason, now)
            self._events.append(Closed(link.peer.id, text))

    def broken(self, link_id: bytes) -> None:
        """Note that a link is gone. What it brought before may still be received."""
        link = self._links.get(link_id)
        if link is None:
            return
        peer = link.peer
        if peer is None or link.condemned or peer.link != link_id:
            del self._links[link_id]
            if peer is not None and peer.late == link_id:
                peer.late = None
            return
        peer.link = None
        peer.late = link_id
        peer.session.disconnect()
        self._events.append(Broken(peer.id))

    # -- what the component says ---------------------------------------------------------------------------------

    def send(self, peer_id: bytes, message: Message, attachments: Sequence[Buffer], now: float) -> None:
        """Queue a message; see `Listener.send`."""
        peer = self._peers.get(peer_id)
        if peer is None:
            self.counters.undeliverable += 1
            return
        body = encode(message)
        if type(message) in UNSEQUENCED_TYPES:
            if attachments:
                raise ValueError(f"a {type(message).__name__} carries no attachments")
            if peer.link is not None:
                peer.session.post(body)
        else:
            if attachments:
                check_attachments(attachments)
            try:
                peer.session.keep(body, attachments)
            except LimitError as error:
                self._end(peer, Goodbye(str(error)), now)
                self._events.append(Closed(peer_id, str(error)))
                return
        self._dirty[peer_id] = peer

    def forget(self, peer_id: bytes, reason: Message | None, now: float) -> None:
        """End a session; see `Listener.forget`."""
        peer = self._peers.get(peer_id)
        if peer is not None:
            self._end(peer, reason, now)

    def end_all(self, now: float) -> None:
        """End all sessions with a Goodbye, which follows what has been flushed."""
        for peer in list(self._peers.values()):
            self._end(peer, Goodbye("the server ends"), now)

    # -- what the transport asks for -----------------------------------------------------------------------------

    def take_events(self) -> list[ListenerEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_refusals(self) -> list[str]:
        """Return why peers were refused since the last call, for people."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def take_cuts(self) -> list[bytes]:
        """Return the links that must be cut now."""
        cuts, self._cuts = self._cuts, []
        return cuts

    def flush(self, transmit: Transmit, now: float) -> bool:
        """Give the transport all that it takes. Returns True when a link was full, so that more waits behind it."""
        while self._farewells:
            transmit(*self._farewells.popleft(), ())
        dirty, self._dirty = self._dirty, {}
        for peer in dirty.values():
            if peer.link is not None:
                self._flush_peer(peer, peer.link, transmit, now)
        return bool(self._dirty)

    def tick(self, now: float) -> None:
        """Do what time alone calls for: acknowledge, and cut those who were told to go."""
        while self._owing:
            peer_id, peer = next(iter(self._owing.items()))
            if peer.session.owes and peer.session.acknowledge_at > now:
                break
            del self._owing[peer_id]
            if peer.session.owes and peer.link is not None:
                self._dirty[peer_id] = peer
        while self._leaving and self._leaving[0][0] <= now:
            self._cuts.append(self._leaving.popleft()[1])

    def next_at(self) -> float | None:
        """Return when `tick` has something to do, or None."""
        times = [self._leaving[0][0]] if self._leaving else []
        for peer in self._owing.values():
            times.append(peer.session.acknowledge_at)
            break
        return min(times, default=None)

    # -- facts ---------------------------------------------------------------------------------------------------

    def knows(self, link_id: bytes) -> bool:
        """Tell whether anything came over this link before, and it is not forgotten yet."""
        return link_id in self._links

    def has_session(self, link_id: bytes) -> bool:
        """Tell whether a link carries a session."""
        link = self._links.get(link_id)
        return link is not None and link.peer is not None and not link.condemned

    def is_stranger(self, link_id: bytes) -> bool:
        """Tell whether nothing that came over a link was understood, and nobody has told it so."""
        link = self._links.get(link_id)
        return link is None or (link.peer is None and not link.condemned)

    def outbox_bytes(self, peer_id: bytes) -> int:
        """Return the bytes that are kept for a peer; 0 without a session."""
        peer = self._peers.get(peer_id)
        return peer.session.outbox_bytes if peer is not None else 0

    def malformed_of(self, peer_id: bytes) -> int:
        """Return how many messages of this peer's session were dropped as malformed."""
        peer = self._peers.get(peer_id)
        return peer.malformed if peer is not None else 0

    # -- rules ---------------------------------------------------------------------------------------------------

    def _take(
        self, link: _Link, peer: _Peer, frame: bytes, body: bytes, attachments: Sequence[memoryview], now: float
    ) -> None:
        header = read_header(frame)
        session = peer.session
        check_header(header, session.id)
        receipt = session.receive(header, size_of(body, attachments), now)
        peer.confirmed = True
        if session.owes:
            if session.acknowledge_due(now):
                self._dirty[peer.id] = peer
            elif peer.id not in self._owing:
                self._owing[peer.id] = peer
        if receipt is Receipt.DUPLICATE:
            self.counters.duplicates += 1
        elif receipt is Receipt.GAP:
            self.counters.gaps += 1
            self._drop_link(peer)
            self._events.append(Broken(peer.id))
        else:
            self._deliver(link, peer, decode(body), attachments, now)

    def _deliver(
        self, link: _Link, peer: _Peer, message: Message, attachments: Sequence[memoryview], now: float
    ) -> None:
        kind = type(message)
        if kind not in peer.allowed or kind is Hello:
            raise ProtocolError(f"a {peer.role} may not send {kind.__name__} here")
        link.malformed_in_a_row = 0
        if isinstance(message, Acknowledge):
            return
        if isinstance(message, Goodbye):
            self._end(peer, None, now)
            self._events.append(Closed(peer.id, message.text))
            return
        if isinstance(message, Heartbeat | WorkerHeartbeat) and peer.link is not None:
            peer.session.post(encode(HeartbeatEcho(message.sent_at)))
            self._dirty[peer.id] = peer
        self._events.append(Received(peer.id, message, attachments))

    def _greet(self, link: _Link, frame: bytes, body: bytes, now: float) -> None:
        header = read_header(frame)
        if header.version != PROTOCOL_VERSION:
            text = (
                f"the peer {peer_of(header.session).hex()} speaks protocol {header.version}, this server speaks "
                f"protocol {PROTOCOL_VERSION} (Python {python_version()}): install the same version of scaler"
            )
            self._refuse(link, header.session, Refused(RefusalReason.VERSION, text), now)
            return
        hello = decode(body)
        if not isinstance(hello, Hello) or header.flags or header.sequence:
            raise ProtocolError(f"a connection begins with a Hello, not with a {type(hello).__name__}")
        answer = self._judge(header, hello)
        if isinstance(answer, Refused):
            self._refuse(link, header.session, answer, now)
            return
        peer_id = peer_of(header.session)
        known = self._peers.get(peer_id)
        if known is not None and known.link is not None:
            self._drop_link(known)
            self._events.append(Broken(peer_id))
        resumed = (
            known is not None
            and hello.resume
            and known.confirmed
            and known.role is hello.role
            and known.session.can_resume(header.acknowledged)
        )
        self._seat(link, header, hello, known if resumed else None)
        peer = self._peers[peer_id]
        peer.session.post(encode(replace(answer, resumed=resumed)))
        self._dirty[peer_id] = peer

    def _judge(self, header: Header, hello: Hello) -> Welcome | Refused:
        peer_id = peer_of(header.session)
        known = self._peers.get(peer_id)
        if not MAY_SEND[self._server][hello.role]:
            text = f"a {hello.role} has no business with the {self._server.replace('_', ' ')}, whose address this is"
            return Refused(RefusalReason.ROLE, text)
        if known is not None and known.session.id != header.session:
            text = (
                f"{hello.hostname[:64]} (pid {hello.pid}) claims the peer id {peer_id.hex()}, which another session has"
            )
            return Refused(RefusalReason.DUPLICATE, text)
        if known is None and len(self._peers) >= MAX_PEERS:
            return Refused(RefusalReason.LIMIT, f"the server has MAX_PEERS = {MAX_PEERS} peers already")
        return self._admit(peer_id, hello)

    def _seat(self, link: _Link, header: Header, hello: Hello, known: _Peer | None) -> None:
        peer_id = peer_of(header.session)
        if known is not None:
            known.session.resume(header.acknowledged)
            known.link = link.id
            self._forget_late(known)
            link.peer = known
            self._events.append(Resumed(peer_id))
            return
        old = self._peers.get(peer_id)
        if old is not None:
            self._forget_late(old)
            self._owing.pop(peer_id, None)
        session = Session(header.session, max_messages=self._limits.messages, max_bytes=self._limits.size_bytes)
        # A peer that resumes does not know yet that it must count anew; that it does shows in the first it says.
        link.peer = _Peer(session, hello.role, MAY_SEND[self._server][hello.role], link.id, not hello.resume)
        self._peers[peer_id] = link.peer
        self._events.append(Opened(peer_id, hello))

    def _forget_late(self, peer: _Peer) -> None:
        if peer.late is not None:
            self._links.pop(peer.late, None)
            peer.late = None

    def _drop_link(self, peer: _Peer) -> None:
        """Cut the link of a session that goes on."""
        assert peer.link is not None, "only a session in flight has a link to drop"
        self._links[peer.link].condemned = True
        self._cuts.append(peer.link)
        peer.link = None
        peer.session.disconnect()

    def _end(self, peer: _Peer, reason: Message | None, now: float) -> None:
        """Forget a session. With a reason, its link has a moment to end by itself; without one, it is cut."""
        del self._peers[peer.id]
        self._dirty.pop(peer.id, None)
        self._owing.pop(peer.id, None)
        self._forget_late(peer)
        if peer.link is None:
            return
        link = self._links[peer.link]
        link.condemned = True
        if reason is None:
            self._cuts.append(link.id)
        else:
            header = Header(PROTOCOL_VERSION, 0, peer.session.id, 0, peer.session.received)
            self._farewells.append((link.id, header.pack(), encode(reason)))
            self._leaving.append((now + FAREWELL_SECONDS, link.id))

    def _refuse(self, link: _Link, session_id: bytes, refused: Refused, now: float) -> None:
        """Say no on a link that carries no session."""
        self.counters.refused += 1
        self._refusals.append(refused.text)
        link.condemned = True
        header = Header(PROTOCOL_VERSION, 0, session_id, 0, 0)
        self._farewells.append((link.id, header.pack(), encode(refused)))
        self._leaving.append((now + FAREWELL_SECONDS, link.id))

    def _flush_peer(self, peer: _Peer, link_id: bytes, transmit: Transmit, now: float) -> None:
        session = peer.session
        sent = False
        while (envelope := session.next_envelope()) is not None:
            taken = transmit(link_id, session.header(envelope), envelope.body, envelope.attachments)
            if taken is Taken.SENT:
                session.sent(envelope)
                sent = True
            elif taken is Taken.BLOCKED:
                self._dirty[peer.id] = peer
                break
            else:
                self.broken(link_id)
                return
        else:
            if session.acknowledge_due(now):
                acknowledge = Envelope(0, ACKNOWLEDGE_BODY, (), 0)
                if transmit(link_id, session.header(acknowledge), ACKNOWLEDGE_BODY, ()) is Taken.SENT:
                    session.acknowledge_sent()
                    sent = True
        if sent:
            self._owing.pop(peer.id, None)
