"""The rules of the object storage: what happened to peers in, commands out. No socket, no clock, no copy of any bytes.

Pure. Laws (see `check`, and `objects`): an id is whole or waited for, never both; uploads, waiting gets and bodies on
their way belong to peers with a session; every put, link, get and stat of a peer is answered, unless the peer is gone.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from scaler.ids import owner_of
from scaler.net.connection import Broken, Closed, ListenerEvent, Opened, Received, Resumed
from scaler.object_storage.layout import MAX_FRAMES_PER_MESSAGE
from scaler.object_storage.objects import Answer, Body, Memory, StorageTable, WaitingGet, WaitingGets
from scaler.protocol.messages import (
    MAX_CHUNK_BYTES,
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
"""Gets of one peer that wait for their object or until earlier ones are sent."""
MAX_UNACKNOWLEDGED_BYTES_PER_PEER = 128 * 1024 * 1024
"""Bytes on their way to one reader; its other gets wait. A slow reader pins no more of forgotten objects."""
SHORTEST_POLL_SECONDS = 0.002
LONGEST_POLL_SECONDS = 0.1
"""How often readers with unacknowledged bytes are measured: acknowledgements are no events."""


@dataclass(frozen=True, slots=True)
class ReceivedMemory(Received):
    """Input: a shared PutObject whose descriptor has come: memory has the very parts that the message names."""

    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class OutboxMeasured:
    """Input: how much a peer has not acknowledged."""

    peer: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SendToPeer:
    """Command: send this to a peer, with the descriptor of the memory."""

    peer: bytes
    message: Message
    attachments: Sequence[memoryview] = ()
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class MeasureOutbox:
    """Command: step again with an OutboxMeasured of this peer, for which bodies wait."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class ExpirePeer:
    """Command: end the session of a peer that has been silent for longer than its lease."""

    peer: bytes
    text: str


@dataclass(frozen=True, slots=True)
class ReportIgnored:
    """Command: log how many ids a peer wanted to be forgotten that are not its own."""

    peer: bytes
    count: int


StorageInput = ListenerEvent | OutboxMeasured
StorageCommand = SendToPeer | MeasureOutbox | ExpirePeer | ReportIgnored


@dataclass(slots=True, eq=False)
class _Sending:
    """An object on its way to one reader."""

    request: int
    body: Body
    shared: bool = False
    next_frame: int = 0
    offset: int = 0

    def next_frames(self) -> list[memoryview]:
        """Return the frames of the next message: as many as fit into one."""
        taken: list[memoryview] = []
        size = 0
        if self.body.memory is not None and not self.body.frames:
            self.body.frames = self.body.memory.frames()
        for frame in self.body.frames[self.next_frame : self.next_frame + MAX_FRAMES_PER_MESSAGE]:
            if taken and size + frame.nbytes > MAX_CHUNK_BYTES:
                break
            taken.append(frame)
            size += frame.nbytes
        return taken


@dataclass(slots=True, eq=False)
class _Peer:
    """A session. last_seen: when anything came from it, on the core's own clock.

    unacknowledged_bytes: at most this much is on its way; an acknowledgement shows at the next measurement.
    """

    role: Role
    last_seen: float
    waiting: dict[WaitingGet, None] = field(default_factory=dict)
    sending: deque[_Sending] = field(default_factory=deque)
    unacknowledged_bytes: int = 0


