"""Writes large objects to the backend and deletes released objects. A run's folder has an unguessable name and contains
the time of the run's last heartbeat. The next run with the same backend removes stale folders."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from scaler.errors import ObjectLostError, ScalerError, UnreachableError, UsageError
from scaler.ids import owner_of
from scaler.logs import RateLimitedLog
from scaler.object_storage.backend.folders import ObjectFolder, open_backend
from scaler.object_storage.backend.sealed import KEY_BYTES, Seal, seal_of, sealed, verify
from scaler.object_storage.body import Body
from scaler.object_storage.requests import ByteRange
from scaler.protocol.chunks import chunk_bytes

ALIVE = "alive"
"""Name of the object that contains the time of a run's last heartbeat."""
THREADS = 16
MAX_SEALS = 256
_T = TypeVar("_T")


class BackendClient:
    """Stores objects and fetches chunks. url: folder of a run. Raises ObjectLostError (missing or damaged),
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

    async def put(self, object_id: bytes, parts: Sequence[int], frames: Sequence[memoryview]) -> None:
        """Write an object. Its frames must not change until this has returned."""
        folder = await self._opened()
        content = self._while_open(sealed(self._key, object_id, parts, frames))
        await self._in_thread(partial(folder.put, object_id.hex(), content))

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

    def _while_open(self, content: Iterator[memoryview]) -> Iterator[memoryview]:
        for each in content:
            if self._is_closed:
                raise UnreachableError(f"the connection to {self._url} was closed")
            yield each

    async def get_chunk(self, object_id: bytes, size_bytes: int, number: int) -> ByteRange:
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
            found = self._seals[object_id] = self._in_thread(
                lambda: seal_of(self._key, object_id, size_bytes, folder.read(object_id.hex(), size_bytes))
            )
            if len(self._seals) > MAX_SEALS:
                self._seals.popitem(last=False)
        try:
            return await asyncio.shield(found)
        except Exception:
            self._seals.pop(object_id, None)
            raise

    def _read(self, folder: ObjectFolder, object_id: bytes, size_bytes: int, number: int, seal: Seal) -> bytes:
        start = number * chunk_bytes(size_bytes)
        chunk = folder.read(object_id.hex(), start, min(start + chunk_bytes(size_bytes), size_bytes))
        verify(self._key, object_id, size_bytes, number, seal, chunk)
        return chunk

    async def _check_alive(self, folder: ObjectFolder) -> None:
        try:
            await self._in_thread(partial(folder.read, ALIVE, 0))
        except ObjectLostError:
            text = f"this host finds no data of this run at {self._url}: is this the same filesystem or bucket?"
            raise UnreachableError(text) from None


MAX_WRITES = 2
RETRY_SECONDS = 15.0
"""Pause (seconds) in all writes after a failed write."""
ALIVE_SECONDS = 300.0
"""Interval of heartbeats and of the search for stale runs."""
STALE_SECONDS = 3600.0
"""A run whose last heartbeat is older than this has ended. Must exceed clock differences between hosts."""
DELETES_AT_ONCE = 1000
END_SECONDS = 10.0
"""Maximum time for removing the folder at the end of a run. The next run removes the rest."""
_FOLDER = re.compile(r"run-[0-9a-f]{32}")
_log = logging.getLogger(__name__)


class BackendRun:
    """The folder of this run. Call `begin` before putting objects."""

    def __init__(self, url: str) -> None:
        """Test writing, reading, listing, and deleting. Raises UsageError with advice."""
        self.name = f"run-{secrets.token_hex(16)}"
        self.url = f"{url.rstrip('/')}/{self.name}"
        self.key = os.urandom(KEY_BYTES)
        self._root = open_backend(url)
        probe = f"{self.name}/probe"
        try:
            self._say_alive()
            self._root.put(probe, [memoryview(b"probe")])
            if self._root.read(probe, 1, 3) != b"ro":
                raise UnreachableError("it returns bytes outside the requested range")
            self._root.delete([probe])
            self._root.folders()
        except ScalerError as error:
            raise UsageError(f"backend = {url!r} cannot be used: {error}") from None

    def begin(self, on_written: Callable[[list[tuple[bytes, int]]], None]) -> None:
        """Start writing, on the running loop. on_written: called with (id, size) of written objects."""
        self._on_written = on_written
        self._loop = asyncio.get_running_loop()
        self._client = BackendClient(self.url, self.key)
        self._waiting: OrderedDict[bytes, Body] = OrderedDict()
        self._writing: dict[bytes, Body] = {}
        self._held: dict[bytes, dict[bytes, int]] = {}
        self._doomed: deque[bytes] = deque()
        self._deleting: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._failures = RateLimitedLog(_log, logging.WARNING, self._loop)
        self._left = RateLimitedLog(_log, logging.WARNING, self._loop)
        self._upkeep = self._loop.create_task(self._keep_up())

    def write(self, object_id: bytes, body: Body) -> None:
        if object_id in self._held.get(owner_of(object_id), ()):
            self._loop.call_soon(self._on_written, [(object_id, body.size_bytes)])
        elif object_id not in self._writing:
            self._waiting[object_id] = body
            self._write_next()

    def add(self, rows: Iterable[tuple[bytes, int]]) -> None:
        for object_id, size_bytes in rows:
            self._held.setdefault(owner_of(object_id), {})[object_id] = size_bytes

    def held(self) -> list[tuple[bytes, int]]:
        return [row for objects in self._held.values() for row in objects.items()]

    def forget(self, object_ids: Iterable[bytes], owner: bytes = b"") -> None:
        for object_id in (*object_ids, *self._held.get(owner, ())):
            self._waiting.pop(object_id, None)
            objects = self._held.get(owner_of(object_id), {})
            if objects.pop(object_id, None) is not None:
                self._doomed.append(object_id)
            if not objects:
                self._held.pop(owner_of(object_id), None)
        if self._doomed and self._deleting is None:
            self._deleting = self._loop.create_task(self._delete())

    def _write_next(self) -> None:
        while self._waiting and len(self._writing) < MAX_WRITES and self._pause is None:
            object_id, body = self._waiting.popitem(last=False)
            if not body.is_dropped:
                self._writing[object_id] = body
                put = self._loop.create_task(self._client.put(object_id, body.parts, list(body.all_frames())))
                put.add_done_callback(lambda ended, each=object_id: self._written(each, ended))  # type: ignore[misc]

    def _written(self, object_id: bytes, ended: asyncio.Future[None]) -> None:
        body = self._writing.pop(object_id)
        if ended.cancelled():
            return
        error = ended.exception()
        if error is None:
            self.add([(object_id, body.size_bytes)])
            if not body.is_dropped:
                self._on_written([(object_id, body.size_bytes)])
            else:
                self.forget([object_id])
        elif isinstance(error, ScalerError):
            self._failures.add(f"objects stay in memory because the backend rejects them: {error}")
            self._waiting[object_id] = body
            self._waiting.move_to_end(object_id, last=False)
            self._pause = self._pause or self._loop.call_later(RETRY_SECONDS, self._go_on)
        else:
            raise error
        self._write_next()

    def _go_on(self) -> None:
        self._pause = None
        self._write_next()

    async def _delete(self) -> None:
        while self._doomed:
            batch = [self._doomed.popleft() for _ in range(min(len(self._doomed), DELETES_AT_ONCE))]
            try:
                await self._client.delete(batch)
            except ScalerError as error:
                self._left.add(f"released objects stay in the backend until the run ends: {error}")
        self._deleting = None

    def _say_alive(self) -> None:
        self._root.put(f"{self.name}/{ALIVE}", [memoryview(repr(time.time()).encode())])

    async def _keep_up(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._say_alive)
                await asyncio.to_thread(remove_stale, self._root, self.name, time.time())
            except ScalerError as error:
                self._left.add(f"stale runs cannot be removed from the backend: {error}")
            await asyncio.sleep(ALIVE_SECONDS)

    async def end(self) -> None:
        for task in (self._upkeep, self._deleting, self._pause):
            if task is not None:
                task.cancel()
        self._client.close()
        with suppress(TimeoutError, ScalerError):
            await asyncio.wait_for(asyncio.to_thread(_remove, self._root, self.name), END_SECONDS)


def remove_stale(root: ObjectFolder, own: str, now: float) -> list[str]:
    stale = [name for name in root.folders() if _FOLDER.fullmatch(name) and name != own and _is_stale(root, name, now)]
    for name in stale:
        _log.info("removing objects of an earlier run from the backend: %s", name)
        _remove(root, name)
    return stale


def _is_stale(root: ObjectFolder, name: str, now: float) -> bool:
    try:
        return now - float(root.read(f"{name}/{ALIVE}", 0)) > STALE_SECONDS
    except (ObjectLostError, ValueError):
        return True


def _remove(root: ObjectFolder, name: str) -> None:
    """Remove a folder. The heartbeat is deleted last, so that an interrupted removal is resumed later."""
    names: Sequence[str] = root.names(name)
    root.delete([each for each in names if not each.endswith(f"/{ALIVE}")])
    root.delete([f"{name}/{ALIVE}"])
