"""Core of the object storage: peer events in, commands out. No sockets, no clock, no copies of payloads. Pure.

Invariants (checked by `scaler.testing.storage_invariants`): an id is either complete or
awaited, never both; uploads, waiting gets, and bodies being sent belong to peers with a session; every put, get, and
stat is answered unless the peer is gone."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from scaler.ids import cache_owner, is_cached, is_result, owner_of
from scaler.net.connection import LOCAL, Broken, Closed, Opened, Received, Resumed
from scaler.object_storage import commands as c
from scaler.object_storage.body import Body
from scaler.object_storage.exchange import ChunkRun, Exchange
from scaler.object_storage.messages import (
    CopyObjects,
    FetchChunks,
    GetObject,
    ObjectsUnavailable,
    PutObject,
    SoleCopies,
    StatStorage,
    StorageReply,
    StorageResult,
    StorageStatus,
    StoresChanged,
)
from scaler.object_storage.objects import DONE, Answer, ResultCache, StorageTable
from scaler.object_storage.sending import BodySender, StoragePeer, WaitingGet
from scaler.object_storage.shared_memory import GrowingMemory
from scaler.object_storage.spilling import BodiesMoved, StorageLimits
from scaler.protocol import messages as m
from scaler.protocol.chunks import LARGE_BYTES
from scaler.protocol.messages import MAX_ATTACHED_BYTES

ENDED_PROCESSOR_SECONDS = 1.0
"""A local processor disconnected for this long has exited, and its session ends to release memory."""
MAX_GETS_PER_PEER = 20_000
"""Maximum gets per peer that wait for their object or for earlier replies."""
UPLOAD_SECONDS = 60.0
"""Drop an upload after this long without data, since its full size counts as used."""
MAX_WAITING_PUT_BYTES = 256 * 1024 * 1024
"""Maximum bytes received for puts that wait for space. Further puts are refused immediately."""
MAX_PUT_WAIT_SECONDS = 60.0
"""Maximum wait of a put while bodies are being spilled to disk."""
PUT_POLL_SECONDS = 0.25
UNAVAILABLE = "no store has it"
LOST = "its only copy was lost with host {}"
NOT_FOUND: Answer = (StorageResult.MISSING, "there is no such object")
SHORTEST_POLL_SECONDS = 0.002
LONGEST_POLL_SECONDS = 0.1
"""Bounds of the polling interval for readers with unacknowledged bytes, because acknowledgements cause no events."""


@dataclass(slots=True, eq=False)
class WaitingPut:
    """An object waiting for space, with the messages received so far. Its sender stalls because no reply is sent."""

    first: PutObject
    begun: float
    events: list[tuple[PutObject, Received]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Size of the messages."""
        return sum(_size_of(event) for _, event in self.events)


