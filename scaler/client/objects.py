"""What one client stores and loads: its uploads to the object storage, and the outcomes of its tasks."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from scaler.client.future import ScalerFuture
from scaler.client.futures import FutureTable, Profile, load_outcome
from scaler.client.session import ObjectPinned, TaskSettled, UploadEnded
from scaler.client.tasks import ObjectUpload, RemoteReference
from scaler.errors import LimitError, ObjectLostError, ScalerError
from scaler.ids import content_id
from scaler.protocol.messages import stored_reference
from scaler.serialization import Parts, Serializer, own_buffer, size_of

if TYPE_CHECKING:
    from scaler.object_storage.client import StorageClient

MAX_COPIED_BYTES = 1024 * 1024
"""A larger buffer that its owner could still write to is not copied: the caller waits until it is in the storage."""
_SAMPLE_BYTES = 4096
_SAMPLES = 16
_Key = tuple[bytes, ...]


class ClientObjects:
    """The uploads and stored results of one client. `ClientLoop` runs it in its thread."""

    def __init__(
        self, futures: FutureTable, call: Callable[..., object], connect_storage: Callable[[str, bytes], StorageClient]
    ) -> None:
        """call: calls a function, with arguments, in the client's thread. connect_storage: is called there."""
        self.storage_address = ""
        self._futures = futures
        self._call = call
        self._connect_storage = connect_storage
        self._storage: StorageClient | None = None
        self._lock = threading.Lock()
        self._uploads: WeakValueDictionary[_Key, ObjectUpload] = WeakValueDictionary()
        """By content, or by samples of it, while something refers to them: the same bytes go up once.

        Digests of large parts cost as much as sending them. Samples distinguish those above `MAX_COPIED_BYTES` first,
        and only parts whose samples were seen before are digested in full: so the second copy may still go up, later
        ones do not.
        """
        self._stored: WeakValueDictionary[bytes, RemoteReference] = WeakValueDictionary()

    # -- from any thread

    def upload(self, parts: Parts) -> ObjectUpload:
        """Put parts into the storage; the same content once. It may still be under way when this returns.

        Waits when a part is large and could be changed meanwhile; raises what `wait_uploaded` raises then.
        """
        sample = () if size_of(parts) <= MAX_COPIED_BYTES else _sample(parts)
        key = sample
        if not sample or sample in self._uploads:
            key = (content_id(*parts), *(len(part).to_bytes(8, "little") for part in parts))
            with self._lock:
                known = self._uploads.get(key)
            if known is not None and known.error is None:
                return known
        may_wait = threading.current_thread() is not self._futures.thread
        stable, must_wait = _snapshot(parts, MAX_COPIED_BYTES if may_wait else math.inf)
        upload = self._new_upload(parts)
        with self._lock:
            self._uploads[key] = upload
        self._call(self._begin_put, upload, stable)
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
        with self._lock:
            self._uploads.clear()
        for stored in list(self._stored.values()):
            stored.is_invalid = True

    # -- in the client's thread

    def put(self, parts: Parts) -> ObjectUpload:
        """Put parts of the client's own into the storage, whatever is there already."""
        upload = self._new_upload(parts)
        self._begin_put(upload, parts)
        return upload

    def stored(self, identifier: bytes) -> RemoteReference:
        """Return the reference to a stored result: when nothing refers to it any more, the scheduler releases it."""
        stored = self._stored.get(identifier)
        if stored is None:
            stored = self._stored[identifier] = RemoteReference(identifier, self._futures.releases)
        return stored

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
        return ObjectUpload(identifier, self._futures.releases, stored_reference(identifier, size_of(parts)))

    def _begin_put(self, upload: ObjectUpload, parts: Parts) -> None:
        # A loop refers to its tasks weakly, but the storage client to what they wait for: they live until they end.
        asyncio.get_running_loop().create_task(self._put(upload, parts))

    def _client(self) -> StorageClient:
        if self._storage is None:
            self._storage = self._connect_storage(self.storage_address, self._futures.ids.owner)
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

    async def fetch(
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
            value, exception = load_outcome(outcome, parts[0], serializer, [own_buffer(part) for part in parts])
        except ScalerError as error:
            exception = ObjectLostError(f"the result of the task is no longer in the object storage: {error}")
        except Exception as error:  # noqa: BLE001 (no memory, say: it must reach the threads that wait for the result)
            exception = ScalerError(f"the result of the task could not be loaded: {error!r}")
        self._futures.step(TaskSettled(future), resolved=[(future, value, exception, profile)])


def _snapshot(parts: Parts, max_copied_bytes: float) -> tuple[Parts, bool]:
    """Return parts that do not change. True: only if the caller waits until they are in the storage.

    max_copied_bytes: a part that its owner could write to is copied up to this size.
    """
    must_wait = False
    stable: Parts = []
    for part in parts:
        is_fixed = not isinstance(part, memoryview) or part.readonly
        is_large = len(part) > max_copied_bytes
        must_wait |= is_large and not is_fixed
        stable.append(part if is_fixed or is_large else bytes(part))
    return stable, must_wait


def _sample(parts: Parts) -> _Key:
    digests = []
    for part in parts:
        view = memoryview(part)
        step = max(_SAMPLE_BYTES, len(view) // _SAMPLES)
        samples = [view[at : at + _SAMPLE_BYTES] for at in range(0, len(view), step)]
        digests.append(content_id(len(view).to_bytes(8, "little"), *samples, view[-_SAMPLE_BYTES:]))
    return tuple(digests)
