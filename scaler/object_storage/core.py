"""The rules of the object storage: events of peers in, commands out. No socket, no clock, no copy of any bytes.

Laws (see `check`, and `objects`): an id is whole or waited for, never both; uploads, waiting gets and bodies on their
way belong to peers with a session; every put, link, get and stat of a peer is answered, unless the peer is gone.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import assert_never

from scaler.ids import owner_of
from scaler.net.connection import Broken, Closed, ListenerEvent, Opened, Received, Resumed
from scaler.object_storage.layout import MAX_PIECES_PER_MESSAGE
from scaler.object_storage.objects import Answer, ObjectTable
from scaler.object_storage.state import Command, Expire, Peer, ReceivedMemory, Send, Sending, WaitingGet
from scaler.object_storage.waiting import WaitingGets
from scaler.protocol.messages import (
    ForgetObjects,
    ForgetOwner,
    GetObject,
    LinkObject,
    Message,
    PutObject,
    Role,
    StatStorage,
    StorageReply,
    StorageResult,
    StorageStatus,
)

MAX_GETS_PER_PEER = 20_000
"""Gets of one peer that wait for their object or for their turn to be sent."""
MAX_UNACKNOWLEDGED_BYTES_PER_PEER = 128 * 1024 * 1024
"""Bytes on their way to one reader; its other gets wait. A slow reader pins no more of forgotten objects."""


class StorageCore:
    """The state of one storage.

    limit_bytes: memory for all objects. max_object_bytes: the largest one; -1 is no limit, for both. lease_seconds: how
    long a silent peer keeps its session. tick_seconds: the shell steps at least this often; a longer pause was the
    storage's own stall, and is held against nobody.
    """

    def __init__(
        self, limit_bytes: int, max_object_bytes: int = -1, *, lease_seconds: float, tick_seconds: float
    ) -> None:
        self.ignored = 0
        """How many ids peers wanted to be forgotten that are not theirs."""
        self._limit_bytes = limit_bytes
        self._lease_seconds = lease_seconds
        self._tick_seconds = tick_seconds
        self._table = ObjectTable(limit_bytes, max_object_bytes)
        self._waiting = WaitingGets()
        self._peers: OrderedDict[bytes, Peer] = OrderedDict()  # the longest silent one first
        self._senders: dict[bytes, Peer] = {}  # those with bodies to send
        self._last_step = -math.inf
        self._stalled_seconds = 0.0
        self._commands: list[Command] = []

    @property
    def used_bytes(self) -> int:
        """Memory that objects and uploads use."""
        return self._table.used_bytes

    @property
    def is_sending(self) -> bool:
        """True while bodies wait until their readers have acknowledged earlier ones: step again soon."""
        return bool(self._senders)

    def next_deadline(self) -> float | None:
        """Return the time at which `step` has something to do without any event; None when there is no such time."""
        deadline = self._waiting.next_deadline()
        if self._peers:
            tick = self._last_step + self._tick_seconds
            deadline = tick if deadline is None else min(deadline, tick)
        return deadline

    def step(
        self, events: Iterable[ListenerEvent], now: float, outbox_bytes: Callable[[bytes], int] = lambda _peer: 0
    ) -> list[Command]:
        """Take in what has happened and return what is to be done, in this order.

        outbox_bytes tells how much a peer has not acknowledged yet, before the commands of this step.
        """
        if self._peers:
            self._stalled_seconds += max(0.0, now - self._last_step - 2 * self._tick_seconds)
        self._last_step = now
        clock = now - self._stalled_seconds
        for event in events:
            match event:
                case Opened(name, hello):
                    self._drop_peer(name)
                    self._peers[name] = Peer(hello.role, clock)
                case Received(name):
                    peer = self._heard(name, clock)
                    if peer is not None:
                        self._received(peer, event, now)
                case Resumed(name) | Broken(name):
                    self._heard(name, clock)
                case Closed(name):
                    self._drop_peer(name)
                case _:
                    assert_never(event)
        for get in self._waiting.pop_expired(now):
            self._answer_get(get, StorageResult.MISSING, "it was not put before the deadline")
        self._expire_peers(clock)
        self._send_bodies(outbox_bytes)
        commands, self._commands = self._commands, []
        return commands

    def _received(self, peer: Peer, event: Received, now: float) -> None:
        name = event.peer
        match event.message:
            case PutObject(request=request, id=object_id) as put:
                memory = event.memory if isinstance(event, ReceivedMemory) else None
                if put.shared and memory is None:
                    self._say(name, request, (StorageResult.UNSHARED, "the descriptor of its memory is not there"))
                else:
                    self._say(name, request, self._table.put(name, put, event.attachments, memory))
                    self._serve_waiting(object_id)
            case GetObject() as get:
                self._get(name, peer, get, now)
            case LinkObject(request, object_id, target):
                self._say(name, request, self._table.link(name, object_id, target))
                self._serve_waiting(object_id)
            case ForgetObjects() | ForgetOwner() as forget:
                self._forget(name, peer.role, forget)
            case StatStorage(request):
                used, waiting = self._table.used_bytes, len(self._waiting)
                status = StorageStatus(request, len(self._table), used, self._limit_bytes, waiting)
                self._commands.append(Send(name, status))
            case _:
                pass  # heartbeats and the like say that the peer is alive, and that was noted

    def _get(self, name: bytes, peer: Peer, message: GetObject, now: float) -> None:
        body = self._table.body(message.id)
        if len(peer.waiting) + len(peer.sending) >= MAX_GETS_PER_PEER:
            answer = StorageResult.FULL, f"a peer has at most {MAX_GETS_PER_PEER} gets at a time"
        elif body is not None:
            self._send_later(name, peer, Sending(message.request, body, message.shared))
            return
        elif self._table.is_forgotten(message.id):
            answer = StorageResult.MISSING, "it was forgotten"
        elif 0 < message.deadline_seconds < math.inf:
            get = WaitingGet(name, message.request, message.id, now + message.deadline_seconds, message.shared)
            peer.waiting[get] = None
            self._waiting.add(get)
            return
        else:
            answer = StorageResult.MISSING, "there is no such object"
        self._say(name, message.request, answer)

    def _forget(self, name: bytes, role: Role, message: ForgetObjects | ForgetOwner) -> None:
        if isinstance(message, ForgetObjects):
            for object_id in message.ids:
                if self._may_forget(name, role, object_id):
                    self._table.forget(object_id)
                    self._miss_waiting(object_id)
                else:
                    self.ignored += 1
        elif role is Role.SCHEDULER:
            # The ids themselves are not refused from now on: an owner that comes back puts its objects again.
            for object_id in self._table.owned_by(message.owner):
                self._table.drop(object_id)
            for object_id in self._waiting.owned_by(message.owner):
                self._miss_waiting(object_id)
        else:
            self.ignored += 1

    def _may_forget(self, name: bytes, role: Role, object_id: bytes) -> bool:
        # Workers put what belongs to clients: they may take back what they put themselves.
        return (
            role is Role.SCHEDULER
            or (role is Role.CLIENT and owner_of(object_id) == name)
            or (role is Role.WORKER and self._table.is_from(object_id, name))
        )

    # -- peers ----------------------------------------------------------------------------------------------------

    def _heard(self, name: bytes, clock: float) -> Peer | None:
        peer = self._peers.get(name)
        if peer is not None:
            peer.heard = clock
            self._peers.move_to_end(name)
        return peer

    def _expire_peers(self, clock: float) -> None:
        while self._peers:
            name, peer = next(iter(self._peers.items()))
            silent_seconds = clock - peer.heard
            if silent_seconds < self._lease_seconds:
                return
            self._drop_peer(name)
            self._commands.append(Expire(name, f"nothing was heard for {silent_seconds:.0f} s"))

    def _drop_peer(self, name: bytes) -> None:
        peer = self._peers.pop(name, None)
        if peer is not None:
            self._table.drop_uploads_of(name)
            for get in peer.waiting:
                self._waiting.discard(get)
            self._senders.pop(name, None)

    # -- answers --------------------------------------------------------------------------------------------------

    def _say(self, name: bytes, request: int, answer: Answer) -> None:
        result, text = answer
        self._commands.append(Send(name, StorageReply(request, result, text)))

    def _answer_get(self, get: WaitingGet, result: StorageResult, text: str) -> None:
        del self._peers[get.peer].waiting[get]
        self._say(get.peer, get.request, (result, text))

    def _serve_waiting(self, object_id: bytes) -> None:
        body = self._table.body(object_id)
        if body is not None:
            for get in self._waiting.pop_all(object_id):
                peer = self._peers[get.peer]
                del peer.waiting[get]
                self._send_later(get.peer, peer, Sending(get.request, body, get.shared))

    def _miss_waiting(self, object_id: bytes) -> None:
        for get in self._waiting.pop_all(object_id):
            self._answer_get(get, StorageResult.MISSING, "it was forgotten")

    def _send_later(self, name: bytes, peer: Peer, sending: Sending) -> None:
        peer.sending.append(sending)
        self._senders[name] = peer

    def _send_bodies(self, outbox_bytes: Callable[[bytes], int]) -> None:
        for name, peer in list(self._senders.items()):
            room = MAX_UNACKNOWLEDGED_BYTES_PER_PEER - outbox_bytes(name)
            while peer.sending:
                sending = peer.sending[0]
                if not sending.body.names:
                    self._say(name, sending.request, (StorageResult.MISSING, "it was forgotten"))
                    peer.sending.popleft()
                    continue
                memory = sending.body.memory if sending.shared else None
                if memory is not None:
                    reply = StorageReply(sending.request, StorageResult.OK, "", sending.body.parts, shared=True)
                    self._commands.append(Send(name, reply, memory=memory))
                    peer.sending.popleft()
                    continue
                pieces = sending.next_pieces(MAX_PIECES_PER_MESSAGE)
                size = sum(piece.nbytes for piece in pieces)
                if size > room:
                    break
                room -= size
                self._commands.append(Send(name, _reply(sending), pieces))
                sending.next_piece += len(pieces)
                sending.offset += size
                if sending.offset == sending.body.size_bytes:
                    peer.sending.popleft()
            else:
                del self._senders[name]

    def check(self) -> None:
        """Assert the laws at the top of this module and of `objects`. O(everything): for tests."""
        self._table.check(self._peers)
        gets = [(name, get) for name, peer in self._peers.items() for get in peer.waiting]
        assert len(gets) == len(self._waiting)
        assert all(name == get.peer and self._table.body(get.id) is None for name, get in gets)
        assert all(get.id in self._waiting for _, get in gets)
        assert self._senders == {name: peer for name, peer in self._peers.items() if peer.sending}
        assert not self._commands


def _reply(sending: Sending) -> Message:
    parts = [] if sending.offset else sending.body.parts
    return StorageReply(sending.request, StorageResult.OK, "", parts, sending.offset)
