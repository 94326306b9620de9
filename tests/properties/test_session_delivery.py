"""Every message arrives once and in order, despite breaks, losses, duplicates, and delays."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scaler.protocol.session import Header, OutboxLimits, Session, UnreadableError

SESSION_ID = bytes(16)
Frames = tuple[bytes, bytes]


class Side:
    """A session, with its sent messages, the messages in transit, and the delivered ones."""

    def __init__(self) -> None:
        self.session = Session(SESSION_ID, OutboxLimits(10_000, 10_000_000))
        self.said: list[bytes] = []
        self.heard: list[bytes] = []
        self.inbox: deque[Frames] = deque()
        self.transport: deque[Frames] = deque()

    def say(self, body: bytes) -> None:
        self.said.append(body)
        self.session.keep(body)

    def transmit(self, to: deque[Frames], most: int) -> None:
        self.transport.extend((envelope.header, envelope.body) for envelope in self.session.take())
        for _ in range(min(most, len(self.transport))):
            to.append(self.transport.popleft())

    def hear(self, frames: Frames, now: float) -> None:
        if self.session.receive(frames[0], len(frames[1]), now) and Header.read(frames[0]).sequence:
            self.heard.append(frames[1])


class Delivery(RuleBasedStateMachine):
    """Two sides, with a connection that can break at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = (Side(), Side())
        self.connected = True
        self.said = 0
        self.now = 0.0

    @rule(side=st.integers(0, 1), count=st.integers(1, 5))
    def say(self, side: int, count: int) -> None:
        for _ in range(count):
            self.said += 1
            self.sides[side].say(b"%d" % self.said)

    @precondition(lambda self: self.connected)
    @rule(side=st.integers(0, 1), most=st.integers(1, 10))
    def transmit(self, side: int, most: int) -> None:
        self.sides[side].transmit(self.sides[1 - side].inbox, most)

    @precondition(lambda self: self.connected)
    @rule(side=st.integers(0, 1), most=st.integers(1, 10))
    def deliver(self, side: int, most: int) -> None:
        self.now += 0.01
        self._deliver(self.sides[side], most)

    @precondition(lambda self: self.connected)
    @rule(side=st.integers(0, 1))
    def acknowledge(self, side: int) -> None:
        sender = self.sides[side]
        sender.session.post(b"")
        sender.transmit(self.sides[1 - side].inbox, 1)

    @precondition(lambda self: self.connected)
    @rule(side=st.integers(0, 1), lost=st.integers(0, 30))
    def lose_one_in_the_middle(self, side: int, lost: int) -> None:
        inbox = self.sides[side].inbox
        if lost < len(inbox):
            del inbox[lost]

    @precondition(lambda self: self.connected)
    @rule(side=st.integers(0, 1), at=st.integers(0, 30))
    def double_one(self, side: int, at: int) -> None:
        inbox = self.sides[side].inbox
        if at < len(inbox):
            inbox.insert(at, inbox[at])

    @precondition(lambda self: self.connected)
    @rule(arrive=st.tuples(st.integers(0, 20), st.integers(0, 20)))
    def break_connection(self, arrive: tuple[int, int]) -> None:
        for side, most in zip(self.sides, arrive, strict=True):
            self._deliver(side, most)
        self._disconnect()

    @precondition(lambda self: not self.connected)
    @rule()
    def reconnect(self) -> None:
        first, second = (side.session for side in self.sides)
        assert first.can_resume(second.received)
        assert second.can_resume(first.received)
        first.resume(second.received)
        second.resume(first.received)
        self.connected = True

    @invariant()
    def what_was_heard_is_the_beginning_of_what_was_said(self) -> None:
        for speaker, listener in (self.sides, self.sides[::-1]):
            assert listener.heard == speaker.said[: len(listener.heard)]

    def teardown(self) -> None:
        """Check that everything has arrived, is acknowledged, and is not retained, once the connection is good."""
        self._disconnect()
        self.reconnect()
        for _ in range(2):
            for side, other in (self.sides, self.sides[::-1]):
                side.session.post(b"")
                side.transmit(other.inbox, 100_000)
            for side in self.sides:
                self._deliver(side, 100_000)
        for speaker, listener in (self.sides, self.sides[::-1]):
            assert listener.heard == speaker.said
            assert speaker.session.outbox_messages == 0
            assert speaker.session.outbox_bytes == 0

    def _deliver(self, side: Side, most: int) -> None:
        for _ in range(min(most, len(side.inbox))):
            try:
                side.hear(side.inbox.popleft(), self.now)
            except UnreadableError:
                self._disconnect()
                return

    def _disconnect(self) -> None:
        self.connected = False
        for side in self.sides:
            side.session.disconnect()
            side.inbox.clear()
            side.transport.clear()


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(stateful_step_count=40)
