"""What one client has in the object storage: objects and functions that it uploads, and results that it fetches.

`ObjectReference`, which `Client.send_object` returns, stands for such an object in the arguments of tasks.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from scaler.client.future import ScalerFuture
from scaler.client.futures import FutureTable, Profile
from scaler.client.outcomes import load_fetched
from scaler.client.session import ObjectPinned, ResultFetched, UploadEnded
from scaler.client.tasks import InStorage, ObjectUpload, RemoteReference
from scaler.errors import LimitError, ObjectLostError, ScalerError, UsageError
from scaler.ids import content_id
from scaler.protocol.messages import stored_reference
from scaler.serialization import Collection, Parts, Serializer, own_buffer, size_of

if TYPE_CHECKING:
    from scaler.object_storage.client import StorageClient

MAX_COPIED_BYTES = 1024 * 1024
"""A larger buffer that its owner could still write to is not copied: the caller waits until it is in the storage."""
_SAMPLE_BYTES = 4096
_SAMPLES = 16

_Key = tuple[bytes, ...]


class SharedValue(InStorage):
    """A value of a graph that several of its tasks need. It only ever stands in the arguments of those."""

    def __init__(self, upload: ObjectUpload) -> None:
        self._upload = upload

    @property
    def upload(self) -> ObjectUpload:
        """The value in the storage."""
        return self._upload

    def known_value(self, _collection: Collection, /) -> None:
        """Return None: the value is in the storage."""


class ObjectReference(InStorage):
    """Stands for an object that was sent once, in the arguments of any number of tasks: they get the object.

    Valid until the client that made it is cleared or disconnected.
    """

    how_to_send = "give it to submit as an argument, alone or inside one, and the task gets the object"

    def __init__(self, owner: object, upload: ObjectUpload, name: str, size_bytes: int) -> None:
        self._owner = owner
        self._upload: ObjectUpload | None = upload
        self.name = name
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        if self._upload is None:
            return f"<ObjectReference {self.name!r} cleared>"
        return f"<ObjectReference {self.name!r} {self.size_bytes} bytes>"

    @property
    def upload(self) -> ObjectUpload:
        """The object in the storage. Raises UsageError when the reference is invalid."""
        if self._upload is None:
            raise UsageError(f"object {self.name!r} was cleared: send it again")
        return self._upload

    def invalidate(self) -> None:
        """The client was cleared: the object is gone."""
        self._upload = None

    def known_value(self, collection: Collection, /) -> None:
        """Return None: the object is in the storage. Raises UsageError when this client cannot use it."""
        if self._owner is not collection.owner:
            raise UsageError(f"{self!r} belongs to another client: send the object with this one")
        _ = self.upload


class ClientObjects:
    """The uploads and stored results of one client. `ClientLoop` runs it in its thread."""

    def __init__(
        self, futures: FutureTable, call: Callable[..., object], connect_storage: Callable[[], StorageClient]
    ) -> None:
        """call: calls a function, with arguments, in the client's thread. connect_storage: is called there."""
        self._futures = futures
        self._call = call
        self._connect_storage = connect_storage
        self._storage: StorageClient | None = None
        self._uploads = KnownUploads()
        self._stored: WeakValueDictionary[bytes, RemoteReference] = WeakValueDictionary()

    # -- from any thread

    def upload(self, parts: Parts) -> ObjectUpload:
        """Put parts into the storage; the same content once. It may still be under way when this returns.

        Waits when a part is large and could be changed meanwhile; raises what `wait_uploaded` raises then.
        """
        key = self._uploads.key_of(parts)
        known = self._uploads.find(key)
        if known is not None and known.error is None:
            return known
        may_wait = threading.current_thread() is not self._futures.thread
        kept, must_wait = snapshot(parts, MAX_COPIED_BYTES if may_wait else math.inf)
        upload = self._new_upload(parts)
        self._uploads.remember(key, parts, upload)
        self._call(self._begin, self._put, upload, kept)
        if must_wait:
            self.wait_uploaded(upload)
        return upload

    def wait_uploaded(self, upload: ObjectUpload) -> None:
        """Wait until an upload is in the storage. Raises the error of the upload, or LimitError after the timeout."""
        futures = self._futures
        if threading.current_thread() is futures.thread:
            return
        with futures.condition:
            has_ended = futures.wait_for(lambda: upload.is_stored or upload.error is not None)
            if upload.error is not None:
                raise upload.error
            if not has_ended:
                raise LimitError(
                    f"the object storage did not take an object within timeout_seconds={futures.timeout_seconds:g}"
                )

    def pin(self, upload: ObjectUpload) -> None:
        """Keep an object until `clear`."""
        with self._futures.condition:
            self._futures.put(ObjectPinned(upload))

    def forget(self) -> None:
        """The scheduler releases everything. Called under the client's lock."""
        self._uploads.clear()
        for stored in list(self._stored.values()):
            stored.is_invalid = True

    # -- in the client's thread

    def put(self, parts: Parts) -> ObjectUpload:
        """Put parts of the client's own into the storage, whatever is there already."""
        upload = self._new_upload(parts)
        self._begin(self._put, upload, parts)
        return upload

    def stored(self, identifier: bytes) -> RemoteReference:
        """Return the reference to a stored result: when nothing refers to it any more, the scheduler releases it."""
        stored = self._stored.get(identifier)
        if stored is None:
            stored = self._stored[identifier] = RemoteReference(identifier, self._futures.releases)
        return stored

    def fetch(
        self,
        future: ScalerFuture,
        outcome: int,
        profile: Profile,
        stored: RemoteReference,
        serializer: Serializer | None,
    ) -> None:
        """Resolve a future with its stored result, when that has come."""
        self._begin(self._fetch, future, outcome, profile, stored, serializer)

    async def close(self) -> None:
        """Give up what is under way, and end the connection to the storage. Called when the loop ends."""
        works = asyncio.all_tasks() - {asyncio.current_task()}
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        if self._storage is not None:
            self._storage.close()

    def _new_upload(self, parts: Parts) -> ObjectUpload:
        identifier = self._futures.ids.object()
        return ObjectUpload(identifier, stored_reference(identifier, size_of(parts)), self._futures.releases)

    def _begin(self, work: Callable[..., Coroutine[None, None, None]], *args: object) -> None:
        # The loop refers to its tasks weakly, and the storage client to what they wait for: they live until they end.
        asyncio.get_running_loop().create_task(work(*args))

    def _client(self) -> StorageClient:
        if self._storage is None:
            self._storage = self._connect_storage()
        return self._storage

    async def _put(self, upload: ObjectUpload, parts: Parts) -> None:
        error: ScalerError | None = None
        try:
            await self._client().put(upload.id, parts)
        except ScalerError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 (no memory, say: it must reach the threads that wait for the upload)
            error = ScalerError(f"an object could not be sent: {caught!r}")
        self._futures.step(UploadEnded(upload, error))
        self._futures.wake()

    async def _fetch(
        self,
        future: ScalerFuture,
        outcome: int,
        profile: Profile,
        stored: RemoteReference,
        serializer: Serializer | None,
    ) -> None:
        value: object = None
        exception: BaseException | None
        try:
            # Without a deadline: the result was whole in the storage before its task was reported as done.
            parts = await self._client().get(stored.id, 0.0)
            value, exception = load_fetched(outcome, [own_buffer(part) for part in parts], serializer)
        except ScalerError as error:
            exception = ObjectLostError(f"the result of the task is no longer in the object storage: {error}")
        except Exception as error:  # noqa: BLE001 (no memory, say: it must reach the threads that wait for the result)
            exception = ScalerError(f"the result of the task could not be loaded: {error!r}")
        self._futures.step(ResultFetched(future), resolved=[(future, value, exception, profile)])


