"""Peers of an object storage, their uploads and gets, and flow control of replies. Invariant: `BodySender` lists
exactly the peers with something to send. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from scaler.ids import cache_owner
from scaler.net.connection import Identity
from scaler.object_storage.body import MAX_FRAMES_PER_MESSAGE, Body, cut_out
from scaler.object_storage.commands import SendToPeer
from scaler.object_storage.messages import GetObject, StorageReply, StorageResult
from scaler.object_storage.shared_memory import GrowingMemory
from scaler.protocol.messages import MAX_ATTACHED_BYTES, Role

MAX_UNACKNOWLEDGED_BYTES_PER_PEER = 128 * 1024 * 1024
"""Maximum unacknowledged bytes per reader. Limits how much memory of released objects a slow reader keeps alive."""


@dataclass(slots=True, eq=False)
class UnfinishedUpload:
    """A peer's incomplete object. Its full size counts as used from the first frame on."""

    parts: list[int]
    size_bytes: int
    frames: list[memoryview] = field(default_factory=list)
    received_bytes: int = 0
    account: str | bytes = b""
    """Key of the putter; without keys, its peer id."""
    reserved_bytes: int = 0
    moved_at: float = 0.0
    """Time of the last progress, on the core's clock."""


@dataclass(slots=True, eq=False)
class WaitingGet:
    peer: StoragePeer
    message: GetObject


@dataclass(slots=True, eq=False)
class Sending:
    message: GetObject
    parts: list[int]
    body: Body | None
    """The body to send; None: chunks of an incomplete body."""
    size_bytes: int
    frames: list[memoryview] | None = None
    """Frames of the requested range; None: the whole body."""
    next_frame: int = 0
    sent_bytes: int = 0


@dataclass(slots=True, eq=False)
class StoragePeer:
    """A session. last_seen: on the core's clock. unacknowledged_bytes: upper bound."""

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
    """Owner of the cached results that a client with a key may put; empty for other peers."""

    account: str | bytes = field(init=False)
    """Account charged for uploads. Peers with the same key share one."""

    def __post_init__(self) -> None:
        self.has_key = self.identity.has_key
        self.account = self.identity.key if self.has_key else self.id
        self.cache_owner = cache_owner(self.identity.key) if self.has_key and self.role is Role.CLIENT else b""


@dataclass(slots=True, eq=False)
class UnfinishedObject:
    putters: dict[StoragePeer, None] = field(default_factory=dict)
    gets: dict[WaitingGet, None] = field(default_factory=dict)


class BodySender:
    def __init__(self, outbox_bytes: Callable[[bytes], int]) -> None:
        """outbox_bytes: returns a peer's sent but unacknowledged bytes."""
        self._outbox_bytes = outbox_bytes
        self._peers: dict[StoragePeer, None] = {}

    def __bool__(self) -> bool:
        return bool(self._peers)

    def peers(self) -> list[StoragePeer]:
        return list(self._peers)

    def bodies(self) -> set[Body]:
        return {each.body for peer in self._peers for each in peer.sending if each.body is not None}

    def add(self, peer: StoragePeer, message: GetObject, body: Body) -> list[SendToPeer]:
        """Queue an object, or a range of it. Returns an error reply for a range beyond the object."""
        sending = Sending(message, body.parts, body, body.size_bytes)
        if message.offset or message.size:
            sending.size_bytes = message.size or body.size_bytes - message.offset
            if sending.size_bytes < 0 or message.offset + sending.size_bytes > body.size_bytes:
                text = f"the object has size {body.size_bytes}, which does not include that range"
                return [SendToPeer(peer.id, StorageReply(message.request, StorageResult.INVALID, text))]
            sending.frames = cut_out(body.all_frames(), message.offset, sending.size_bytes)
        peer.sending.append(sending)
        self._peers[peer] = None
        return []

    def add_chunks(self, peer: StoragePeer, message: GetObject, partial: GrowingMemory) -> list[SendToPeer]:
        """Queue a range of an incomplete object for another store. Returns an error reply if chunks are missing."""
        frames = partial.frames(message.offset, message.size)
        if frames is None:
            reply = StorageReply(message.request, StorageResult.MISSING, "these chunks have not arrived yet")
            return [SendToPeer(peer.id, reply)]
        peer.sending.append(Sending(message, partial.parts, None, message.size, frames))
        self._peers[peer] = None
        return []

    def drop(self, peer: StoragePeer) -> None:
        self._peers.pop(peer, None)

    def send(self, peer: StoragePeer) -> list[SendToPeer]:
        """Return the commands to send now."""
        commands: list[SendToPeer] = []
        new_bytes = 0
        while peer.sending:
            sending = peer.sending[0]
            request, body = sending.message.request, sending.body
            if body is not None and body.is_dropped:
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
                peer.unacknowledged_bytes = self._outbox_bytes(peer.id) + new_bytes
                if peer.unacknowledged_bytes + size > MAX_UNACKNOWLEDGED_BYTES_PER_PEER:
                    return commands
            new_bytes += size
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


def _next_frames(sending: Sending) -> list[memoryview]:
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
