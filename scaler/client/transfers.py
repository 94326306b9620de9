"""Uploads and downloads between one client and the object storage. Equal content is uploaded once.

Keeps copies of uploads in use, because a restarted object storage needs them again. Copies are shared-memory
descriptors or bytes, and above a limit, files.
"""

from __future__ import annotations

import asyncio
import logging
import math
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Protocol, TypeVar, cast
from weakref import WeakSet, WeakValueDictionary

from scaler.client.futures import FutureTable
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import ClientTask, Kept, ObjectUpload, SharedParts, StandIns, UploadEnded, lost_values
from scaler.errors import ClientClosedError, LimitError, ScalerError, UnreachableError
from scaler.host import default_memory_limit_bytes
from scaler.ids import content_id
from scaler.object_storage.body import views_of, write_segment
from scaler.protocol.messages import Welcome, stored_reference
from scaler.serialization import Buffer, Parts, Serializer, dump_value, size_of

DISK_PAUSE_SECONDS = 0.5
"""Pause (seconds) before a lost object is put again while the storage's disk is full."""
MAX_COPIED_BYTES = 1024 * 1024
"""Maximum size of a writable buffer that is copied. For a larger buffer, the caller waits until it is stored."""
MAX_KEPT_DESCRIPTORS = 1_000
"""Maximum number of shared-memory descriptors in one client."""
_SAMPLE_BYTES = 4096
_SAMPLES = 16

_Key = tuple[bytes, ...]
_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class Storage(Protocol):
    address: str

    @property
    def connected(self) -> bool: ...

    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> Awaitable[SharedParts | None]: ...

    def get(self, object_id: bytes) -> Awaitable[list[memoryview]]: ...

    def close(self) -> None: ...