class StorageCore:
    """The state of a storage. outbox_bytes: see `BodySender`. put_wait_seconds: time for which a put waits for space
    before it is refused. lease_seconds: time after which a silent peer's session ends. tick_seconds: maximum interval
    of steps. A longer gap is a stall of the storage and does not count against leases."""

    def __init__(
        self,
        limits: StorageLimits,
        *,
        outbox_bytes: Callable[[bytes], int],
        lease_seconds: float,
        tick_seconds: float,
        put_wait_seconds: float = 0.0,
        is_durable: bool = False,
    ) -> None:
        self.wake_at = math.inf
        self._limits = limits
        self._lease_seconds = lease_seconds
        self._tick_seconds = tick_seconds
        self._put_wait_seconds = put_wait_seconds
        self.objects = StorageTable(limits)
        self._waiting_puts: dict[tuple[StoragePeer, bytes], WaitingPut] = {}  # in order of arrival
        self._waiting_put_bytes = 0
        self._peers: OrderedDict[bytes, StoragePeer] = OrderedDict()  # longest silent first
        self._broken: dict[bytes, float] = {}
        """Times of disconnection of local processors, oldest first."""
        self._sender = BodySender(outbox_bytes)
        self._owner_keys: dict[bytes, str] = {}  # key names of clients that are connected or own objects
        self._last_step = -math.inf
        self._stalled_seconds = 0.0
        self._poll_seconds = SHORTEST_POLL_SECONDS
        self._commands: list[c.StorageCommand] = []
        self._is_durable = is_durable
        self._cached = ResultCache(limits.cache_bytes)
        self.can_fetch = False
        """True if missing objects can be fetched from other stores."""
        self.backend_held: Callable[[], list[tuple[bytes, int]]] | None = None
        """Returns (id, size) of the objects in the backend, to which objects of at least LARGE_BYTES are written."""
        self.hits = self.misses = 0
        """Gets from local readers: number of hits and misses."""
        self.exchange = Exchange()
        self._delayed: list[ChunkRun] = []
        """Runs to get as soon as there is space."""
        self._copies: OrderedDict[bytes, None] = OrderedDict()
        """LRU of objects that other stores also have."""

    def restore(self, object_id: bytes, body: Body, key: str) -> None:
        """Add an object found on disk. key: name of its owner's key, or ""."""
        self.objects.store(object_id, body)
        if is_cached(object_id):
            self._cache(object_id, body)
        if key:
            self._owner_keys[owner_of(object_id)] = key

    def step(self, inputs: Sequence[c.StorageInput], now: float) -> list[c.StorageCommand]:
        if self._peers:
            self._stalled_seconds += max(0.0, now - self._last_step - 2 * self._tick_seconds)
        self._last_step = now
        clock = now - self._stalled_seconds
        for item in inputs:
            self._take(item, clock, now)
        if self.exchange.fetches:
            self._stop_fetches()
        if self._delayed:
            self._begin_runs()
        self.objects.drop_stalled(clock - UPLOAD_SECONDS)
        self._expire_peers(clock)
        if self._waiting_puts:
            self._drop_copies(self._most_wanted_bytes())
            self._retry_puts(clock, now)
        wanted_bytes = self._most_wanted_bytes()
        self._drop_copies(wanted_bytes)
        spill = self.objects.spilling.next_batch(self.objects.surplus(wanted_bytes), now)
        if spill is not None:
            self._commands.append(spill)
        for peer in self._sender.peers():
            self._commands += self._sender.send(peer)
        damaged, self.objects.damaged = self.objects.damaged, []
        self._forget_persisted(damaged)
        self._cached.dropped(damaged)
        self._commands += map(c.SendToScheduler, self.exchange.take_messages(now, is_awaited=self.can_fetch))
        commands, self._commands = self._commands, []
        has_sent = any(isinstance(command, c.SendToPeer) for command in commands)
        self._poll_seconds = SHORTEST_POLL_SECONDS if has_sent else min(2 * self._poll_seconds, LONGEST_POLL_SECONDS)
        self.wake_at = min(
            now + self._tick_seconds if self._peers else math.inf,
            now + self._poll_seconds if self._sender else math.inf,
            now + PUT_POLL_SECONDS if self._waiting_puts else math.inf,
            now + ENDED_PROCESSOR_SECONDS if self._broken else math.inf,
            self.exchange.report_at,
        )
        return commands

    def _take(self, item: c.StorageInput, clock: float, now: float) -> None:
        match item:
            case Received(name):
                peer = self._seen(name, clock)
                if peer is not None:
                    self._received(peer, item, now)
            case Opened(name, hello, identity):
                self._drop_peer(name)
                self._peers[name] = StoragePeer(name, hello.role, identity, clock)
                if hello.role is m.Role.CLIENT and identity.has_key:
                    self._owner_keys[name] = self._owner_keys[cache_owner(identity.key)] = identity.key
                if hello.role is m.Role.SCHEDULER:
                    self._scheduler_opened(LARGE_BYTES)
            case Resumed(name) | Broken(name):
                peer = self._seen(name, clock)
                if peer is not None:
                    peer.is_connected = isinstance(item, Resumed)
                    self._broken.pop(name, None)
                    if not peer.is_connected and peer.role is m.Role.WORKER and peer.identity == LOCAL:
                        self._broken[name] = clock
            case Closed(name):
                self._drop_peer(name)
            case c.ObjectNotPersisted():
                self._not_persisted(item)
            case BodiesMoved():
                self.objects.moved(item, now)
            case m.Message():
                self._hear(item)
            case c.SchedulerOpened() | c.WrittenToBackend() | c.RunCame() | c.RunFailed() | c.FetchFailed():
                self._take_exchanged(item)
            case _:
                assert_never(item)

    def _take_exchanged(
        self, item: c.SchedulerOpened | c.WrittenToBackend | c.RunCame | c.RunFailed | c.FetchFailed
    ) -> None:
        match item:
            case c.SchedulerOpened():
                self._scheduler_opened(0)
            case c.WrittenToBackend(rows):
                self.exchange.written(rows)
                if not self._is_durable:  # dropping such a copy would also remove the object from disk
                    self._copies.update((each, None) for each, _ in rows if self.objects.body(each) is not None)
            case c.RunCame(run, size_bytes):
                if self.exchange.is_active(run) and self.exchange.came(run, size_bytes):
                    self._fetched(run.id)
            case c.RunFailed(run, is_unreachable):
                if self.exchange.is_active(run):
                    self.exchange.failed(run, is_unreachable=is_unreachable)
            case c.FetchFailed(object_id, text):
                if object_id in self.exchange.fetches:
                    self.exchange.unwant(object_id)
                    self._end_fetch(object_id, text)
            case _:
                assert_never(item)

    def _received(self, peer: StoragePeer, event: Received, now: float) -> None:
        match event.message:
            case PutObject(request=request, id=object_id) if not self._may_put(peer, object_id):
                self._answer(peer, request, (StorageResult.INVALID, "a client may upload only its own objects"))
            case PutObject() as put:
                if not self._is_to_wait(peer, put, event, now):
                    self._put(peer, put, event)
            case GetObject() as get:
                self._get(peer, get)
            case StatStorage(request):
                self._commands.append(c.SendToPeer(peer.id, self._status(request)))
            case message:
                self._hear(message)

    def _hear(self, message: m.Message) -> None:
        """Process a message from the scheduler, or a message that only shows that its sender is alive."""
        match message:
            case m.ForgetObjects(object_ids):
                self._forget(object_ids)
            case m.ForgetOwner(owner):
                self._forget(self.objects.owned_by(owner), owner)
            case CopyObjects():
                self._copy(message)
            case SoleCopies(object_ids):
                for object_id in object_ids:
                    self._copies.pop(object_id, None)
            case StoresChanged():
                self.can_fetch = True
                self.exchange.stores_changed(message)
            case FetchChunks():
                self._delayed += self.exchange.assigned(message)
            case ObjectsUnavailable(object_ids, host):
                for object_id in object_ids:
                    self._end_fetch(object_id, LOST.format(host) if host else UNAVAILABLE)
            case _:
                pass

    def _forget(self, object_ids: list[bytes], owner: bytes = b"") -> None:
        """Drop released objects, or all objects of an owner, which may be put again if the owner returns."""
        drop = self.objects.drop if owner else self.objects.forget
        self._forget_persisted(object_ids)
        self.exchange.forgotten(object_ids)
        if self.backend_held is not None and (object_ids or owner):
            self._commands.append(c.ForgetInBackend(object_ids, owner))
        for object_id in object_ids:
            self._do_not_keep(object_id)
            self._copies.pop(object_id, None)
            self._miss(drop(object_id), "it was forgotten")
        for object_id in self.exchange.fetches if owner else ():
            if owner_of(object_id) == owner:
                self._do_not_keep(object_id)
        if owner and owner not in self._peers:
            self._owner_keys.pop(owner, None)

    def _status(self, request: int) -> StorageStatus:
        table = self.objects
        waiting = sum(len(peer.waiting) for peer in self._peers.values())
        status = StorageStatus(request, len(table), table.used_bytes, self._limits.memory_bytes, waiting)
        status.spilled_bytes, status.disk_failure = table.spilling.used_bytes, table.disk_failure
        status.hits, status.misses = self.hits, self.misses
        return status

    def _put(self, peer: StoragePeer, put: PutObject, event: Received) -> None:
        memory = event.memory if isinstance(event, c.ReceivedMemory) else None
        if put.shared and memory is None:
            self._answer(peer, put.request, (StorageResult.UNSHARED, "its memory descriptor is missing"))
            return
        answer = self.objects.put(peer, put, event.attachments, memory)
        body = self.objects.body(put.id) if answer is DONE else None
        if body is None:
            self._answer(peer, put.request, answer)
        else:
            self._stored(peer, put, body)
        self._serve_waiting(put.id)

    def _stored(self, peer: StoragePeer, put: PutObject, body: Body) -> None:
        may_go, is_large, is_of_store = is_cached(put.id), body.size_bytes >= LARGE_BYTES, peer.role is m.Role.STORE
        if is_of_store or (is_large and not is_result(put.id)):
            self.exchange.put(put.id, body.size_bytes)
        if self.backend_held is not None and is_large and not may_go:
            self._commands.append(c.WriteToBackend(put.id, body))
        if may_go and not self._cache(put.id, body):
            self._answer(peer, put.request, (StorageResult.TOO_LARGE, "it is larger than cache_limit_bytes"))
        elif self._is_durable:
            self._commands.append(c.PersistObject(put.id, body, self.key_of(owner_of(put.id)), peer.id, put.request))
        else:
            self._answer(peer, put.request, DONE)

    def _cache(self, object_id: bytes, body: Body) -> bool:
        """Add a cached result and evict other results. Returns False if the result itself was evicted."""
        evicted = self._cached.stored(object_id, body.size_bytes)
        self._cached.dropped(evicted)
        for each in evicted:
            self._miss(self.objects.drop(each), "it was evicted from the cache")
        self._forget_persisted(evicted)
        self.exchange.dropped(evicted)
        return object_id not in evicted

    def _forget_persisted(self, ids: list[bytes]) -> None:
        if ids and self._is_durable:
            self._commands.append(c.ForgetPersisted(ids))

    def _not_persisted(self, lost: c.ObjectNotPersisted) -> None:
        self._miss(self.objects.drop(lost.id), lost.text)
        self.exchange.dropped([lost.id])
        for peer, request in lost.requests:
            reply = StorageReply(request, StorageResult.UNWRITABLE, lost.text)
            self._commands.append(c.SendToPeer(peer, reply))

    def _is_to_wait(self, peer: StoragePeer, put: PutObject, event: Received, now: float) -> bool:
        """Queue a put that does not fit, and later parts of a queued object. Returns False if the put need not wait."""
        waiting = self._waiting_puts.get((peer, put.id)) if self._waiting_puts else None
        if waiting is None:
            if not self._put_wait_seconds or not self.objects.must_wait(peer, put):
                return False
            if self._waiting_put_bytes > MAX_WAITING_PUT_BYTES:
                return False
            waiting = self._waiting_puts[peer, put.id] = WaitingPut(put, now)
        waiting.events.append((put, event))
        self._waiting_put_bytes += _size_of(event)
        if self._waiting_put_bytes > MAX_WAITING_PUT_BYTES + MAX_ATTACHED_BYTES:
            self._end_wait(peer, put.id)  # the put is refused
        return True

    def _retry_puts(self, clock: float, now: float) -> None:
        table = self.objects
        for (peer, object_id), waiting in list(self._waiting_puts.items()):
            while table.must_wait(peer, waiting.first) and table.make_room(peer, clock):
                pass
            wait = MAX_PUT_WAIT_SECONDS if table.spilling.is_moving else self._put_wait_seconds
            if not table.must_wait(peer, waiting.first) or now >= waiting.begun + wait:
                self._end_wait(peer, object_id)

    def _most_wanted_bytes(self) -> int:
        waiting = (sum(each.first.parts) for each in self._waiting_puts.values())
        return max((0, *waiting, *(run.size_bytes for run in self._delayed)))

    def _end_wait(self, peer: StoragePeer, object_id: bytes) -> None:
        waiting = self._waiting_puts.pop((peer, object_id))
        self._waiting_put_bytes -= waiting.size_bytes
        for put, event in waiting.events:
            self._put(peer, put, event)

    def _get(self, peer: StoragePeer, message: GetObject) -> None:
        body = self.objects.read(message.id)
        answer = NOT_FOUND
        if not self._may_get(peer, message.id):
            pass  # answered immediately, so that the reply does not reveal whether the object exists
        elif len(peer.waiting) + len(peer.sending) >= MAX_GETS_PER_PEER:
            answer = StorageResult.FULL, f"a peer may have at most {MAX_GETS_PER_PEER} gets at a time"
        elif body is not None:
            self._cached.used(message.id)
            self.hits += peer.role is not m.Role.STORE
            if message.id in self._copies:
                self._copies.move_to_end(message.id)
            self._commands += self._sender.add(peer, message, body)
            return
        elif peer.role is m.Role.STORE and (partial := self._partial(message.id)) is not None:
            self._commands += self._sender.add_chunks(peer, message, partial)
            return
        elif self.objects.is_forgotten(message.id):
            answer = StorageResult.MISSING, "it was forgotten"
        elif self.can_fetch and peer.role is not m.Role.STORE:
            self.misses += 1
            self.objects.wait(WaitingGet(peer, message))
            self.exchange.want(message.id)
            return
        self._answer(peer, message.request, answer)

    def key_of(self, owner: bytes) -> str:
        return self._owner_keys.get(owner, "")

    def _may_get(self, peer: StoragePeer, object_id: bytes) -> bool:
        # Workers run the tasks of all clients.
        owner = owner_of(object_id)
        return (
            not peer.has_key
            or peer.role is not m.Role.CLIENT
            or owner == peer.id
            or peer.identity.may_see(self.key_of(owner))
        )

    def _may_put(self, peer: StoragePeer, object_id: bytes) -> bool:
        # Workers put results for clients. A client inside a task connects separately under its own peer id.
        return (
            not peer.has_key
            or owner_of(object_id) == peer.id
            or (is_cached(object_id) and owner_of(object_id) == peer.cache_owner)
            or (peer.role in {m.Role.WORKER, m.Role.STORE} and is_result(object_id))
        )

    def _seen(self, name: bytes, clock: float) -> StoragePeer | None:
        peer = self._peers.get(name)
        if peer is not None:
            peer.last_seen = clock
            self._peers.move_to_end(name)
        return peer

    def _expire_peers(self, clock: float) -> None:
        for name, broken_at in list(self._broken.items()):
            if clock - broken_at < ENDED_PROCESSOR_SECONDS:
                break
            self._drop_peer(name)
            self._commands.append(c.ExpirePeer(name))
        while self._peers:
            name, peer = next(iter(self._peers.items()))
            silent_seconds = clock - peer.last_seen
            if silent_seconds < self._lease_seconds:
                return
            self._drop_peer(name)
            self._commands.append(c.ExpirePeer(name, f"it sent nothing for {silent_seconds:.0f} s"))

    def _drop_peer(self, name: bytes) -> None:
        self._broken.pop(name, None)
        peer = self._peers.pop(name, None)
        if peer is not None:
            for key in [key for key in self._waiting_puts if key[0] is peer]:
                self._waiting_put_bytes -= self._waiting_puts.pop(key).size_bytes
            self.objects.drop_peer(peer)
            if not self.objects.owned_by(name):
                self._owner_keys.pop(name, None)
            self._sender.drop(peer)

    def _answer(self, peer: StoragePeer, request: int, answer: Answer) -> None:
        result, text = answer
        self._commands.append(c.SendToPeer(peer.id, StorageReply(request, result, text)))

    def _miss(self, gets: Sequence[WaitingGet], text: str) -> None:
        for get in gets:
            self._answer(get.peer, get.message.request, (StorageResult.MISSING, text))

    def _serve_waiting(self, object_id: bytes) -> None:
        body = self.objects.body(object_id)
        if body is not None:
            self._do_not_keep(object_id)
            for get in self.objects.take_gets(object_id):
                self._commands += self._sender.add(get.peer, get.message, body)

    # -- other stores -------------------------------------------------------------------------------------------------

    def _scheduler_opened(self, min_bytes: int) -> None:
        """Report objects of at least this size to a scheduler without state about this store."""
        held = [row for row in self.objects.sizes() if row[1] >= min_bytes]
        self.exchange.opened(held, self.backend_held() if self.backend_held is not None else ())

    def _partial(self, object_id: bytes) -> GrowingMemory | None:
        fetch = self.exchange.fetches.get(object_id)
        return None if fetch is None else fetch.memory

    def _begin_runs(self) -> None:
        """Get the assigned chunks, unless they wait for spilling. If there will be no space, `reserve` fails."""
        runs, self._delayed = self._delayed, []
        for run in runs:
            if not self.exchange.is_active(run) or (run.source and run.source not in self.exchange.stores):
                continue
            has_room = self._partial(run.id) is not None or self._make_room(run.size_bytes)
            if has_room or not self.objects.spilling.may_free_memory:
                self._commands.append(run)
            else:
                self._delayed.append(run)

    def reserve(self, object_id: bytes, memory: GrowingMemory, size_bytes: int) -> bool:
        """Reserve memory for a fetch, and serve its chunks to other stores from now on. Returns False if there is no
        space."""
        if not self._make_room(size_bytes):
            return False
        fetch = self.exchange.fetches[object_id]
        self.objects.used_bytes += size_bytes
        fetch.memory, fetch.reserved_bytes = memory, size_bytes
        return True

    def sole(self) -> list[bytes]:
        return [object_id for object_id, _ in self.objects.sizes() if object_id not in self._copies]

    def serves(self, role: m.Role) -> bool:
        return any(peer.role is role and peer.is_connected for peer in self._peers.values())

    def _copy(self, wanted: CopyObjects) -> None:
        """Fetch copies of objects, up to the spilling threshold, and keep copies already here."""
        coming_bytes = sum(fetch.kept_bytes or 0 for fetch in self.exchange.fetches.values())
        for object_id, size_bytes in zip(wanted.ids, wanted.sizes, strict=True):
            body = self.objects.body(object_id)
            if body is not None:
                self._keep(object_id, body)
                self.exchange.put(object_id, body.size_bytes)
                continue
            fetch = self.exchange.want(object_id)
            self._drop_copies(coming_bytes + size_bytes)
            has_room = self.objects.surplus(coming_bytes + size_bytes) <= 0
            if has_room and not self.objects.disk_failure and not self.objects.is_forgotten(object_id):
                # Otherwise, the fetch ends with this step, and the scheduler is informed.
                fetch.kept_bytes = size_bytes
                coming_bytes += size_bytes

    def _keep(self, object_id: bytes, body: Body) -> None:
        """Store a fetched copy as if the object had been put here."""
        self._copies.pop(object_id, None)
        if self.backend_held is not None and body.size_bytes >= LARGE_BYTES:
            self._commands.append(c.WriteToBackend(object_id, body))
        if self._is_durable:
            self._commands.append(c.PersistObject(object_id, body, self.key_of(owner_of(object_id))))

    def _do_not_keep(self, object_id: bytes) -> None:
        if object_id in self.exchange.fetches:
            self.exchange.fetches[object_id].kept_bytes = None

    def _fetched(self, object_id: bytes) -> None:
        """Store an object whose chunks have all arrived."""
        fetch, text = self.exchange.fetches[object_id], "it arrived, but there is no space for it"
        try:
            body = fetch.small if fetch.memory is None else fetch.memory.body()
        except (OSError, ValueError) as error:
            body, text = None, f"its memory: {error}"
        self._end_fetch(object_id)
        if body is not None and self.objects.body(object_id) is None and self._make_room(body.size_bytes):
            self.objects.store(object_id, body)
            self._copies[object_id] = None
            if fetch.kept_bytes is not None:
                self._keep(object_id, body)
            self._serve_waiting(object_id)
        if self.objects.body(object_id) is None:
            self._miss(self.objects.take_gets(object_id), text)
            self.exchange.dropped([object_id])

    def _end_fetch(self, object_id: bytes, text: str = "") -> None:
        """End a fetch, if there is one. text: reason for its readers, if it has failed."""
        fetch = self.exchange.fetches.pop(object_id, None)
        if fetch is not None:
            self.objects.used_bytes -= fetch.reserved_bytes
            if text:
                self._miss(self.objects.take_gets(object_id), text)

    def _stop_fetches(self) -> None:
        fetches = self.exchange.fetches.items()
        idle = [each for each, fetch in fetches if fetch.kept_bytes is None and not self.objects.is_waited_for(each)]
        for object_id in idle:
            self._end_fetch(object_id)
            self.exchange.unwant(object_id)

    def _make_room(self, size_bytes: int) -> bool:
        self._drop_copies(size_bytes)
        return self.objects.has_room(size_bytes)

    def _drop_copies(self, wanted_bytes: int) -> None:
        if not self._copies or self.objects.surplus(wanted_bytes) <= 0:
            return
        dropped = []
        busy = self._sender.bodies()
        for object_id in list(self._copies):
            if self.objects.body(object_id) in busy:
                continue
            del self._copies[object_id]
            self._miss(self.objects.drop(object_id), "its copy was evicted to free space")
            dropped.append(object_id)
            if self.objects.surplus(wanted_bytes) <= 0:
                break
        self.exchange.dropped(dropped)


def _size_of(event: Received) -> int:
    return sum(frame.nbytes for frame in event.attachments)