class StorageCore:
    """The state of one storage.

    limit_bytes: memory for all objects. max_object_bytes: the largest one; -1 is no limit, for both. lease_seconds: how
    long a silent peer keeps its session. tick_seconds: the shell steps at least this often; a longer pause was a stall
    of the storage itself, and does not count against leases.
    """

    def __init__(
        self, limit_bytes: int, max_object_bytes: int = -1, *, lease_seconds: float, tick_seconds: float
    ) -> None:
        self.wake_at = math.inf
        """When `step` has something to do without any input; inf: never."""
        self._limit_bytes = limit_bytes
        self._lease_seconds = lease_seconds
        self._tick_seconds = tick_seconds
        self._objects = StorageTable(limit_bytes, max_object_bytes)
        self._waiting = WaitingGets()
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()  # the longest silent one first
        self._senders: dict[bytes, _Peer] = {}  # those with bodies to send
        self._last_step = -math.inf
        self._stalled_seconds = 0.0
        self._poll_seconds = SHORTEST_POLL_SECONDS
        self._commands: list[StorageCommand] = []

    @property
    def used_bytes(self) -> int:
        """Memory that objects and uploads use."""
        return self._objects.used_bytes

    def step(self, inputs: Iterable[StorageInput], now: float) -> list[StorageCommand]:
        """Take in what has happened and return what to do, in this order."""
        if self._peers:
            self._stalled_seconds += max(0.0, now - self._last_step - 2 * self._tick_seconds)
        self._last_step = now
        clock = now - self._stalled_seconds
        measured: set[bytes] = set()
        for item in inputs:
            match item:
                case Received(name):
                    peer = self._seen(name, clock)
                    if peer is not None:
                        self._received(peer, item, now)
                case Opened(name, hello):
                    self._drop_peer(name)
                    self._peers[name] = _Peer(hello.role, clock)
                case Resumed(name) | Broken(name):
                    self._seen(name, clock)
                case Closed(name):
                    self._drop_peer(name)
                case OutboxMeasured(name, size_bytes):
                    measured.add(name)
                    if name in self._peers:
                        self._peers[name].unacknowledged_bytes = size_bytes
                case _:
                    assert_never(item)
        for get in self._waiting.pop_expired(now):
            self._answer_get(get, StorageResult.MISSING, "it was not put before the deadline")
        self._expire_peers(clock)
        self._send_bodies(measured)
        commands, self._commands = self._commands, []
        has_sent = any(isinstance(command, SendToPeer) for command in commands)
        self._poll_seconds = SHORTEST_POLL_SECONDS if has_sent else min(2 * self._poll_seconds, LONGEST_POLL_SECONDS)
        self.wake_at = self._next_at(now)
        return commands

    def _next_at(self, now: float) -> float:
        deadline = self._waiting.next_deadline()
        wake_at = math.inf if deadline is None else deadline
        if self._peers:
            wake_at = min(wake_at, now + self._tick_seconds)
        return min(wake_at, now + self._poll_seconds) if self._senders else wake_at

    def _received(self, peer: _Peer, event: Received, now: float) -> None:
        name = event.peer
        match event.message:
            case PutObject(request=request, id=object_id) as put:
                memory = event.memory if isinstance(event, ReceivedMemory) else None
                if put.shared and memory is None:
                    self._answer(name, request, (StorageResult.UNSHARED, "the descriptor of its memory is not there"))
                else:
                    self._answer(name, request, self._objects.put(name, put, event.attachments, memory))
                    self._serve_waiting(object_id)
            case GetObject() as get:
                self._get(name, peer, get, now)
            case LinkObject(request, object_id, target):
                self._answer(name, request, self._objects.link(name, object_id, target))
                self._serve_waiting(object_id)
            case ForgetObjects() | ForgetOwner() as forget:
                ignored = self._forget(name, peer.role, forget)
                if ignored:
                    self._commands.append(ReportIgnored(name, ignored))
            case StatStorage(request):
                used, waiting = self._objects.used_bytes, len(self._waiting)
                status = StorageStatus(request, len(self._objects), used, self._limit_bytes, waiting)
                self._commands.append(SendToPeer(name, status))
            case _:
                pass  # heartbeats and the like show that the peer is alive, and that was noted

    def _get(self, name: bytes, peer: _Peer, message: GetObject, now: float) -> None:
        body = self._objects.body(message.id)
        if len(peer.waiting) + len(peer.sending) >= MAX_GETS_PER_PEER:
            answer = StorageResult.FULL, f"a peer has at most {MAX_GETS_PER_PEER} gets at a time"
        elif body is not None:
            self._send_later(name, peer, _Sending(message.request, body, message.shared))
            return
        elif self._objects.is_forgotten(message.id):
            answer = StorageResult.MISSING, "it was forgotten"
        elif 0 < message.deadline_seconds < math.inf:
            get = WaitingGet(name, message.request, message.id, now + message.deadline_seconds, message.shared)
            peer.waiting[get] = None
            self._waiting.add(get)
            return
        else:
            answer = StorageResult.MISSING, "there is no such object"
        self._answer(name, message.request, answer)

    def _forget(self, name: bytes, role: Role, message: ForgetObjects | ForgetOwner) -> int:
        """Forget what this peer may; return how many ids were ignored."""
        ignored = 0
        if isinstance(message, ForgetObjects):
            for object_id in message.ids:
                if self._may_forget(name, role, object_id):
                    self._objects.forget(object_id)
                    self._miss_waiting(object_id)
                else:
                    ignored += 1
        elif role is Role.SCHEDULER:
            # The ids themselves are not refused from now on: an owner that comes back puts its objects again.
            for object_id in self._objects.owned_by(message.owner):
                self._objects.drop(object_id)
            for object_id in self._waiting.owned_by(message.owner):
                self._miss_waiting(object_id)
        else:
            ignored = 1
        return ignored

    def _may_forget(self, name: bytes, role: Role, object_id: bytes) -> bool:
        # Workers put objects that belong to clients: they may take back those that they put themselves.
        return (
            role is Role.SCHEDULER
            or (role is Role.CLIENT and owner_of(object_id) == name)
            or (role is Role.WORKER and self._objects.is_from(object_id, name))
        )

    def _seen(self, name: bytes, clock: float) -> _Peer | None:
        peer = self._peers.get(name)
        if peer is not None:
            peer.last_seen = clock
            self._peers.move_to_end(name)
        return peer

    def _expire_peers(self, clock: float) -> None:
        while self._peers:
            name, peer = next(iter(self._peers.items()))
            silent_seconds = clock - peer.last_seen
            if silent_seconds < self._lease_seconds:
                return
            self._drop_peer(name)
            self._commands.append(ExpirePeer(name, f"nothing came from it for {silent_seconds:.0f} s"))

    def _drop_peer(self, name: bytes) -> None:
        peer = self._peers.pop(name, None)
        if peer is not None:
            self._objects.drop_uploads_of(name)
            for get in peer.waiting:
                self._waiting.discard(get)
            self._senders.pop(name, None)

    def _answer(self, name: bytes, request: int, answer: Answer) -> None:
        result, text = answer
        self._commands.append(SendToPeer(name, StorageReply(request, result, text)))

    def _answer_get(self, get: WaitingGet, result: StorageResult, text: str) -> None:
        del self._peers[get.peer].waiting[get]
        self._answer(get.peer, get.request, (result, text))

    def _serve_waiting(self, object_id: bytes) -> None:
        body = self._objects.body(object_id)
        if body is not None:
            for get in self._waiting.pop_all(object_id):
                peer = self._peers[get.peer]
                del peer.waiting[get]
                self._send_later(get.peer, peer, _Sending(get.request, body, get.shared))

    def _miss_waiting(self, object_id: bytes) -> None:
        for get in self._waiting.pop_all(object_id):
            self._answer_get(get, StorageResult.MISSING, "it was forgotten")

    def _send_later(self, name: bytes, peer: _Peer, sending: _Sending) -> None:
        peer.sending.append(sending)
        self._senders[name] = peer

    def _send_bodies(self, measured: set[bytes]) -> None:
        for name, peer in list(self._senders.items()):
            while peer.sending:
                sending = peer.sending[0]
                body = sending.body
                if not body.names:
                    self._answer(name, sending.request, (StorageResult.MISSING, "it was forgotten"))
                    peer.sending.popleft()
                    continue
                if sending.shared and body.memory is not None:
                    reply = StorageReply(sending.request, StorageResult.OK, "", body.parts, shared=True)
                    self._commands.append(SendToPeer(name, reply, memory=body.memory))
                    peer.sending.popleft()
                    continue
                frames = sending.next_frames()
                size = sum(frame.nbytes for frame in frames)
                if peer.unacknowledged_bytes + size > MAX_UNACKNOWLEDGED_BYTES_PER_PEER:
                    if name not in measured:
                        self._commands.append(MeasureOutbox(name))
                    break
                peer.unacknowledged_bytes += size
                parts = [] if sending.offset else body.parts
                reply = StorageReply(sending.request, StorageResult.OK, "", parts, sending.offset)
                self._commands.append(SendToPeer(name, reply, frames))
                sending.next_frame += len(frames)
                sending.offset += size
                if sending.offset == body.size_bytes:
                    peer.sending.popleft()
            else:
                del self._senders[name]

    def check(self) -> None:
        """Assert the laws at the top of this module and of `objects`. O(everything): for tests."""
        self._objects.check(self._peers)
        gets = [(name, get) for name, peer in self._peers.items() for get in peer.waiting]
        assert len(gets) == len(self._waiting)
        assert all(name == get.peer and self._objects.body(get.id) is None for name, get in gets)
        assert all(get.id in self._waiting for _, get in gets)
        assert self._senders == {name: peer for name, peer in self._peers.items() if peer.sending}
        assert not self._commands
