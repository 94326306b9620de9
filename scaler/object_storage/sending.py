"""Peers of an object storage, their uploads and gets, and objects on their way to them. Pure.

Readers get as much at a time as they take, in the order of their gets. Law: `BodySender` has the peers with something
to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from scaler.ids import cache_owner
from scaler.net.identity import Identity
from scaler.object_storage.body import Body, PartialObject
from scaler.object_storage.commands import MeasureOutbox, SendToPeer
from scaler.object_storage.layout import MAX_FRAMES_PER_MESSAGE, cut_out
from scaler.protocol.messages import MAX_ATTACHED_BYTES, GetObject, Role, StorageReply, StorageResult

MAX_UNACKNOWLEDGED_BYTES_PER_PEER = 128 * 1024 * 1024
"""Bytes on their way to one reader; its other gets wait. A slow reader pins no more of forgotten objects."""


@dataclass(slots=True, eq=False)
class StoredObject:
    """An id that stands for a whole object. putter: the peer that put or linked it."""

    body: Body
    putter: bytes


@dataclass(slots=True, eq=False)
class UnfinishedUpload:
    """An object of one peer that is not whole yet. All of its size counts as used from its first frame on."""

    parts: list[int]
    size_bytes: int
    frames: list[memoryview] = field(default_factory=list)
    received_bytes: int = 0
    account: str | bytes = b""
    """The key of the putter; without keys, the putter itself."""
    reserved_bytes: int = 0
    """Memory that is reserved for what is still to come."""
    moved_at: float = 0.0
    """When its putter last sent something of it, on the core's own clock."""


@dataclass(slots=True, eq=False)
class WaitingGet:
    peer: StoragePeer
    message: GetObject
    deadline: float
    answered: bool = False


@dataclass(slots=True, eq=False)
class Sending:
    message: GetObject
    parts: list[int]
    body: Body | None
    """None: some chunks of it, of a body that is not whole."""
    size_bytes: int
    """Of all that is wanted."""
    frames: list[memoryview] | None = None
    """Those of the range that is wanted; None: all of the body."""
    next_frame: int = 0
    sent_bytes: int = 0


@dataclass(slots=True, eq=False)
class StoragePeer:
    """A session. last_seen: on the core's clock. unacknowledged_bytes: upper limit of bytes on their way."""

    id: bytes
    role: Role
    identity: Identity
    last_seen: float
    uploads: dict[bytes, UnfinishedUpload] = field(default_factory=dict)
    waiting: dict[WaitingGet, None] = field(default_factory=dict)
    sending: deque[Sending] = field(default_factory=deque)
    unacknowledged_bytes: int = 0
    is_connected: bool = True
    has_key: bool = field(init=False)
    cache_owner: bytes = field(init=False)
    """Owns the cached results that it may put; empty for peers without a key, and for others than clients."""

    account: str | bytes = field(init=False)
    """For whom uploads reserve memory: peers with one key are one user."""

    def __post_init__(self) -> None:
        self.has_key = self.identity.has_key
        self.account = self.identity.key if self.has_key else self.id
        self.cache_owner = cache_owner(self.identity.key) if self.has_key and self.role is Role.CLIENT else b""


@dataclass(slots=True, eq=False)
class UnfinishedObject:
    """An id that is not whole: the peers that put it, and the gets that wait for it in the order of their arrival."""

    putters: dict[StoragePeer, None] = field(default_factory=dict)
    gets: dict[WaitingGet, None] = field(default_factory=dict)


class BodySender:
    """What readers have asked for and have not been sent."""

    def __init__(self) -> None:
        self._peers: dict[StoragePeer, None] = {}

    def __bool__(self) -> bool:
        return bool(self._peers)

    def peers(self) -> list[StoragePeer]:
        return list(self._peers)

    def bodies(self) -> set[Body]:
        """Return the bodies that are sent or will be."""
        return {each.body for peer in self._peers for each in peer.sending if each.body is not None}

    def add(self, peer: StoragePeer, message: GetObject, body: Body) -> StorageReply | None:
        """Send an object, or a range of it, as soon as the peer takes it. Returns the answer when there is none."""
        sending = Sending(message, body.parts, body, body.size_bytes)
        if message.offset or message.size:
            sending.size_bytes = message.size or body.size_bytes - message.offset
            if sending.size_bytes < 0 or message.offset + sending.size_bytes > body.size_bytes:
                text = f"the object has a size of {body.size_bytes}, and not such a range"
                return StorageReply(message.request, StorageResult.INVALID, text)
            sending.frames = cut_out(body.all_frames(), message.offset, sending.size_bytes)
        peer.sending.append(sending)
        self._peers[peer] = None
        return None

    def add_chunks(self, peer: StoragePeer, message: GetObject, partial: PartialObject) -> StorageReply | None:
        """Send a range of an object that is not whole, to another store. Returns the answer when it is not there."""
        frames = partial.frames(message.offset, message.size)
        if frames is None:
            return StorageReply(message.request, StorageResult.MISSING, "these chunks have not come yet")
        peer.sending.append(Sending(message, partial.parts, None, message.size, frames))
        self._peers[peer] = None
        return None

    def drop(self, peer: StoragePeer) -> None:
        """Send nothing more to a peer that has gone."""
        self._peers.pop(peer, None)

    def send(self, peer: StoragePeer, *, is_measured: bool) -> list[SendToPeer | MeasureOutbox]:
        """Return what a peer is sent now. is_measured: what it has not acknowledged is known."""
        commands: list[SendToPeer | MeasureOutbox] = []
        while peer.sending:
            sending = peer.sending[0]
            request, body = sending.message.request, sending.body
            if body is not None and not body.names:
                reply = StorageReply(request, StorageResult.MISSING, "it was forgotten")
                commands.append(SendToPeer(peer.id, reply))
                peer.sending.popleft()
                continue
            if sending.message.shared and body is not None and body.memory is not None and sending.frames is None:
                reply = StorageReply(request, StorageResult.OK, "", body.parts, shared=True)
                commands.append(SendToPeer(peer.id, reply, memory=body.memory))
                peer.sending.popleft()
                continue
            frames = _next_frames(sending)
            size = sum(frame.nbytes for frame in frames)
            if peer.unacknowledged_bytes + size > MAX_UNACKNOWLEDGED_BYTES_PER_PEER:
                return commands if is_measured else [*commands, MeasureOutbox(peer.id)]
            peer.unacknowledged_bytes += size
            parts = [] if sending.sent_bytes else sending.parts
            reply = StorageReply(request, StorageResult.OK, "", parts, sending.message.offset + sending.sent_bytes)
            commands.append(SendToPeer(peer.id, reply, frames))
            sending.next_frame += len(frames)
            sending.sent_bytes += size
            if sending.sent_bytes == sending.size_bytes:
                peer.sending.popleft()
        del self._peers[peer]
        return commands

    def check(self, peers: Collection[StoragePeer]) -> None:
        """Assert the law on top. For tests."""
        assert self._peers.keys() == {peer for peer in peers if peer.sending}


def _next_frames(sending: Sending) -> list[memoryview]:
    """Return the frames of the next message of a body: as many as fit into one."""
    taken: list[memoryview] = []
    size = 0
    frames = sending.frames
    if frames is None:
        assert sending.body is not None, "chunks have frames"
        frames = sending.body.all_frames()
    for frame in frames[sending.next_frame : sending.next_frame + MAX_FRAMES_PER_MESSAGE]:
        if taken and size + frame.nbytes > MAX_ATTACHED_BYTES:
            break
        taken.append(frame)
        size += frame.nbytes
    return taken
