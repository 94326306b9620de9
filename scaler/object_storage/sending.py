"""Objects on their way to readers: as much at a time as a reader takes, in the order of its gets. Pure.

Law: the peers here are those with something to send.
"""

from __future__ import annotations

from collections.abc import Collection

from scaler.object_storage.body import Body, PartialObject
from scaler.object_storage.commands import MeasureOutbox, SendToPeer
from scaler.object_storage.layout import MAX_FRAMES_PER_MESSAGE, cut_out
from scaler.object_storage.peers import Sending, StoragePeer
from scaler.protocol.messages import MAX_ATTACHED_BYTES, GetObject, StorageReply, StorageResult

MAX_UNACKNOWLEDGED_BYTES_PER_PEER = 128 * 1024 * 1024
"""Bytes on their way to one reader; its other gets wait. A slow reader pins no more of forgotten objects."""


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
