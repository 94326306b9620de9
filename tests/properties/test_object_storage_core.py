"""The cores of the storage and its peers together, with broken links and lost sessions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scaler.ids import IdFactory, is_result, owner_of, result_id
from scaler.net.connection import LOCAL, Broken, Closed, Identity, Opened, Received, Resumed, Welcomed
from scaler.object_storage import body as layout
from scaler.object_storage import core as storage_core
from scaler.object_storage import objects, requests, sending
from scaler.object_storage.commands import ExpirePeer, ReceivedMemory, SendToPeer, StorageInput
from scaler.object_storage.core import StorageCore
from scaler.object_storage.messages import PutObject, StorageReply
from scaler.object_storage.requests import (
    CallEnded,
    GetCall,
    PutCall,
    Requests,
    RequestsInput,
    SendRequest,
    StorageCall,
)
from scaler.object_storage.spilling import BodiesMoved, SpillBodies, StorageLimits
from scaler.protocol import messages as m
from scaler.testing.storage_invariants import check_storage

LIMIT_BYTES = 300
SPILL_LIMIT_BYTES = 150
PUT_WAIT_SECONDS = 3.0
CHUNK_BYTES = 16
TIMEOUT_SECONDS = 10.0
SERVER = bytes(8)
SCHEDULER = b"schedulr"
PEERS = {
    b"client-A": (m.Role.CLIENT, Identity("alice")),
    b"client-a": (m.Role.CLIENT, Identity("alice")),
    b"client-B": (m.Role.CLIENT, Identity("bob")),
    b"admin--D": (m.Role.CLIENT, Identity("root", is_admin=True)),
    b"worker-C": (m.Role.WORKER, Identity("farm.units")),
    SCHEDULER: (m.Role.SCHEDULER, LOCAL),
}
OWNERS = [IdFactory(b"client-A"), IdFactory(b"client-B")]
IDS = [name for made in OWNERS for name in (made.object(), made.object(), result_id(made.task(), 1))]

peers = st.sampled_from(sorted(PEERS))
ids = st.sampled_from(IDS)
layouts = st.lists(st.integers(0, 40), max_size=5)


def may_put(peer: bytes, object_id: bytes) -> bool:
    role, _ = PEERS[peer]
    is_for_workers = role is m.Role.WORKER and is_result(object_id)
    return owner_of(object_id) == peer or role is m.Role.SCHEDULER or is_for_workers


def may_get(peer: bytes, object_id: bytes) -> bool:
    role, identity = PEERS[peer]
    owner = owner_of(object_id)
    return role is not m.Role.CLIENT or owner == peer or identity.may_see(PEERS[owner][1].key)


def content_of(object_id: bytes, size: int) -> bytes:
    """Return an object's bytes, which depend only on id and size."""
    return bytes((object_id[-1] * 7 + index * 3 + owner_of(object_id)[-1]) % 256 for index in range(size))


@dataclass(eq=False)
class Shared:
    """Shared memory, simulated with ordinary memory."""

    parts: Sequence[memoryview]

    def fileno(self) -> int:
        raise NotImplementedError

    def frames(self) -> list[memoryview]:
        return [frame for message in layout.cut(self.parts) for frame in message]