class ObjectTransfers:
    """The storage connection of a client. `upload`, `wait_uploaded`, and `fetch` are thread-safe."""

    def __init__(
        self,
        futures: FutureTable,
        loop: asyncio.AbstractEventLoop,
        call: Callable[..., None],
        connect: Callable[[Welcome, bytes], Storage],
    ) -> None:
        """call: runs a function in the client's thread. connect: connects in the loop, with the client's peer id."""
        self._futures = futures
        self._loop = loop
        self._call = call
        self._connect = connect
        self._welcome: Welcome | None = None
        self._storage: Storage | None = None
        self._keeper = Keeper()
        self.uploads: WeakValueDictionary[bytes, ObjectUpload] = WeakValueDictionary()
        self._by_content: WeakValueDictionary[_Key, ObjectUpload] = WeakValueDictionary()
        """Uploads in use, by content or samples of it.

        Parts above `MAX_COPIED_BYTES` are compared by samples first, because a digest costs as much as sending. So a
        second copy may be uploaded, but never a third.
        """

    # -- from any thread

    def upload(self, parts: Parts) -> ObjectUpload:
        """Start storing parts. Large writable parts are copied if submit must not block; otherwise, this waits as
        `wait_uploaded` does."""
        key = sample = () if size_of(parts) <= MAX_COPIED_BYTES else _sample(parts)
        if not sample or sample in self._by_content:
            key = (content_id(*parts), *(len(part).to_bytes(8, "little") for part in parts))
            known = self._by_content.get(key)
            if known is not None and known.error is None:
                return known
        stable, must_wait = _snapshot(parts, MAX_COPIED_BYTES if self._futures.may_block() else math.inf)
        upload = self._by_content[key] = self._new_upload(parts)
        # The storage client keeps the awaited future alive, which keeps this task alive; the loop has only a weak
        # reference to it.
        self._call(lambda: self._loop.create_task(self._put(upload, stable, self._put_parts, must_wait)))
        if must_wait:
            self.wait_uploaded(upload)
        return upload

    def wait_uploaded(self, upload: ObjectUpload) -> None:
        """Wait until an upload is stored. Raises the error of the upload, or LimitError after the timeout."""
        futures = self._futures
        if threading.current_thread() is futures.thread:
            return
        with futures.condition:
            has_ended = futures.wait_for(lambda: upload.is_stored or upload.error is not None)
            is_away = not has_ended and (self._storage is None or not self._storage.connected)
            if upload.error is not None and not isinstance(upload.error, UnreachableError):
                raise upload.error
            if is_away or upload.error is not None:
                at = "" if self._storage is None else f" at {self._storage.address}"
                waited = f"waited timeout_seconds={futures.timeout_seconds:g}"
                raise UnreachableError(
                    f"no object storage answers{at}: {waited}. Check that this address is reachable from "
                    "here, or set a different one in the scheduler's advertised_object_storage_address"
                )
            if not has_ended:
                raise LimitError(
                    f"the object storage did not accept an object within timeout_seconds={futures.timeout_seconds:g}"
                )

    def fetch(self, identifier: bytes) -> Parts:
        """Return an object of any client. Raises ObjectLostError, and UnreachableError after `timeout_seconds`."""
        seconds = self._futures.timeout_seconds

        async def get() -> Parts:
            async with asyncio.timeout(seconds):
                return [*await self.storage().get(identifier)]

        try:
            return self._futures.run(get(), self._loop)
        except TimeoutError:
            text = f"the object storage did not send an object within timeout_seconds={seconds:g}"
            raise UnreachableError(text) from None

    def forget(self) -> None:
        self._by_content.clear()

    # -- in the client's thread

    def welcomed(self, welcome: Welcome) -> None:
        self._welcome = welcome
        if self._storage is not None and self._storage.address != welcome.object_storage_address:
            moved, self._storage = self._storage, None
            moved.close()

    def storage(self) -> Storage:
        if self._storage is None:
            assert self._welcome is not None, "all objects come from a scheduler or go to one"
            self._storage = self._connect(self._welcome, self._futures.ids.owner)
        return self._storage

    async def get(self, identifier: bytes) -> list[memoryview]:
        return await self._with_storage(lambda storage: storage.get(identifier))

    async def store(self, parts: Parts) -> ObjectUpload:
        upload = self._new_upload(parts)
        await self._put(upload, parts, self._put_parts)
        return upload

    def upload_again(self, parts: Parts) -> ObjectUpload:
        upload = self._new_upload(parts)
        self._loop.create_task(self._put(upload, parts, self.put_again))
        return upload

    def stand_ins(self) -> StandIns:
        """Upload values that pending tasks need and a restarted scheduler has lost."""
        with self._futures.condition:
            lost = lost_values(self._futures.session.pending)
        found: dict[tuple[ClientTask, Serializer | None], ObjectUpload] = {}
        for task, serializer in lost:
            future = cast("TaskFuture", task)
            if future.done() and not future.cancelled() and future.exception() is None:
                found[task, serializer] = self.upload_again(dump_value(future.result(), serializer))
        return found

    async def put_again(self, identifier: bytes, parts: Sequence[Buffer]) -> SharedParts | None:
        while True:
            try:
                return await self._put_parts(identifier, parts)
            except LimitError as error:
                if not error.may_pass:
                    raise
            await asyncio.sleep(DISK_PAUSE_SECONDS)

    async def end(self) -> None:
        while transfers := asyncio.all_tasks() - {asyncio.current_task()}:  # threads may start more during the wait
            for transfer in transfers:
                transfer.cancel()
            await asyncio.gather(*transfers, return_exceptions=True)
        if self._storage is not None:
            self._storage.close()

    async def _with_storage(self, call: Callable[[Storage], Awaitable[_T]]) -> _T:
        """Call the object storage; retry if a restarted scheduler has moved it."""
        while True:
            storage = self.storage()
            try:
                return await call(storage)
            except ClientClosedError:
                if self._storage is storage:
                    raise

    def _new_upload(self, parts: Parts) -> ObjectUpload:
        identifier = self._futures.ids.object()
        upload = ObjectUpload(identifier, self._futures.releases, stored_reference(identifier, size_of(parts)))
        self.uploads[identifier] = upload
        return upload

    async def _put_parts(self, identifier: bytes, parts: Sequence[Buffer]) -> SharedParts | None:
        return await self._with_storage(lambda storage: storage.put(identifier, parts))

    async def _put(
        self,
        upload: ObjectUpload,
        parts: Parts,
        put: Callable[[bytes, Parts], Awaitable[SharedParts | None]],
        may_change: bool = False,
    ) -> None:
        """Store parts, and keep them in case of a loss. may_change: their owner may write to them later."""
        error: ScalerError | None = None
        try:
            memory = await put(upload.id, parts)
            if may_change and memory is None:
                parts = [bytes(part) for part in parts]
            upload.kept = await self._keeper.keep(parts, memory)
        except ScalerError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 (such as MemoryError: waiting threads must receive it)
            error = ScalerError(f"an object could not be sent: {caught!r}")
        self._futures.step(UploadEnded(upload, error))
        self._futures.wake()


