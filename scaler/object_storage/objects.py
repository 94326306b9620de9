"""Table of objects, unfinished uploads, and waiting gets, within memory limits. Pure.

Invariants: used memory is the size of all bodies in memory plus the full size of all uploads, and never
exceeds the limit; reserved bytes are the missing bytes of uploads; a complete id has no uploads. Ids are never reused
(`ids.py`), so late bytes of a released id are refused."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from scaler.grammar import counted
from scaler.ids import owner_of
from scaler.object_storage.body import MAX_FRAMES_PER_MESSAGE, MAX_PARTS, Body, Memory
from scaler.object_storage.messages import PutObject, StorageResult
from scaler.object_storage.sending import StoragePeer, UnfinishedObject, UnfinishedUpload, WaitingGet
from scaler.object_storage.spilling import SPILL_FROM, BodiesMoved, Spilling, StorageLimits, limit_of
from scaler.protocol.messages import MAX_ATTACHED_BYTES

MAX_OBJECTS = 10_000_000
MAX_UPLOADS_PER_PEER = 1_000
RECORD_BYTES = 1024
"""Overhead per id. The layout adds 8 bytes per part."""
MIN_RECORDS_BYTES = 64 * 1024 * 1024
MAX_RECORDS_SHARE = 0.25
"""Limit on records of objects and uploads: MIN_RECORDS_BYTES, or this share of memory_limit_bytes if larger."""
RESERVED_SHARE = 0.5
"""Share of the memory limit that one key's unfinished uploads may reserve. A single upload may exceed it."""
STALLED_SECONDS = 2.0
"""When space is short, an upload stalled for this long may be dropped in favor of other keys' puts."""
MAX_FORGOTTEN_IDS = 65_536
"""Maximum released ids that are kept to refuse late bytes."""

Answer = tuple[StorageResult, str]
DONE: Answer = (StorageResult.OK, "")