class StorageAndPeers(RuleBasedStateMachine):
    """Messages are tuples in two queues per peer. A break keeps them, as sessions resend. A new session loses them.

    Descriptors of shared memory may be lost in either direction, one at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            patch.object(layout, "MAX_ATTACHED_BYTES", CHUNK_BYTES),
            patch.object(objects, "MAX_ATTACHED_BYTES", CHUNK_BYTES),
            patch.object(storage_core, "MAX_ATTACHED_BYTES", CHUNK_BYTES),
            patch.object(sending, "MAX_ATTACHED_BYTES", CHUNK_BYTES),
            patch.object(layout, "JOIN_BELOW_BYTES", 4),
            patch.object(requests, "PUT_WINDOW_BYTES", 3 * CHUNK_BYTES),
            patch.object(requests, "MAX_ASKED", 3),
            patch.object(sending, "MAX_UNACKNOWLEDGED_BYTES_PER_PEER", 2 * CHUNK_BYTES),
        ]
        for each in self.patches:
            each.start()
        self.now = 0.0
        self.core = self.new_core()
        self.writes: list[SpillBodies] = []
        self.requests = {peer: Requests("memory", TIMEOUT_SECONDS, 0.0) for peer in PEERS}
        self.up: dict[bytes, deque[SendRequest]] = {peer: deque() for peer in PEERS}
        self.down: dict[bytes, deque[SendToPeer]] = {peer: deque() for peer in PEERS}
        self.connected = dict.fromkeys(PEERS, False)
        self.expired: set[bytes] = set()
        self.pending: dict[StorageCall, bytes | None] = {}

    def teardown(self) -> None:
        try:
            self.everything_ends_once_the_network_is_well()
        finally:
            for each in self.patches:
                each.stop()

    def new_core(self) -> StorageCore:
        return StorageCore(
            StorageLimits(LIMIT_BYTES, 120, spill_bytes=SPILL_LIMIT_BYTES),
            outbox_bytes=lambda peer: sum(each.nbytes for sent in self.down[peer] for each in sent.attachments),
            lease_seconds=60.0,
            tick_seconds=2.0,
            put_wait_seconds=PUT_WAIT_SECONDS,
        )

    @initialize()
    def connect_all(self) -> None:
        for peer in PEERS:
            self.forget_session(peer)

    @invariant()
    def laws_hold(self) -> None:
        check_storage(self.core)

    # -- actions of peers -----------------------------------------------------------------------------------------

    @rule(peer=peers, object_id=ids, sizes=layouts, is_shared=st.booleans())
    def put(self, peer: bytes, object_id: bytes, sizes: list[int], is_shared: bool) -> None:
        data = content_of(object_id, sum(sizes))
        if not may_put(peer, object_id):
            data = bytes(255 - each for each in data)  # a peer that may not put the object sends other contents
        parts: list[memoryview] = []
        start = 0
        for size in sizes:
            parts.append(memoryview(data)[start : start + size])
            start += size
        memory = Shared(parts) if is_shared and data else None
        self.begin(peer, PutCall(object_id, parts, memory))

    @rule(peer=peers, object_id=ids, sizes=layouts)
    def reserve(self, peer: bytes, object_id: bytes, sizes: list[int]) -> None:
        self.begin(peer, PutCall(object_id, [], sizes=sizes))

    @rule(peer=peers, object_id=ids)
    def get(self, peer: bytes, object_id: bytes) -> None:
        self.begin(peer, GetCall(object_id), object_id)

    @rule(object_ids=st.lists(ids, min_size=1, max_size=3))
    def forget(self, object_ids: list[bytes]) -> None:
        self.up[SCHEDULER].append(SendRequest(m.ForgetObjects(object_ids)))

    @rule(owner=st.sampled_from([b"client-A", b"client-B"]))
    def forget_owner(self, owner: bytes) -> None:
        self.up[SCHEDULER].append(SendRequest(m.ForgetOwner(owner)))

    def begin(self, peer: bytes, call: StorageCall, wanted: bytes | None = None) -> None:
        self.pending[call] = wanted
        self.peer_step(peer, call)

    # -- actions of the network -----------------------------------------------------------------------------------

    @rule(peer=peers, count=st.integers(1, 20), loses=st.booleans())
    def deliver_up(self, peer: bytes, count: int, loses: bool = False) -> None:
        if self.connected[peer]:
            queue = self.up[peer]
            says = [queue.popleft() for _ in range(min(count, len(queue)))]
            self.storage_step(*(self.heard(peer, say, loses) for say in says))

    @rule(peer=peers, count=st.integers(1, 20), loses=st.booleans())
    def deliver_down(self, peer: bytes, count: int, loses: bool = False) -> None:
        if self.connected[peer]:
            queue = self.down[peer]
            sends = [queue.popleft() for _ in range(min(count, len(queue)))]
            self.peer_step(peer, *(self.got(send, loses) for send in sends))
            self.storage_step()

    def heard(self, peer: bytes, say: SendRequest, loses: bool) -> Received:
        if not isinstance(say.message, PutObject) or not say.message.shared:
            assert say.memory is None
            return Received(peer, say.message, say.attachments)
        assert not say.attachments
        assert say.memory is not None
        return ReceivedMemory(peer, say.message, memory=None if loses else say.memory)

    def got(self, send: SendToPeer, loses: bool) -> Received:
        if not isinstance(send.message, StorageReply) or not send.message.shared:
            assert send.memory is None
            return Received(SERVER, send.message, send.attachments)
        assert not send.attachments
        assert isinstance(send.memory, Shared)
        return Received(SERVER, send.message, () if loses else send.memory.parts)

    @rule(peer=peers)
    def break_connection(self, peer: bytes) -> None:
        if self.connected[peer]:
            self.connected[peer] = False
            self.peer_step(peer, Broken(SERVER))
            self.storage_step(Broken(peer))

    @rule(peer=peers)
    def resume(self, peer: bytes) -> None:
        if peer in self.expired:
            self.forget_session(peer)
        elif not self.connected[peer]:
            self.connected[peer] = True
            self.storage_step(Resumed(peer))
            self.peer_step(peer, Resumed(SERVER))

    @rule(peer=peers, is_sharing=st.booleans())
    def forget_session(self, peer: bytes, is_sharing: bool = True) -> None:
        self.up[peer].clear()
        self.down[peer].clear()
        self.expired.discard(peer)
        self.storage_step(Closed(peer, "test"))
        role, identity = PEERS[peer]
        self.storage_step(Opened(peer, m.Hello(role, False, 1, "", "", "", "host", 1), identity))
        self.connected[peer] = True
        self.requests[peer].is_sharing = is_sharing
        self.peer_step(peer, Broken(SERVER), Welcomed(m.Welcome(False, 1, 60.0, 2.0)))

    @rule()
    def restart_storage(self) -> None:
        self.core = self.new_core()
        self.writes.clear()
        for peer in PEERS:
            self.forget_session(peer)

    @rule(fails=st.booleans())
    def write_to_disk(self, fails: bool = False) -> None:
        for write in self.writes[:1]:
            del self.writes[0]
            moved = [[memoryview(bytes(frame)) for frame in frames] for frames in write.frames]
            self.storage_step(BodiesMoved(write.bodies, [] if fails else moved, "the disk is full" if fails else ""))

    @rule(seconds=st.floats(0.1, 5.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.storage_step()
        for peer in PEERS:
            self.peer_step(peer)

    # -- steps ----------------------------------------------------------------------------------------------------

    def storage_step(self, *inputs: StorageInput) -> None:
        for command in self.core.step(inputs, self.now):
            match command:
                case ExpirePeer(peer):
                    self.connected[peer] = False
                    self.expired.add(peer)
                case SendToPeer(peer):
                    self.down[peer].append(command)
                case SpillBodies():
                    assert not self.writes, "one write at a time"
                    self.writes.append(command)

    def peer_step(self, peer: bytes, *inputs: RequestsInput) -> None:
        for command in self.requests[peer].step(inputs, self.now):
            if isinstance(command, CallEnded):
                wanted = self.pending.pop(command.call)  # raises KeyError if a call ends twice
                if isinstance(command.outcome, list):
                    assert wanted is not None
                    assert may_get(peer, wanted)
                    data = b"".join(command.outcome)
                    assert data == content_of(wanted, len(data))
                else:
                    assert wanted is None or isinstance(command.outcome, Exception)
            else:
                self.up[peer].append(command)

    def everything_ends_once_the_network_is_well(self) -> None:
        for peer in PEERS:
            self.resume(peer)
        for _ in range(60):
            if not self.pending:
                break
            for peer in PEERS:
                for _ in range(10):
                    self.deliver_up(peer, 100)
                    self.deliver_down(peer, 100)
            self.wait(1.0)
            self.write_to_disk()
            for peer in PEERS:  # heartbeats
                self.storage_step(Resumed(peer))
        assert not self.pending
        check_storage(self.core)


TestStorageAndPeers = StorageAndPeers.TestCase
TestStorageAndPeers.settings = settings(stateful_step_count=40)
