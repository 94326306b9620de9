"""What one client has in the object storage: values and functions that it puts there, and results that it fetches."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from scaler.client.future import ScalerFuture
from scaler.client.future_table import FutureTable, Profile
from scaler.client.outcomes import load_fetched
from scaler.client.tasks import Held, Upload
from scaler.client.uploads import MAX_COPIED_BYTES, KnownUploads, snapshot
from scaler.errors import LimitError, ObjectLostError, ScalerError
from scaler.protocol.messages import stored_reference
from scaler.serialization import Parts, Serializer, own_buffer, size_of

if TYPE_CHECKING:
    from scaler.object_storage.client import StorageClient


class ClientObjects:
    """The uploads and stored results of one client. `ClientLoop` runs it in its thread."""

    def __init__(
        self, futures: FutureTable, call: Callable[..., object], connect_storage: Callable[[], StorageClient]
    ) -> None:
        """call: calls a function, with arguments, in the client's thread. connect_storage: is called there."""
        self._futures = futures
        self._session = futures.session
        self._call = call
        self._connect_storage = connect_storage
        self._storage: StorageClient | None = None
        self._uploads = KnownUploads()
        self._stored: WeakValueDictionary[bytes, Held] = WeakValueDictionary()
        self._works: set[asyncio.Task[None]] = set()

    # -- from any thread

    def upload(self, parts: Parts) -> Upload:
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

    def wait_uploaded(self, upload: Upload) -> None:
        """Wait until an upload is in the storage. Raises what kept it from there, or LimitError after the timeout."""
        futures = self._futures
        if threading.current_thread() is futures.thread:
            return
        with futures.condition:
            futures.condition.wait_for(
                lambda: upload.ready or upload.error is not None or futures.closed is not None, futures.timeout_seconds
            )
            futures.check_open()
            if upload.error is not None:
                raise upload.error
            if not upload.ready:
                raise LimitError(
                    f"the object storage did not take an object within timeout_seconds={futures.timeout_seconds:g}"
                )

    def hold(self, upload: Upload) -> None:
        """Keep an object until `clear`."""
        with self._futures.condition:
            self._session.hold(upload)
        self._futures.wake()

    def forget(self) -> None:
        """The scheduler lets go of everything. Called under the client's lock."""
        self._uploads.clear()
        for held in list(self._stored.values()):
            held.void = True

    # -- in the client's thread

    def put(self, parts: Parts) -> Upload:
        """Put parts of the client's own into the storage, whatever is there already."""
        upload = self._new_upload(parts)
        self._begin(self._put, upload, parts)
        return upload

    def held(self, identifier: bytes) -> Held:
        """Return what stands for a stored result: when nothing refers to it any more, the scheduler is told."""
        held = self._stored.get(identifier)
        if held is None:
            held = self._stored[identifier] = Held(identifier, self._session.releases)
        return held

    def fetch(
        self, future: ScalerFuture, outcome: int, profile: Profile, held: Held, serializer: Serializer | None
    ) -> None:
        """Resolve a future with its stored result, when that has come."""
        self._begin(self._fetch, future, outcome, profile, held, serializer)

    async def close(self) -> None:
        """Give up what is under way, and end the connection to the storage."""
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        if self._storage is not None:
            self._storage.close()

    def _new_upload(self, parts: Parts) -> Upload:
        identifier = self._futures.ids.object()
        return Upload(identifier, stored_reference(identifier, size_of(parts)), self._session.releases)

    def _begin(self, work: Callable[..., Coroutine[None, None, None]], *args: object) -> None:
        task = asyncio.get_running_loop().create_task(work(*args))
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    def _client(self) -> StorageClient:
        if self._storage is None:
            self._storage = self._connect_storage()
        return self._storage

    async def _put(self, upload: Upload, parts: Parts) -> None:
        try:
            await self._client().put(upload.id, parts)
        except Exception as caught:  # noqa: BLE001 (no memory, say: whoever waits for the upload must hear of it)
            error = (
                caught if isinstance(caught, ScalerError) else ScalerError(f"an object could not be sent: {caught!r}")
            )
            with self._futures.condition:
                dropped = self._session.drop_upload(upload, error)
            self._futures.drop(dropped, error)
            return
        with self._futures.condition:
            self._session.uploaded(upload)
            self._futures.condition.notify_all()
        self._futures.wake()

    async def _fetch(
        self, future: ScalerFuture, outcome: int, profile: Profile, held: Held, serializer: Serializer | None
    ) -> None:
        value: object = None
        exception: BaseException | None
        try:
            # Without a deadline: the result was whole in the storage before its task was said to be done.
            parts = await self._client().get(held.id, 0.0)
            value, exception = load_fetched(outcome, [own_buffer(part) for part in parts], serializer)
        except ScalerError as error:
            exception = ObjectLostError(f"the result of the task is no longer in the object storage: {error}")
        except Exception as error:  # noqa: BLE001 (no memory, say: whoever waits for the result must hear of it)
            exception = ScalerError(f"the result of the task could not be loaded: {error!r}")
        self._futures.resolve(0, [(future, value, exception, profile)], (), [])