class Keeper:
    """Keeps the uploads of one client, in memory up to a limit and then in unnamed files."""

    def __init__(self) -> None:
        self._in_memory: WeakSet[Kept] = WeakSet()
        self._used_bytes = self._descriptors = 0
        """Totals for the uploads in memory, including uploads freed since the last `_count`."""
        self._has_warned = False

    @cached_property
    def _limit_bytes(self) -> int:
        """An eighth of the memory available to the process. Computed late: reading the limits takes milliseconds."""
        return default_memory_limit_bytes() // 4

    async def keep(self, parts: Sequence[Buffer], memory: SharedParts | None) -> Kept:
        """Keep immutable parts, or the shared memory that contains a copy."""
        kept = Kept(parts, memory)
        if not self._has_room(kept):
            self._count()
        if self._has_room(kept):
            self._in_memory.add(kept)
            self._used_bytes += kept.size_bytes
            self._descriptors += memory is not None
        else:
            await asyncio.get_running_loop().run_in_executor(None, self._write, kept)
        return kept

    def _has_room(self, kept: Kept) -> bool:
        return self._used_bytes + kept.size_bytes <= self._limit_bytes and self._descriptors < MAX_KEPT_DESCRIPTORS

    def _count(self) -> None:
        live = list(self._in_memory)
        self._used_bytes = sum(each.size_bytes for each in live)
        self._descriptors = sum(each.memory is not None for each in live)

    def _write(self, kept: Kept) -> None:
        directory = tempfile.gettempdir()
        try:
            [kept.parts] = write_segment(directory, [views_of(kept.read() or ())])
        except OSError as error:
            kept.parts = None
            if not self._has_warned:
                self._has_warned = True
                text = "scaler: large arguments would be lost if the object storage were restarted, because the client"
                _log.warning(
                    "%s keeps %d B of them and cannot write to %s: %s", text, self._limit_bytes, directory, error
                )
        kept.memory = None


def _snapshot(parts: Parts, max_copied_bytes: float) -> tuple[Parts, bool]:
    """Return unchanging parts; True if the caller must wait until they are stored."""
    must_wait = False
    stable: Parts = []
    for part in parts:
        if isinstance(part, memoryview) and not part.readonly:
            if len(part) <= max_copied_bytes:
                stable.append(bytes(part))
                continue
            must_wait = True
        stable.append(part)
    return stable, must_wait


def _sample(parts: Parts) -> _Key:
    digests = []
    for part in parts:
        view = memoryview(part)
        step = max(_SAMPLE_BYTES, len(view) // _SAMPLES)
        samples = [view[at : at + _SAMPLE_BYTES] for at in range(0, len(view), step)]
        digests.append(content_id(len(view).to_bytes(8, "little"), *samples, view[-_SAMPLE_BYTES:]))
    return tuple(digests)
