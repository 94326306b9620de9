"""Answers questions from clients and monitors between the scheduler's other work.

Round robin over keys, then over the peers of a key, for a few milliseconds per iteration of the loop, so that no peer
can delay another. Queued questions are limited. Questions from a peer with a full outbox wait.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice

from scaler.ids import ID_BYTES
from scaler.monitor.messages import ClusterRead, ReadCluster
from scaler.monitor.reports.events import Events
from scaler.monitor.reports.status import Sees, ServerStatus, every_key, status
from scaler.net.connection import Identity, Received
from scaler.net.listener import Listener
from scaler.protocol.messages import Inquiry, Message, ReadTable, Reply, Role, TableRead, Unanswered
from scaler.scheduler.core.commands import Perform
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.server import SchedulerServer
from scaler.scheduler.tables import rows_document

ANSWERING_SECONDS = 0.002
"""Time for answers per iteration of the loop; the last answer may exceed it."""
MAX_WAITING = 100
MAX_WAITING_OF_KEY = 1_000
MAX_QUESTION_BYTES = 64 * 1024
MAX_UNTAKEN_BYTES = 4 * 1024 * 1024
"""Bytes in a peer's outbox, such as results for a client, above which its answers wait."""
UNTAKEN_SECONDS = 0.02
BUSY = "too many unanswered questions from this {}: retry later"


@dataclass(frozen=True, slots=True)
class Asker:
    """A peer that asks questions. client: identity that limits answers. is_here: the listener knows the peer."""

    client: ClientRecord
    listener: Listener
    is_here: Callable[[], bool]

    @property
    def is_full(self) -> bool:
        return self.is_here() and self.listener.outbox_bytes(self.client.id) > MAX_UNTAKEN_BYTES

    def answer(self, question: Inquiry, answer: Reply) -> None:
        answer.number = question.number
        if self.is_here():
            self.listener.send(self.client.id, answer)

    def refuse(self, question: Inquiry, text: str) -> None:
        """Reject a question. Sends nothing if the peer is not reading answers."""
        if not self.is_full:
            self.answer(question, Unanswered(text))


def sees_of(identity: Identity) -> Sees:
    """Return a predicate for the keys that a peer may see: `every_key` for monitors and admins."""
    return every_key if identity.is_admin or Role.MONITOR in identity.roles else identity.may_see


class Answers:
    def __init__(self, frame: SchedulerServer, events: Events, server_status: Callable[[bool], ServerStatus]) -> None:
        """server_status: called with True for reports to monitors, else False."""
        self._frame = frame
        self._events = events
        self._server_status = server_status
        self._waiting: dict[str, dict[bytes, deque[tuple[Asker, Inquiry]]]] = {}
        """Waiting queries by key and peer, next in turn first."""
        self._is_due = False

    def add(self, asker: Asker, question: Inquiry) -> None:
        peers = self._waiting.get(asker.client.identity.key, {})
        if _size_of(question) > MAX_QUESTION_BYTES:
            asker.refuse(question, f"the question is larger than {MAX_QUESTION_BYTES:,} B")
        elif len(peers.get(asker.client.id, ())) >= MAX_WAITING:
            asker.refuse(question, BUSY.format("peer"))
        elif sum(map(len, peers.values())) >= MAX_WAITING_OF_KEY:
            asker.refuse(question, BUSY.format("key"))
        else:
            self._waiting[asker.client.identity.key] = peers
            peers.setdefault(asker.client.id, deque()).append((asker, question))
            if not self._is_due:
                self._is_due = True
                self._frame.loop.call_soon(self._work)

    def _work(self) -> None:
        ends_at = self._frame.loop.time() + ANSWERING_SECONDS
        full = 0
        while self._waiting and full < sum(map(len, self._waiting.values())):
            key = next(iter(self._waiting))
            peers = self._waiting.pop(key)
            peer = next(iter(peers))
            queue = peers.pop(peer)
            asker, question = queue.popleft()
            if asker.is_full:
                full += 1
                queue.appendleft((asker, question))
            if queue:
                peers[peer] = queue
            if peers:
                self._waiting[key] = peers
            if asker.is_here() and not asker.is_full:
                full = 0
                self._answer(asker, question)
            if self._frame.loop.time() >= ends_at:
                break
        self._is_due = bool(self._waiting)
        if self._is_due and full:
            self._frame.loop.call_later(UNTAKEN_SECONDS, self._work)
        elif self._is_due:
            self._frame.loop.call_soon(self._work)

    def _answer_later(self, asker: Asker, question: Inquiry, answer: Reply) -> None:
        if asker.is_full:
            self._frame.loop.call_later(UNTAKEN_SECONDS, partial(self._answer_later, asker, question, answer))
        else:
            asker.answer(question, answer)

    def _answer(self, asker: Asker, question: Inquiry) -> None:
        state, client = self._frame.state, asker.client
        sees = sees_of(client.identity)
        match question:
            case ReadCluster():
                self._events.unix_at_zero = state.rooms.unix_at_zero
                past = self._events.past(state, time.time(), sees)
                present = status(state, self._server_status(False), sees)
                asker.answer(question, ClusterRead(present, past.document()))
            case ReadTable(name, search, most) if name in self._events.notes:
                notes = reversed(self._events.notes[name]) if sees is every_key else ()
                rows = (row for row in notes if any(search in str(value) for value in row[1:]))
                asker.answer(question, TableRead(rows_document(islice(rows, most))))
            case _ if type(question) in self._frame.rooms.answerers:
                found = self._frame.rooms.answerers[type(question)](question, client, state)
                if isinstance(found, Perform):
                    self._frame.performers.answer(found, partial(self._answer_later, asker, question))
                else:
                    asker.answer(question, found)
            case _ if type(question) in self._frame.rooms.takers:
                self._frame.step([Received(client.id, question)])
            case _:
                asker.answer(question, Unanswered(f"this scheduler lacks the extension {question.extension!r}"))


def _size_of(question: Message) -> int:
    values = (getattr(question, name) for name in question.__match_args__)
    sized = (value for value in values if isinstance(value, str | bytes | list))
    return sum(len(value) * (ID_BYTES if isinstance(value, list) else 1) for value in sized)
