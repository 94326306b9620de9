"""The objects, the uploads that become objects, and the gets that wait for them: layout, names, memory.

Pure. Laws (see `check`): used memory is the sizes of all bodies, each once, and of all uploads, whole from their first
frame on, and never above the limit; a body has as many names as ids stand for it; a whole object has no uploads. Ids
are never reused (`ids.py`), so a forgotten id stays forgotten, however late its bytes come.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scaler.ids import owner_of
from scaler.object_storage.layout import MAX_FRAMES_PER_MESSAGE, MAX_PARTS
from scaler.protocol.messages import MAX_CHUNK_BYTES, PutObject, StorageResult

MAX_OBJECTS = 10_000_000
MAX_UPLOADS_PER_PEER = 1_000
MAX_FORGOTTEN_IDS = 65_536
"""How many forgotten ids are remembered, so that bytes that come late are refused."""

Answer = tuple[StorageResult, str]
DONE: Answer = (StorageResult.OK, "")


class Memory(Protocol):
    """All of an object in shared memory: `shared_memory.SharedMemory` is one. Freed with its last reference."""

    def fileno(self) -> int: ...

    def frames(self) -> list[memoryview]:
        """Return the bytes as frames for messages."""


@dataclass(slots=True, eq=False)
class Body:
    """The bytes of one object. names: how many ids stand for them; at zero they are freed.

    A body in shared memory has its frames from the first reader on that cannot share it.
    """

    parts: list[int]
    frames: list[memoryview]
    size_bytes: int
    memory: Memory | None = None
    names: int = 0

    def free(self) -> None:
        """Let go of the bytes, although the body itself may still wait to be sent."""
        self.frames = []
        self.memory = None


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


@dataclass(slots=True, eq=False)
class WaitingGet:
    """A get of an object that is not whole yet."""

    peer: bytes
    request: int
    id: bytes
    deadline: float
    shared: bool = False
    answered: bool = False


class SetsByKey(dict[bytes, set[bytes]]):
    """Sets that are not empty. Adding a member twice, and discarding one that is not there, are fine."""

    __slots__ = ()

    def add(self, key: bytes, member: bytes) -> None:
        self.setdefault(key, set()).add(member)

    def discard(self, key: bytes, member: bytes) -> None:
        members = self.get(key)
        if members is not None:
            members.discard(member)
            if not members:
                del self[key]


class StorageTable:
    """Every object and unfinished upload, within limits; see `StorageCore` for those."""

    def __init__(self, limit_bytes: int, max_object_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = math.inf if limit_bytes < 0 else limit_bytes
        self._max_object_bytes = math.inf if max_object_bytes < 0 else max_object_bytes
        self._objects: dict[bytes, StoredObject] = {}
        self._uploads: dict[bytes, dict[bytes, UnfinishedUpload]] = {}  # by id, then by peer
        self._uploaders = SetsByKey()  # ids by peer
        self._owners = SetsByKey()  # ids by owner
        self._forgotten: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def body(self, object_id: bytes) -> Body | None:
        """Return the bytes of a whole object; None when it is not whole or not there."""
        stored = self._objects.get(object_id)
        return None if stored is None else stored.body

    def is_forgotten(self, object_id: bytes) -> bool:
        """Tell whether this very id was forgotten, as far as that is remembered."""
        return object_id in self._forgotten

    def owned_by(self, owner: bytes) -> list[bytes]:
        """Return the ids of this owner, whole or not."""
        return list(self._owners.get(owner, ()))

    def is_from(self, object_id: bytes, peer: bytes) -> bool:
        """Tell whether this peer put, linked, or is putting this object."""
        stored = self._objects.get(object_id)
        return stored.putter == peer if stored is not None else peer in self._uploads.get(object_id, ())

    def put(
        self, peer: bytes, message: PutObject, attachments: Sequence[memoryview], memory: Memory | None = None
    ) -> Answer:
        """Add frames, which must continue what this peer has put of the object before. Keeps the very attachments.

        memory: has all of the object. Without any bytes, an object is only accepted: its memory counts from then on.
        """
        object_id = message.id
        if object_id in self._objects:
            return DONE  # a repeat, or another peer was faster: the same bytes
        upload = self._uploads.get(object_id, {}).get(peer)
        if upload is None:
            refusal = self._refusal(peer, message)
            if refusal is not None:
                return refusal
            upload = UnfinishedUpload(message.parts, sum(message.parts))
            self._uploads.setdefault(object_id, {})[peer] = upload
            self._uploaders.add(peer, object_id)
            self._owners.add(owner_of(object_id), object_id)
            self.used_bytes += upload.size_bytes
        size = upload.size_bytes if memory is not None else sum(frame.nbytes for frame in attachments)
        end = upload.received_bytes + size
        fits = (
            message.offset == upload.received_bytes
            and message.parts == upload.parts
            and end <= upload.size_bytes
            and (size <= MAX_CHUNK_BYTES or memory is not None)
            and len(attachments) <= MAX_FRAMES_PER_MESSAGE
            and (size > 0 or upload.received_bytes == 0)
        )
        if not fits:
            self._drop_upload(object_id, peer)
            return StorageResult.INVALID, (
                f"frames of {size} bytes at {message.offset} do not continue an object of {upload.size_bytes} bytes,"
                f" of which {upload.received_bytes} have come"
            )
        upload.frames.extend(frame for frame in attachments if frame.nbytes)
        upload.received_bytes = end
        if end == upload.size_bytes:
            self._drop_upload(object_id, peer)
            self._store(object_id, StoredObject(Body(upload.parts, upload.frames, upload.size_bytes, memory), peer))
        return DONE

    def link(self, peer: bytes, object_id: bytes, target: bytes) -> Answer:
        """Make an id another name of a whole object."""
        body = self.body(target)
        if object_id in self._objects:
            return DONE
        if object_id in self._forgotten:
            return StorageResult.MISSING, "the object was forgotten before it was linked"
        if body is None:
            return StorageResult.MISSING, "there is no such object to link"
        if len(self._objects) >= MAX_OBJECTS:
            return StorageResult.FULL, f"there are {MAX_OBJECTS} objects already"
        self._store(object_id, StoredObject(body, peer))
        return DONE

    def drop(self, object_id: bytes) -> None:
        """Drop an object and its uploads. Its bytes go with their last name, even if they wait to be sent."""
        stored = self._objects.pop(object_id, None)
        if stored is not None:
            body = stored.body
            body.names -= 1
            if not body.names:
                self.used_bytes -= body.size_bytes
                body.free()
        self._drop_uploads(object_id)
        self._owners.discard(owner_of(object_id), object_id)

    def forget(self, object_id: bytes) -> None:
        """Drop an object and refuse it from now on."""
        self.drop(object_id)
        self._forgotten[object_id] = None
        if len(self._forgotten) > MAX_FORGOTTEN_IDS:
            self._forgotten.popitem(last=False)

    def drop_uploads_of(self, peer: bytes) -> None:
        """Drop what this peer has not put to its end."""
        for object_id in list(self._uploaders.get(peer, ())):
            self._drop_upload(object_id, peer)

    def _refusal(self, peer: bytes, message: PutObject) -> Answer | None:
        size = sum(message.parts)
        limit = self._limit_bytes
        if message.id in self._forgotten:
            return StorageResult.MISSING, "the object was forgotten before it was put"
        if message.offset:
            return StorageResult.MISSING, "the frames before these were refused or forgotten"
        if len(message.parts) > MAX_PARTS or min(message.parts, default=0) < 0:
            return StorageResult.INVALID, f"an object has at most {MAX_PARTS} parts, of 0 bytes or more"
        if size > self._max_object_bytes:
            return StorageResult.TOO_LARGE, f"{size} bytes are more than max_object_bytes = {self._max_object_bytes}"
        if size > limit:
            return StorageResult.TOO_LARGE, f"{size} bytes are more than memory_limit_bytes = {limit}"
        if self.used_bytes + size > limit:
            text = f"{size} bytes more do not fit: {self.used_bytes} of memory_limit_bytes = {limit} are used"
            return StorageResult.FULL, text
        if len(self._uploaders.get(peer, ())) >= MAX_UPLOADS_PER_PEER:
            return StorageResult.FULL, f"a peer has at most {MAX_UPLOADS_PER_PEER} unfinished uploads"
        if len(self._objects) >= MAX_OBJECTS:
            return StorageResult.FULL, f"there are {MAX_OBJECTS} objects already"
        return None

    def _store(self, object_id: bytes, stored: StoredObject) -> None:
        self._drop_uploads(object_id)
        self._objects[object_id] = stored
        self._owners.add(owner_of(object_id), object_id)
        stored.body.names += 1
        if stored.body.names == 1:
            self.used_bytes += stored.body.size_bytes

    def _drop_uploads(self, object_id: bytes) -> None:
        for peer in list(self._uploads.get(object_id, ())):
            self._drop_upload(object_id, peer)

    def _drop_upload(self, object_id: bytes, peer: bytes) -> None:
        uploads = self._uploads[object_id]
        self.used_bytes -= uploads.pop(peer).size_bytes
        if not uploads:
            del self._uploads[object_id]
            self._owners.discard(owner_of(object_id), object_id)
        self._uploaders.discard(peer, object_id)

    def check(self, peers: Collection[bytes]) -> None:
        """Assert the laws at the top of this module, and that all uploads are of these peers. Slow: for tests."""
        assert self._uploaders.keys() <= set(peers)
        names = Counter(stored.body for stored in self._objects.values())
        assert all(body.names == count for body, count in names.items())
        assert all(sum(frame.nbytes for frame in body.frames) == body.size_bytes for body in names if not body.memory)
        uploads = {(key, peer): upload for key, by_peer in self._uploads.items() for peer, upload in by_peer.items()}
        sizes = sum(body.size_bytes for body in names) + sum(upload.size_bytes for upload in uploads.values())
        assert self.used_bytes == sizes <= self._limit_bytes
        assert set(uploads) == {(key, peer) for peer, keys in self._uploaders.items() for key in keys}
        assert not self._objects.keys() & self._uploads.keys()
        assert set().union(*self._owners.values()) == self._objects.keys() | self._uploads.keys()
        assert len(self._forgotten) <= MAX_FORGOTTEN_IDS


class WaitingGets:
    """The waiting gets of all peers, by id and by deadline. Adding and taking out one is O(log n)."""

    def __init__(self) -> None:
        self._by_id: dict[bytes, dict[WaitingGet, None]] = {}
        self._owners = SetsByKey()
        self._heap: list[tuple[float, int, WaitingGet]] = []
        self._order = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, object_id: bytes) -> bool:
        return object_id in self._by_id

    def add(self, get: WaitingGet) -> None:
        self._by_id.setdefault(get.id, {})[get] = None
        self._owners.add(owner_of(get.id), get.id)
        heapq.heappush(self._heap, (get.deadline, next(self._order), get))
        self._count += 1

    def owned_by(self, owner: bytes) -> list[bytes]:
        """Return the ids of this owner that are waited for."""
        return list(self._owners.get(owner, ()))

    def discard(self, get: WaitingGet) -> None:
        """Take one get out."""
        same = self._by_id[get.id]
        del same[get]
        if not same:
            del self._by_id[get.id]
            self._owners.discard(owner_of(get.id), get.id)
        self._answered(get)

    def pop_all(self, object_id: bytes) -> list[WaitingGet]:
        """Take out and return all gets of one object, in the order of their arrival."""
        gets = list(self._by_id.pop(object_id, ()))
        if gets:
            self._owners.discard(owner_of(object_id), object_id)
            self._answered(*gets)
        return gets

    def pop_expired(self, now: float) -> list[WaitingGet]:
        """Take out and return all gets whose deadline is over, in the order of their deadlines."""
        expired: list[WaitingGet] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            get = self._heap[0][2]
            self.discard(get)
            expired.append(get)
        return expired

    def next_deadline(self) -> float | None:
        """Return when the next get expires; None when none waits."""
        while self._heap and self._heap[0][2].answered:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _answered(self, *gets: WaitingGet) -> None:
        for get in gets:
            get.answered = True
        self._count -= len(gets)
        # Answered gets stay in the heap until their deadline comes up: cleaned away when they are the majority.
        if len(self._heap) > 64 and len(self._heap) > 2 * self._count:
            self._heap = [entry for entry in self._heap if not entry[2].answered]
            heapq.heapify(self._heap)