class KnownUploads:
    """Uploads by content, while something refers to them: the same bytes go up once.

    Digests of large parts cost as much as sending them. Those above `MAX_COPIED_BYTES` are told apart by samples first,
    and only parts whose samples were seen before are digested in full: so the second copy may still go up, later
    ones do not.
    """

    __slots__ = ("_lock", "_sampled", "_uploads")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads: WeakValueDictionary[_Key, ObjectUpload] = WeakValueDictionary()
        self._sampled: WeakValueDictionary[_Key, ObjectUpload] = WeakValueDictionary()

    def key_of(self, parts: Parts) -> _Key | None:
        """Return the key of these parts, or None when nothing like them is there."""
        if size_of(parts) <= MAX_COPIED_BYTES or _sample(parts) in self._sampled:
            return (content_id(*parts), *(len(part).to_bytes(8, "little") for part in parts))
        return None

    def find(self, key: _Key | None) -> ObjectUpload | None:
        with self._lock:
            return None if key is None else self._uploads.get(key)

    def remember(self, key: _Key | None, parts: Parts, upload: ObjectUpload) -> None:
        with self._lock:
            if key is not None:
                self._uploads[key] = upload
            else:
                self._sampled[_sample(parts)] = upload

    def clear(self) -> None:
        """Nothing that is there may be used again."""
        with self._lock:
            self._uploads.clear()
            self._sampled.clear()


def snapshot(parts: Parts, max_copied_bytes: float) -> tuple[Parts, bool]:
    """Return parts that do not change. True: only if the caller waits until they are in the storage.

    max_copied_bytes: a part that its owner could write to is copied up to this size.
    """
    must_wait = False
    kept: Parts = []
    for part in parts:
        if isinstance(part, memoryview) and not part.readonly:
            if len(part) > max_copied_bytes:
                must_wait = True
            else:
                part = bytes(part)  # noqa: PLW2901
        kept.append(part)
    return kept, must_wait


def _sample(parts: Parts) -> _Key:
    digests = []
    for part in parts:
        view = memoryview(part)
        step = max(_SAMPLE_BYTES, len(view) // _SAMPLES)
        samples = [view[at : at + _SAMPLE_BYTES] for at in range(0, len(view), step)]
        digests.append(content_id(len(view).to_bytes(8, "little"), *samples, view[-_SAMPLE_BYTES:]))
    return tuple(digests)
