"""A store's access to a run's objects in the backend. Belongs to the running loop; threads do the blocking calls."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from scaler.errors import ObjectLostError, UnreachableError
from scaler.object_storage.backend import ObjectFolder, open_backend
from scaler.object_storage.backend.sealed import Seal, seal_of, sealed, verify
from scaler.object_storage.requests import ByteRange
from scaler.protocol.chunks import chunk_bytes

ALIVE = "alive"
"""Name of the object that contains the time of a run's last heartbeat."""
THREADS = 16
MAX_SEALS = 256
_T = TypeVar("_T")


class BackendClient:
    """Puts objects and gets chunks. url: folder of a run. Raises ObjectLostError (missing or damaged),
    UnreachableError (no connection or permission), or UsageError (a library is missing)."""

    connected = True

    def __init__(self, url: str, key: bytes) -> None:
        self._url = url
        self._key = key
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, "backend")
        self._folder: asyncio.Future[ObjectFolder] | None = None
        self._seals: OrderedDict[bytes, asyncio.Future[Seal]] = OrderedDict()
        self._is_closed = False

    def put(self, object_id: bytes, parts: Sequence[int], frames: Sequence[memoryview]) -> asyncio.Task[None]:
        """Write an object. Its frames must not change until the task has finished."""
        return self._loop.create_task(self._put(object_id, parts, frames))

    def get_chunk(self, object_id: bytes, size_bytes: int, number: int) -> asyncio.Task[ByteRange]:
        return self._loop.create_task(self._get_chunk(object_id, size_bytes, number))

    async def delete(self, object_ids: Sequence[bytes]) -> None:
        folder = await self._opened()
        await self._in_thread(partial(folder.delete, [each.hex() for each in object_ids]))

    def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _in_thread(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        if self._is_closed:
            raise UnreachableError(f"the connection to {self._url} was closed")
        return self._loop.run_in_executor(self._threads, call)

    async def _opened(self) -> ObjectFolder:
        if self._folder is None or (self._folder.done() and self._folder.exception() is not None):
            self._folder = self._in_thread(partial(open_backend, self._url))
        return await asyncio.shield(self._folder)

    async def _put(self, object_id: bytes, parts: Sequence[int], frames: Sequence[memoryview]) -> None:
        folder = await self._opened()
        content = self._while_open(sealed(self._key, object_id, parts, frames))
        await self._in_thread(partial(folder.put, object_id.hex(), content))

    def _while_open(self, content: Iterator[memoryview]) -> Iterator[memoryview]:
        for each in content:
            if self._is_closed:
                raise UnreachableError(f"the connection to {self._url} was closed")
            yield each

    async def _get_chunk(self, object_id: bytes, size_bytes: int, number: int) -> ByteRange:
        folder = await self._opened()
        try:
            seal = await self._seal(folder, object_id, size_bytes)
            chunk = await self._in_thread(partial(self._read, folder, object_id, size_bytes, number, seal))
        except ObjectLostError:
            await self._check_alive(folder)
            raise
        return ByteRange(seal.parts, [memoryview(chunk)])

    async def _seal(self, folder: ObjectFolder, object_id: bytes, size_bytes: int) -> Seal:
        found = self._seals.get(object_id)
        if found is None:
            found = self._seals[object_id] = self._in_thread(partial(self._read_seal, folder, object_id, size_bytes))
            if len(self._seals) > MAX_SEALS:
                self._seals.popitem(last=False)
        try:
            return await asyncio.shield(found)
        except Exception:
            self._seals.pop(object_id, None)
            raise

    def _read_seal(self, folder: ObjectFolder, object_id: bytes, size_bytes: int) -> Seal:
        return seal_of(self._key, object_id, size_bytes, folder.read(object_id.hex(), size_bytes))

    def _read(self, folder: ObjectFolder, object_id: bytes, size_bytes: int, number: int, seal: Seal) -> bytes:
        start = number * chunk_bytes(size_bytes)
        chunk = folder.read(object_id.hex(), start, min(start + chunk_bytes(size_bytes), size_bytes))
        verify(self._key, object_id, size_bytes, number, seal, chunk)
        return chunk

    async def _check_alive(self, folder: ObjectFolder) -> None:
        try:
            await self._in_thread(partial(folder.read, ALIVE, 0))
        except ObjectLostError:
            text = f"this host finds nothing of this run at {self._url}: is it the same filesystem or bucket here?"
            raise UnreachableError(text) from None
