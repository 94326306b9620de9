"""The rules of the object storage: what happened to peers in, commands out. No socket, no clock, no copy of any bytes.

Pure. Laws (see `check`, and `objects`): an id is whole or waited for, never both; uploads, waiting gets and bodies on
their way belong to peers with a session; every put, link, get and stat of a peer is answered, unless the peer is gone.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from scaler.ids import SHARED_OWNER, cache_owner, is_cached, is_result, owner_of
from scaler.net.connection import Broken, Closed, ListenerEvent, Opened, Received, Resumed
from scaler.object_storage.body import Body, Memory
from scaler.object_storage.cache import ResultCache
from scaler.object_storage.layout import MAX_FRAMES_PER_MESSAGE
from scaler.object_storage.objects import DONE, Answer, Sending, StoragePeer, StorageTable, WaitingGet
from scaler.object_storage.spilling import BodiesMoved, SpillBodies
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
UPLOAD_SECONDS = 60.0
"""An upload of which nothing comes for this long is dropped: until then all of its size counts as used."""
MAX_WAITING_PUT_BYTES = 256 * 1024 * 1024
"""Bytes that have come of puts that wait for room; a put beyond it is refused at once."""
MAX_PUT_WAIT_SECONDS = 60.0
"""While bodies are written to disk, a put waits up to this long."""
PUT_POLL_SECONDS = 0.25
NOT_FOUND: Answer = (StorageResult.MISSING, "there is no such object")
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


@dataclass(frozen=True, slots=True)
class PersistObject:
    """Command: keep this object on disk, and answer its putter's request when the disk has confirmed it.

    key: name of the key of its owner, empty without one.
    """

    id: bytes
    body: Body
    putter: bytes
    key: str
    request: int


@dataclass(frozen=True, slots=True)
class ForgetPersisted:
    """Command: remove these objects from the disk, as far as they are there."""

    ids: list[bytes]


@dataclass(frozen=True, slots=True)
class ObjectNotPersisted:
    """Input: an object could not be kept on disk, and is dropped. requests: those of its putters, with the peers."""

    id: bytes
    text: str
    requests: Sequence[tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class DiskChanged:
    """Input: new objects cannot be kept on disk, and are refused for this reason; empty: they can again."""

    failure: str


StorageInput = ListenerEvent | OutboxMeasured | ObjectNotPersisted | DiskChanged | BodiesMoved
StorageCommand = SendToPeer | MeasureOutbox | ExpirePeer | ReportIgnored | PersistObject | ForgetPersisted | SpillBodies


@dataclass(slots=True, eq=False)
class WaitingPut:
    """An object that waits for room: what has come of it. It is not answered, so its sender soon sends nothing more."""

    begun: float
    events: list[Received]


class StorageCore:
    """The state of one storage.

    limit_bytes: memory for all objects. cache_limit_bytes: for cached results, as a part of it. max_object_bytes: the
    largest one. spill_limit_bytes: disk space for those that are not used (0: none). -1 is no limit, for each.
    put_wait_seconds: how long a put waits for room before it is refused. lease_seconds: how long a silent peer keeps
    its session. tick_seconds: the shell steps at least this often; a longer pause was a stall of the storage itself,
    and does not count against leases.
    """

    def __init__(
        self,
        limit_bytes: int,
        max_object_bytes: int = -1,
        spill_limit_bytes: int = 0,
        *,
        lease_seconds: float,
        tick_seconds: float,
        put_wait_seconds: float = 0.0,
        is_durable: bool = False,
        cache_limit_bytes: int = 0,
    ) -> None:
        self.wake_at = math.inf
        """When `step` has something to do without any input; inf: never."""
        self._limit_bytes = limit_bytes
        self._lease_seconds = lease_seconds
        self._tick_seconds = tick_seconds
        self._put_wait_seconds = put_wait_seconds
        self._objects = StorageTable(limit_bytes, max_object_bytes, spill_limit_bytes)
        self._waiting_puts: dict[tuple[StoragePeer, bytes], WaitingPut] = {}  # in the order of their arrival
        self._waiting_put_bytes = 0
        self._peers: OrderedDict[bytes, StoragePeer] = OrderedDict()  # the longest silent one first
        self._senders: dict[StoragePeer, None] = {}  # those with bodies to send
        self._owner_keys: dict[bytes, str] = {}  # names of the keys of clients that are here or have objects
        self._last_step = -math.inf
        self._stalled_seconds = 0.0
        self._poll_seconds = SHORTEST_POLL_SECONDS
        self._commands: list[StorageCommand] = []
        self._is_durable = is_durable
        self._cached = ResultCache(cache_limit_bytes)

    def restore(self, object_id: bytes, body: Body, putter: bytes, key: str) -> None:
        """Add an object that was kept on disk. key: name of the key of its owner, empty without one."""
        self._objects.restore(object_id, body, putter)
        if is_cached(object_id):
            self._cache(object_id, body)
        if key:
            self._owner_keys[owner_of(object_id)] = key

    @property
    def used_bytes(self) -> int:
        """Memory that objects and uploads use."""
        return self._objects.used_bytes

    @property
    def disk_bytes(self) -> int:
        """Disk space that objects use."""
        return self._objects.spilling.used_bytes

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
                case Opened(name, hello, identity):
                    self._drop_peer(name)
                    self._peers[name] = StoragePeer(name, hello.role, identity, clock)
                    if hello.role is Role.CLIENT and identity.has_key:
                        self._owner_keys[name] = self._owner_keys[cache_owner(identity.key)] = identity.key
                case Resumed(name) | Broken(name):
                    self._seen(name, clock)
                case Closed(name):
                    self._drop_peer(name)
                case OutboxMeasured(name, size_bytes):
                    measured.add(name)
                    if name in self._peers:
                        self._peers[name].unacknowledged_bytes = size_bytes
                case ObjectNotPersisted() | DiskChanged():
                    self._disk_failed(item)
                case BodiesMoved():
                    self._objects.moved(item, now)
                case _:
                    assert_never(item)
        self._miss(self._objects.take_expired(now), "it was not put before the deadline")
        self._objects.drop_stalled(clock - UPLOAD_SECONDS)
        self._expire_peers(clock)
        if self._waiting_puts:
            self._retry_puts(clock, now)
        spill = self._objects.next_spill(max(map(_wanted_bytes, self._waiting_puts.values()), default=0), now)
        if spill is not None:
            self._commands.append(spill)
        for peer in list(self._senders):
            self._send_bodies(peer, is_measured=peer.id in measured)
        damaged = self._objects.take_damaged()
        self._forget_persisted(damaged)
        self._cached.dropped(damaged)
        commands, self._commands = self._commands, []
        has_sent = any(isinstance(command, SendToPeer) for command in commands)
        self._poll_seconds = SHORTEST_POLL_SECONDS if has_sent else min(2 * self._poll_seconds, LONGEST_POLL_SECONDS)
        self.wake_at = min(
            self._objects.next_deadline(),
            now + self._tick_seconds if self._peers else math.inf,
            now + self._poll_seconds if self._senders else math.inf,
            now + PUT_POLL_SECONDS if self._waiting_puts else math.inf,
        )
        return commands

    def _received(self, peer: StoragePeer, event: Received, now: float) -> None:
        match event.message:
            case PutObject(request=request, id=object_id) if not self._may_put(peer, object_id):
                self._answer(peer, request, (StorageResult.INVALID, "a client puts and names its own objects only"))
            case PutObject() as put:
                if not self._is_to_wait(peer, put, event, now):
                    self._put(peer, put, event)
            case GetObject() as get:
                self._get(peer, get, now)
            case LinkObject(request, object_id, target) if not (
                self._may_put(peer, object_id) and self._may_put(peer, target)
            ):
                self._answer(peer, request, NOT_FOUND)
            case LinkObject(request, object_id, target):
                result, text = self._objects.link(peer, object_id, target)
                body = self._objects.body(object_id)
                self._commands.append(
                    SendToPeer(peer.id, StorageReply(request, result, text, [] if body is None else body.parts))
                )
                self._serve_waiting(object_id)
            case ForgetObjects(object_ids):
                allowed = [object_id for object_id in object_ids if self._may_forget(peer, object_id)]
                self._forget_persisted(allowed)
                for object_id in allowed:
                    self._miss(self._objects.forget(object_id), "it was forgotten")
                self._report_ignored(peer, len(object_ids) - len(allowed))
            case ForgetOwner(owner) if peer.role is Role.SCHEDULER:
                # The ids themselves are not refused from now on: an owner that comes back puts its objects again.
                self._forget_persisted(self._objects.owned_by(owner))
                for object_id in self._objects.owned_by(owner):
                    self._miss(self._objects.drop(object_id), "it was forgotten")
                if owner not in self._peers:
                    self._owner_keys.pop(owner, None)
            case ForgetOwner():
                self._report_ignored(peer, 1)
            case StatStorage(request):
                table = self._objects
                status = StorageStatus(request, len(table), table.used_bytes, self._limit_bytes, table.waiting_gets)
                status.spilled_bytes, status.disk_failure = self.disk_bytes, table.disk_failure
                self._commands.append(SendToPeer(peer.id, status))
            case _:
                pass  # heartbeats and the like show that the peer is alive, and that was noted

    def _put(self, peer: StoragePeer, put: PutObject, event: Received) -> None:
        memory = event.memory if isinstance(event, ReceivedMemory) else None
        if put.shared and memory is None:
            self._answer(peer, put.request, (StorageResult.UNSHARED, "the descriptor of its memory is not there"))
            return
        answer = self._objects.put(peer, put, event.attachments, memory)
        may_go = is_cached(put.id)
        body = self._objects.body(put.id) if answer is DONE and (self._is_durable or may_go) else None
        if body is not None and may_go and not self._cache(put.id, body):
            self._answer(peer, put.request, (StorageResult.TOO_LARGE, "it is larger than cache_limit_bytes"))
        elif body is None or not self._is_durable:
            self._answer(peer, put.request, answer)
        else:
            self._commands.append(PersistObject(put.id, body, peer.id, self.key_of(owner_of(put.id)), put.request))
        self._serve_waiting(put.id)

    def _cache(self, object_id: bytes, body: Body) -> bool:
        """Note a cached result, and drop what must go for it. Returns False when that is itself."""
        evicted = self._cached.stored(object_id, body.size_bytes)
        self._cached.dropped(evicted)
        for each in evicted:
            self._miss(self._objects.drop(each), "it was dropped from the cache")
        self._forget_persisted(evicted)
        return object_id not in evicted

    def _forget_persisted(self, ids: list[bytes]) -> None:
        if ids and self._is_durable:
            self._commands.append(ForgetPersisted(ids))

    def _disk_failed(self, item: ObjectNotPersisted | DiskChanged) -> None:
        match item:
            case ObjectNotPersisted(object_id, text, requests):
                self._miss(self._objects.drop(object_id), text)
                for peer, request in requests:
                    self._commands.append(SendToPeer(peer, StorageReply(request, StorageResult.UNWRITABLE, text)))
            case DiskChanged(failure):
                self._objects.disk_failure = failure

    def _is_to_wait(self, peer: StoragePeer, put: PutObject, event: Received, now: float) -> bool:
        """Keep a put that has no room now, and what follows of the same object. False: it is not to wait."""
        waiting = self._waiting_puts.get((peer, put.id)) if self._waiting_puts else None
        if waiting is None:
            if not self._put_wait_seconds or not self._objects.must_wait(peer, put):
                return False
            if self._waiting_put_bytes > MAX_WAITING_PUT_BYTES:
                return False
            waiting = self._waiting_puts[peer, put.id] = WaitingPut(now, [])
        waiting.events.append(event)
        self._waiting_put_bytes += _size_of(event)
        if self._waiting_put_bytes > MAX_WAITING_PUT_BYTES + MAX_CHUNK_BYTES:
            self._end_wait(peer, put.id)  # so it is refused
        return True

    def _retry_puts(self, clock: float, now: float) -> None:
        """Put what has room now, or has waited for too long: that is refused."""
        table = self._objects
        for (peer, object_id), waiting in list(self._waiting_puts.items()):
            first = waiting.events[0].message
            assert isinstance(first, PutObject), "only puts wait"
            while table.must_wait(peer, first) and table.make_room(peer, clock):
                pass
            wait = MAX_PUT_WAIT_SECONDS if table.spilling.is_moving else self._put_wait_seconds
            if not table.must_wait(peer, first) or now >= waiting.begun + wait:
                self._end_wait(peer, object_id)

    def _end_wait(self, peer: StoragePeer, object_id: bytes) -> None:
        for event in self._waiting_puts.pop((peer, object_id)).events:
            self._waiting_put_bytes -= _size_of(event)
            assert isinstance(event.message, PutObject), "only puts wait"
            self._put(peer, event.message, event)

    def _get(self, peer: StoragePeer, message: GetObject, now: float) -> None:
        body = self._objects.read(message.id)
        answer = NOT_FOUND
        if not self._may_get(peer, message.id):
            pass  # at once, whether the object is there or not: the answer says nothing about it
        elif len(peer.waiting) + len(peer.sending) >= MAX_GETS_PER_PEER:
            answer = StorageResult.FULL, f"a peer has at most {MAX_GETS_PER_PEER} gets at a time"
        elif body is not None:
            self._cached.used(message.id)
            self._send_later(peer, Sending(message, body))
            return
        elif self._objects.is_forgotten(message.id):
            answer = StorageResult.MISSING, "it was forgotten"
        elif 0 < message.deadline_seconds < math.inf:
            self._objects.wait(WaitingGet(peer, message, now + message.deadline_seconds))
            return
        self._answer(peer, message.request, answer)

    def key_of(self, owner: bytes) -> str:
        """Return the name of the key of this client, as far as it is known; else an empty text."""
        return self._owner_keys.get(owner, "")

    def _may_get(self, peer: StoragePeer, object_id: bytes) -> bool:
        # Workers run the tasks of all clients.
        owner = owner_of(object_id)
        return (
            not peer.has_key
            or peer.role is not Role.CLIENT
            or owner in (peer.id, SHARED_OWNER)
            or peer.identity.may_see(self.key_of(owner))
        )

    def _may_put(self, peer: StoragePeer, object_id: bytes) -> bool:
        # Workers put results for clients; one with a client inside a task connects for it under the client's peer id.
        return (
            not peer.has_key
            or owner_of(object_id) == peer.id
            or (is_cached(object_id) and owner_of(object_id) == peer.cache_owner)
            or peer.role is Role.SCHEDULER
            or (peer.role is Role.WORKER and is_result(object_id))
        )

    def _may_forget(self, peer: StoragePeer, object_id: bytes) -> bool:
        # Workers put objects that belong to clients: they may take back those that they put themselves.
        return (
            peer.role is Role.SCHEDULER
            or (peer.role is Role.CLIENT and (owner_of(object_id) == peer.id or peer.identity.is_admin))
            or (peer.role is Role.WORKER and self._objects.is_from(object_id, peer))
        )

    def _report_ignored(self, peer: StoragePeer, count: int) -> None:
        if count:
            self._commands.append(ReportIgnored(peer.id, count))

    def _seen(self, name: bytes, clock: float) -> StoragePeer | None:
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
            for key in [key for key in self._waiting_puts if key[0] is peer]:
                self._waiting_put_bytes -= sum(map(_size_of, self._waiting_puts.pop(key).events))
            self._objects.drop_peer(peer)
            if not self._objects.owned_by(name):
                self._owner_keys.pop(name, None)
            self._senders.pop(peer, None)

    def _answer(self, peer: StoragePeer, request: int, answer: Answer) -> None:
        result, text = answer
        self._commands.append(SendToPeer(peer.id, StorageReply(request, result, text)))

    def _miss(self, gets: Sequence[WaitingGet], text: str) -> None:
        for get in gets:
            self._answer(get.peer, get.message.request, (StorageResult.MISSING, text))

    def _serve_waiting(self, object_id: bytes) -> None:
        body = self._objects.body(object_id)
        if body is not None:
            for get in self._objects.take_gets(object_id):
                self._send_later(get.peer, Sending(get.message, body))

    def _send_later(self, peer: StoragePeer, sending: Sending) -> None:
        peer.sending.append(sending)
        self._senders[peer] = None

    def _send_bodies(self, peer: StoragePeer, *, is_measured: bool) -> None:
        while peer.sending:
            sending = peer.sending[0]
            request, body = sending.message.request, sending.body
            if not body.names:
                self._answer(peer, request, (StorageResult.MISSING, "it was forgotten"))
                peer.sending.popleft()
                continue
            if sending.message.shared and body.memory is not None:
                reply = StorageReply(request, StorageResult.OK, "", body.parts, shared=True)
                self._commands.append(SendToPeer(peer.id, reply, memory=body.memory))
                peer.sending.popleft()
                continue
            frames = _next_frames(sending)
            size = sum(frame.nbytes for frame in frames)
            if peer.unacknowledged_bytes + size > MAX_UNACKNOWLEDGED_BYTES_PER_PEER:
                if not is_measured:
                    self._commands.append(MeasureOutbox(peer.id))
                return
            peer.unacknowledged_bytes += size
            parts = [] if sending.offset else body.parts
            reply = StorageReply(request, StorageResult.OK, "", parts, sending.offset)
            self._commands.append(SendToPeer(peer.id, reply, frames))
            sending.next_frame += len(frames)
            sending.offset += size
            if sending.offset == body.size_bytes:
                peer.sending.popleft()
        del self._senders[peer]

    def check(self) -> None:
        """Assert the laws at the top of this module and of `objects`. O(everything): for tests."""
        peers = self._peers.values()
        self._objects.check(peers)
        assert all(self._objects.body(get.message.id) is None for peer in peers for get in peer.waiting)
        assert {peer for peer, _ in self._waiting_puts} <= set(peers)
        held = [event for waiting in self._waiting_puts.values() for event in waiting.events]
        assert self._waiting_put_bytes == sum(map(_size_of, held))
        assert all(waiting.events for waiting in self._waiting_puts.values())
        assert self._senders.keys() == {peer for peer in peers if peer.sending}
        assert not self._commands


def _wanted_bytes(waiting: WaitingPut) -> int:
    message = waiting.events[0].message
    assert isinstance(message, PutObject), "only puts wait"
    return sum(message.parts)


def _size_of(event: Received) -> int:
    return sum(frame.nbytes for frame in event.attachments)


def _next_frames(sending: Sending) -> list[memoryview]:
    """Return the frames of the next message of a body: as many as fit into one."""
    taken: list[memoryview] = []
    size = 0
    for frame in sending.body.all_frames()[sending.next_frame : sending.next_frame + MAX_FRAMES_PER_MESSAGE]:
        if taken and size + frame.nbytes > MAX_CHUNK_BYTES:
            break
        taken.append(frame)
        size += frame.nbytes
    return taken
