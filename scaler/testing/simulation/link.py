"""A simulated connection between a peer and the scheduler: two real sessions, and a wire that breaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from scaler.protocol.messages import UNSEQUENCED, Message
from scaler.protocol.session import Session


@dataclass(eq=False, slots=True)
class End:
    """One end of a link: its session, and its message handler."""

    session: Session
    deliver: Callable[[Message], None]


class Link:
    """Two ends and the messages in flight. A broken link delivers nothing. Each break starts a new epoch."""

    def __init__(
        self,
        peer: End,
        server: End,
        later: Callable[[float, Callable[[], None]], None],
        random: Random,
        mean_delay: float,
        repeats: float,
    ) -> None:
        self.peer = peer
        self.server = server
        self.up = True
        self.epoch = 0
        self.wire_clear_at = {id(peer): 0.0, id(server): 0.0}
        self._later = later
        self._random = random
        self._mean_delay = mean_delay
        self._repeats = repeats
        self._letters: dict[int, Message] = {}
        self._next_letter = 0

    def send(self, sender: End, message: Message, now: float) -> None:
        letter = self._next_letter
        self._next_letter += 1
        self._letters[letter] = message
        body = letter.to_bytes(8, "little")
        if type(message) in UNSEQUENCED:
            if not self.up:
                return
            sender.session.post(body)
        else:
            sender.session.keep(body)
        if self.up:
            self._flush(sender, now)

    def _flush(self, sender: End, now: float) -> None:
        receiver = self.server if sender is self.peer else self.peer
        for envelope in sender.session.take():
            copies = 2 if self._random.random() < self._repeats else 1
            for _ in range(copies):
                self._put_on_wire(receiver, envelope.header, envelope.body, now)

    def _put_on_wire(self, receiver: End, header: bytes, body: bytes, now: float) -> None:
        """Schedule the delivery in order: nothing arrives before earlier messages."""
        arrives = max(now + self._random.expovariate(1 / self._mean_delay), self.wire_clear_at[id(receiver)])
        self.wire_clear_at[id(receiver)] = arrives
        epoch = self.epoch

        def arrive() -> None:
            if self.up and self.epoch == epoch:
                self._receive(receiver, header, body, arrives)

        self._later(arrives, arrive)

    def _receive(self, receiver: End, header: bytes, body: bytes, now: float) -> None:
        if receiver.session.receive(header, len(body), now):
            receiver.deliver(self._letters[int.from_bytes(body, "little")])
        if receiver.session.acknowledge_at < math.inf and self.up:
            # A standalone acknowledgement: an envelope outside the sequence that is not delivered.
            sender = self.server if receiver is self.peer else self.peer
            receiver.session.post(b"")
            (acknowledgement,) = receiver.session.take()
            epoch = self.epoch
            at = now + self._mean_delay

            def acknowledge() -> None:
                if self.up and self.epoch == epoch:
                    sender.session.receive(acknowledgement.header, 0, at)

            self._later(at, acknowledge)

    def drop(self) -> None:
        """Break the link. Messages in flight are lost, and both ends retransmit unacknowledged messages."""
        self.up = False
        self.epoch += 1
        self.peer.session.disconnect()
        self.server.session.disconnect()

    def resume(self, now: float) -> None:
        """Reconnect both sessions. Each end drops messages that the other end has and retransmits the rest."""
        self.peer.session.resume(self.server.session.received)
        self.server.session.resume(self.peer.session.received)
        self.up = True
        self.wire_clear_at = {id(self.peer): now, id(self.server): now}
        self._flush(self.peer, now)
        self._flush(self.server, now)
