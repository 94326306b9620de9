"""A storage core whose invariants are checked after every step, and methods for the actions of peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from scaler.net.connection import LOCAL, Broken, Closed, Identity, Opened, Received, Resumed
from scaler.object_storage.commands import ExpirePeer, SendToPeer, StorageInput
from scaler.object_storage.core import LONGEST_POLL_SECONDS, StorageCore
from scaler.object_storage.messages import PutObject, StorageReply
from scaler.object_storage.spilling import BodiesMoved, SpillBodies, StorageLimits
from scaler.protocol.messages import Hello, Message, Role
from scaler.testing.storage_invariants import check_storage

CLIENT = b"client-A"
READER = b"reader-B"
WORKER = b"worker-C"
SCHEDULER = b"schedulr"


def hello(role: Role) -> Hello:
    return Hello(role, False, 1, "", "", "", "host", 1)


class Story:
    """Drives a core step by step. `now`: the time. `outboxes`: unacknowledged bytes of peers."""

    def __init__(
        self,
        limit_bytes: int = 1000,
        max_object_bytes: int = -1,
        *,
        spill_limit_bytes: int = 0,
        put_wait_seconds: float = 0.0,
        cache_limit_bytes: int = 100,
        is_durable: bool = False,
    ) -> None:
        self.outboxes: Counter[bytes] = Counter()
        self.core = StorageCore(
            StorageLimits(limit_bytes, max_object_bytes, cache_limit_bytes, spill_limit_bytes),
            outbox_bytes=self.outboxes.__getitem__,
            lease_seconds=60.0,
            tick_seconds=2.0,
            put_wait_seconds=put_wait_seconds,
            is_durable=is_durable,
        )
        self.writes: list[SpillBodies] = []
        """Unfinished ones."""
        self.now = 100.0
        self.expired: list[bytes] = []
        roles = {CLIENT: Role.CLIENT, READER: Role.CLIENT, WORKER: Role.WORKER, SCHEDULER: Role.SCHEDULER}
        self.step(*(Opened(peer, hello(role)) for peer, role in roles.items()))

    def step(self, *events: StorageInput) -> list[SendToPeer]:
        sent: list[SendToPeer] = []
        for command in self.core.step(events, self.now):
            match command:
                case SendToPeer(peer, _, attachments):
                    sent.append(command)
                    self.outboxes[peer] += sum(frame.nbytes for frame in attachments)
                case ExpirePeer(peer):
                    self.expired.append(peer)
                case SpillBodies():
                    self.writes.append(command)
        check_storage(self.core)
        return sent

    def writes_end(self, failure: str = "") -> list[SendToPeer]:
        """Complete the oldest write to disk, which replaces the frames by equal ones."""
        write = self.writes.pop(0)
        moved = [[memoryview(bytes(frame)) for frame in frames] for frames in write.frames]
        return self.step(BodiesMoved(write.bodies, [] if failure else moved, failure))

    def acknowledges(self, peer: bytes, left_bytes: int = 0) -> None:
        """Let a peer acknowledge all but this much of the sent bytes."""
        self.outboxes[peer] = left_bytes

    def says(self, peer: bytes, message: Message, attachments: Sequence[bytes] = ()) -> list[SendToPeer]:
        return self.step(Received(peer, message, [memoryview(frame) for frame in attachments]))

    def puts(self, peer: bytes, object_id: bytes, *parts: bytes, request: int = 1) -> list[SendToPeer]:
        return self.says(peer, PutObject(request, object_id, [len(part) for part in parts], 0), parts)

    @property
    def is_sending(self) -> bool:
        return (
            self.core.wake_at <= self.now + LONGEST_POLL_SECONDS and self.core.wake_at != self.core.exchange.report_at
        )

    def wait(self, seconds: float, alive: Sequence[bytes] = (CLIENT, READER, WORKER, SCHEDULER)) -> list[SendToPeer]:
        """Let time pass in steps like the shell, with heartbeats of these peers."""
        sent: list[SendToPeer] = []
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 2.0, end)
            sent += self.step(*(Resumed(peer) for peer in alive))
        return sent

    def breaks(self, peer: bytes) -> list[SendToPeer]:
        return self.step(Broken(peer))

    def leaves(self, peer: bytes) -> list[SendToPeer]:
        return self.step(Closed(peer, "bye"))

    def opens(self, peer: bytes, role: Role = Role.CLIENT, identity: Identity = LOCAL) -> list[SendToPeer]:
        return self.step(Opened(peer, hello(role), identity))


def replies(sent: Sequence[SendToPeer]) -> list[tuple[bytes, int, str]]:
    """Return peer, request, and result of every reply."""
    return [
        (send.peer, send.message.request, str(send.message.result))
        for send in sent
        if isinstance(send.message, StorageReply)
    ]


def contents(sent: Sequence[SendToPeer]) -> list[tuple[bytes, int, bytes]]:
    """Return peer, request, and bytes of every reply with bytes."""
    return [
        (send.peer, send.message.request, b"".join(send.attachments))
        for send in sent
        if isinstance(send.message, StorageReply) and send.attachments
    ]


def messages(sent: Sequence[SendToPeer]) -> list[Any]:
    """Return the messages, to inspect their fields."""
    return [send.message for send in sent]