class ResultCache:
    """LRU of all cached results. limit_bytes: 0 keeps none, -1 is unlimited. The results belong to a key, not to a
    client, and their ids (`ids.cached_id`) may be put again after an eviction."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._used_bytes = 0

    def used(self, object_id: bytes) -> None:
        if object_id in self._sizes:
            self._sizes.move_to_end(object_id)

    def stored(self, object_id: bytes, size_bytes: int) -> list[bytes]:
        """Record a complete result. Returns the ids to evict, which include the result itself if it is too large."""
        self.dropped([object_id])
        self._sizes[object_id] = size_bytes
        self._used_bytes += size_bytes
        if self._limit_bytes < 0 or self._used_bytes <= self._limit_bytes:
            return []
        if size_bytes > self._limit_bytes:
            return [object_id]
        excess, evicted = self._used_bytes - self._limit_bytes, []
        for other, size in self._sizes.items():
            if excess <= 0:
                break
            evicted.append(other)
            excess -= size
        return evicted

    def dropped(self, object_ids: Iterable[bytes]) -> None:
        for object_id in object_ids:
            self._used_bytes -= self._sizes.pop(object_id, 0)


class StorageTable:
    def __init__(self, limits: StorageLimits) -> None:
        self._limit_name = limits.memory_name
        self.used_bytes = 0
        """Bytes in memory, including bytes reserved for fetches, excluding bodies on disk."""
        self.disk_failure = ""
        """Why the disk refuses new objects; empty if it accepts them."""
        self._limit_bytes = limit_of(limits.memory_bytes)
        self.damaged: list[bytes] = []
        """Objects dropped because their bytes on disk were damaged, until the core takes them."""
        self._reserved: Counter[str | bytes] = Counter()
        self.spilling = Spilling(limits)
        self._records_bytes = 0
        self._uploads: OrderedDict[UnfinishedUpload, tuple[StoragePeer, bytes]] = OrderedDict()
        """Ordered by time of the last progress, oldest first."""
        self._max_object_bytes = limit_of(limits.object_bytes)
        self._objects: dict[bytes, Body] = {}
        self._unfinished: dict[bytes, UnfinishedObject] = {}
        self._owners: dict[bytes, set[bytes]] = {}  # complete and incomplete ids, by owner
        self._forgotten: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def body(self, object_id: bytes) -> Body | None:
        body = self._objects.get(object_id)
        if body is not None and not body.is_whole():
            self.damaged.append(object_id)
            self.drop(object_id)
            return None
        return body

    def read(self, object_id: bytes) -> Body | None:
        """Like `body`, but also marks the body as used."""
        body = self.body(object_id)
        if body is not None:
            self.spilling.use(body)
        return body

    def must_wait(self, peer: StoragePeer, message: PutObject) -> bool:
        """Return True if there is no space for an object now, but may be later."""
        size = sum(message.parts)
        return (
            message.id not in self._objects
            and message.id not in self._forgotten
            and message.id not in peer.uploads
            and not message.offset
            and size <= min(self._limit_bytes, self._max_object_bytes)
            and not self._has_room(peer.account, size)
        )

    def _has_room(self, account: str | bytes, size: int) -> bool:
        reserved = self._reserved.get(account, 0)
        is_lone = not reserved or reserved + size <= RESERVED_SHARE * self._limit_bytes
        return is_lone and self.used_bytes + size <= self._limit_bytes

    def make_room(self, peer: StoragePeer, clock: float) -> bool:
        """Drop a stalled upload from the key with the largest reservation. Returns False if none qualifies."""
        for account, reserved in self._reserved.most_common(1):
            if account == peer.account or reserved <= RESERVED_SHARE / 2 * self._limit_bytes:
                return False
            for upload, (putter, object_id) in self._uploads.items():
                if upload.account == account and upload.moved_at <= clock - STALLED_SECONDS:
                    self._drop_upload(putter, object_id)
                    return True
        return False

    def moved(self, message: BodiesMoved, now: float) -> None:
        self.used_bytes -= sum(body.size_bytes for body in self.spilling.moved(message, now))

    def is_forgotten(self, object_id: bytes) -> bool:
        return object_id in self._forgotten

    def owned_by(self, owner: bytes) -> list[bytes]:
        return list(self._owners.get(owner, ()))

    def put(
        self, peer: StoragePeer, message: PutObject, attachments: Sequence[memoryview], memory: Memory | None = None
    ) -> Answer:
        """Start or continue an upload. memory: contains the whole object. Without bytes, only reserves memory."""
        object_id = message.id
        if self.body(object_id) is not None:
            return DONE  # a repeated put, or the same bytes from another peer
        upload = peer.uploads.get(object_id)
        if upload is None:
            refusal = self._refusal(peer, message)
            if refusal is not None:
                return refusal
            upload = peer.uploads[object_id] = UnfinishedUpload(message.parts, sum(message.parts), account=peer.account)
            self._add_unfinished(object_id).putters[peer] = None
            self.used_bytes += upload.size_bytes
            self._records_bytes += record_bytes(upload.parts)
        size = upload.size_bytes if memory is not None else sum(frame.nbytes for frame in attachments)
        end = upload.received_bytes + size
        fits = (
            message.offset == upload.received_bytes
            and message.parts == upload.parts
            and end <= upload.size_bytes
            and (size <= MAX_ATTACHED_BYTES or memory is not None)
            and len(attachments) <= MAX_FRAMES_PER_MESSAGE
            and (size > 0 or upload.received_bytes == 0)
        )
        if not fits:
            self._drop_upload(peer, object_id)
            return StorageResult.INVALID, (
                f"frames of size {size} at {message.offset} do not continue an object of size "
                f"{upload.size_bytes}, of which {upload.received_bytes} have arrived"
            )
        upload.frames.extend(frame for frame in attachments if frame.nbytes)
        upload.received_bytes = end
        if end == upload.size_bytes:
            self.store(object_id, Body(upload.parts, upload.frames, upload.size_bytes, memory))
        else:
            upload.moved_at = peer.last_seen
            self._reserve(upload, upload.size_bytes - end)
            self._uploads[upload] = peer, object_id
            self._uploads.move_to_end(upload)
        return DONE

    def drop_stalled(self, before: float) -> None:
        while self._uploads:
            upload, (peer, object_id) = next(iter(self._uploads.items()))
            if upload.moved_at >= before:
                return
            self._drop_upload(peer, object_id)

    def wait(self, get: WaitingGet) -> None:
        get.peer.waiting[get] = None
        self._add_unfinished(get.message.id).gets[get] = None

    def take_gets(self, object_id: bytes) -> list[WaitingGet]:
        unfinished = self._unfinished.get(object_id)
        return self._taken(list(unfinished.gets)) if unfinished is not None else []

    def is_waited_for(self, object_id: bytes) -> bool:
        unfinished = self._unfinished.get(object_id)
        return unfinished is not None and bool(unfinished.gets)

    def has_room(self, size: int) -> bool:
        return self.used_bytes + size <= self._limit_bytes

    def sizes(self) -> list[tuple[bytes, int]]:
        return [(object_id, body.size_bytes) for object_id, body in self._objects.items()]

    def surplus(self, wanted_bytes: int) -> float:
        """Return the bytes to drop or spill to free wanted_bytes."""
        return self.used_bytes - min(SPILL_FROM * self._limit_bytes, self._limit_bytes - wanted_bytes)

    def drop(self, object_id: bytes) -> list[WaitingGet]:
        """Drop an object and its uploads, and return its pending gets."""
        body = self._objects.pop(object_id, None)
        if body is not None:
            self._records_bytes -= record_bytes(body.parts)
            if not body.is_on_disk:
                self.used_bytes -= body.size_bytes
            self.spilling.drop(body)
            body.free()
            self._tidy(object_id)
        self._drop_uploads(object_id)
        return self.take_gets(object_id)

    def forget(self, object_id: bytes) -> list[WaitingGet]:
        self._forgotten[object_id] = None
        if len(self._forgotten) > MAX_FORGOTTEN_IDS:
            self._forgotten.popitem(last=False)
        return self.drop(object_id)

    def drop_peer(self, peer: StoragePeer) -> None:
        for object_id in list(peer.uploads):
            self._drop_upload(peer, object_id)
        self._taken(list(peer.waiting))

    def _refusal(self, peer: StoragePeer, message: PutObject) -> Answer | None:
        size = sum(message.parts)
        limit = self._limit_bytes
        if message.id in self._forgotten:
            return StorageResult.MISSING, "the object was released before it was uploaded"
        if self.disk_failure:
            return StorageResult.UNWRITABLE, self.disk_failure
        if message.offset:
            return StorageResult.MISSING, "earlier frames were refused or released"
        if len(message.parts) > MAX_PARTS or min(message.parts, default=0) < 0:
            return StorageResult.INVALID, f"an object has at most {MAX_PARTS} parts, of 0 bytes or more"
        if size > self._max_object_bytes:
            return StorageResult.TOO_LARGE, f"{size} bytes are more than max_object_bytes = {self._max_object_bytes}"
        if size > limit:
            return StorageResult.TOO_LARGE, f"{size} bytes are more than {self._limit_name} = {limit}"
        if not self._has_room(peer.account, size):
            text = f"there is no space for size {size}: {self.used_bytes} of {self._limit_name} = {limit} are used"
            if self.used_bytes + size <= limit:
                reserved = self._reserved[peer.account]
                text = f"unfinished uploads of this key already reserve size {reserved}"
            return StorageResult.FULL, text + self.spilling.why_not
        if self._records_bytes > max(MIN_RECORDS_BYTES, MAX_RECORDS_SHARE * limit):
            text = (
                f"{counted(len(self._objects), 'object')} and their layouts use {counted(self._records_bytes, 'byte')} "
                "in addition to their content"
            )
            return StorageResult.FULL, text
        if len(peer.uploads) >= MAX_UPLOADS_PER_PEER:
            return StorageResult.FULL, f"a peer has at most {MAX_UPLOADS_PER_PEER} unfinished uploads"
        if len(self._objects) >= MAX_OBJECTS:
            return StorageResult.FULL, f"there are {MAX_OBJECTS} objects already"
        return None

    def store(self, object_id: bytes, body: Body) -> None:
        """Add a complete object, regardless of limits."""
        self._objects[object_id] = body
        self._owners.setdefault(owner_of(object_id), set()).add(object_id)
        self._drop_uploads(object_id)
        self._records_bytes += record_bytes(body.parts)
        if not body.is_on_disk:
            self.used_bytes += body.size_bytes
            self.spilling.use(body)

    def _reserve(self, upload: UnfinishedUpload, size: int) -> None:
        if upload.reserved_bytes != size:
            self._reserved[upload.account] += size - upload.reserved_bytes
            upload.reserved_bytes = size
            if not self._reserved[upload.account]:
                del self._reserved[upload.account]

    def _add_unfinished(self, object_id: bytes) -> UnfinishedObject:
        unfinished = self._unfinished.get(object_id)
        if unfinished is None:
            unfinished = self._unfinished[object_id] = UnfinishedObject()
            self._owners.setdefault(owner_of(object_id), set()).add(object_id)
        return unfinished

    def _drop_uploads(self, object_id: bytes) -> None:
        unfinished = self._unfinished.get(object_id)
        for peer in list(unfinished.putters) if unfinished is not None else ():
            self._drop_upload(peer, object_id)

    def _drop_upload(self, peer: StoragePeer, object_id: bytes) -> None:
        upload = peer.uploads.pop(object_id)
        self._uploads.pop(upload, None)
        self.used_bytes -= upload.size_bytes
        self._reserve(upload, 0)
        self._records_bytes -= record_bytes(upload.parts)
        del self._unfinished[object_id].putters[peer]
        self._tidy(object_id)

    def _taken(self, gets: list[WaitingGet]) -> list[WaitingGet]:
        for get in gets:
            del get.peer.waiting[get]
            del self._unfinished[get.message.id].gets[get]
            self._tidy(get.message.id)
        return gets

    def _tidy(self, object_id: bytes) -> None:
        unfinished = self._unfinished.get(object_id)
        if unfinished is not None and (unfinished.putters or unfinished.gets):
            return
        self._unfinished.pop(object_id, None)
        if object_id not in self._objects:
            owner = owner_of(object_id)
            owned = self._owners[owner]
            owned.remove(object_id)
            if not owned:
                del self._owners[owner]


def record_bytes(parts: list[int]) -> int:
    return RECORD_BYTES + 8 * len(parts)
