"""Gets chunks of objects from other stores, and puts objects into the object storage or its backend."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from scaler.errors import LimitError, ObjectLostError, RefusedError, ScalerError, UnreachableError, UsageError
from scaler.grammar import counted
from scaler.ids import show
from scaler.logs import RateLimitedLog
from scaler.object_storage import commands as c
from scaler.object_storage.body import Body, assemble
from scaler.object_storage.client import StorageClient
from scaler.object_storage.core import StorageCore
from scaler.object_storage.exchange import ChunkRun
from scaler.object_storage.messages import StoreAddress
from scaler.object_storage.requests import ByteRange
from scaler.object_storage.shared_memory import MIN_SHARED_BYTES, GrowingMemory
from scaler.protocol.chunks import LARGE_BYTES, chunk_bytes, chunk_count

if TYPE_CHECKING:
    from scaler.object_storage.backend.run import BackendClient

SOURCE_SECONDS = 3.0
"""Seconds that a source may be away, unreachable, or silent before its runs fail."""
LOOK_SECONDS = 0.25
OBJECT_STORAGE = 0

_log = logging.getLogger(__name__)


class Transfers:
    """Transfers to one store. Belongs to the running loop. feed: passes inputs to the store's core. connect: connects
    to another store, or to the object storage (None)."""

    def __init__(
        self,
        core: StorageCore,
        feed: Callable[[Sequence[c.StorageInput]], None],
        connect: Callable[[StoreAddress | None], StorageClient],
    ) -> None:
        self._core = core
        self._exchange = core.exchange
        self._feed = feed
        self._connect = connect
        self._sources: dict[int, StorageClient] = {}
        self._backends: dict[int, BackendClient] = {}
        """Backend clients by store number, at most one. The next run's backend has a different number."""
        self._pushes: set[asyncio.Task[None]] = set()
        self._heard: dict[int, tuple[object, float]] = {}
        """Last progress value of each active source, and the time of its last change."""
        self._loop = asyncio.get_running_loop()
        self._look_timer: asyncio.TimerHandle | None = None
        self._failures = RateLimitedLog(_log, logging.WARNING, self._loop)

    def close_gone(self) -> None:
        """Disconnect from departed stores."""
        for number in [number for number in self._sources if number and number not in self._exchange.stores]:
            self._sources.pop(number).close()
        for number in [number for number in self._backends if number not in self._exchange.stores]:
            self._backends.pop(number).close()

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        for backend in self._backends.values():
            backend.close()
        self._sources.clear()
        self._backends.clear()
        self._exchange.fetches.clear()
        if self._look_timer is not None:
            self._look_timer.cancel()

    def _source(self, number: int) -> StorageClient:
        source = self._sources.get(number)
        if source is None:
            address = self._exchange.stores[number] if number else None
            source = self._sources[number] = self._connect(address)
        return source

    def _backend(self, backend: StoreAddress) -> BackendClient:
        client = self._backends.get(backend.number)
        if client is None:
            from scaler.object_storage.backend.run import BackendClient  # noqa: PLC0415 (where there is one)

            client = self._backends[backend.number] = BackendClient(backend.address, backend.backend_key)
        return client

    def get(self, run: ChunkRun) -> None:
        """Request the chunks of a run. A small object, or one of unknown size, is requested in one piece."""
        backend = self._exchange.backend
        if backend is not None and backend.number == run.source:
            client = self._backend(backend)
            run.left = set(range(run.first, run.first + run.count))
            for number in sorted(run.left):
                chunk = self._loop.create_task(client.get_chunk(run.id, run.size_bytes, number))
                chunk.add_done_callback(partial(self._chunk_ended, run, number, client))
            return
        source = self._source(run.source)
        size = chunk_bytes(run.size_bytes)
        chunks = range(1) if _comes_at_once(run) else range(run.first, run.first + run.count)
        run.left = set(chunks)
        if self._look_timer is None:
            self._look_later()
        for number in chunks:
            wanted = run.size_bytes if _comes_at_once(run) else min(size, run.size_bytes - number * size)
            future = source.get_range(run.id, number * size, wanted)
            future.add_done_callback(partial(self._chunk_ended, run, number, source))

    def _chunk_ended(
        self, run: ChunkRun, number: int, source: StorageClient | BackendClient, future: asyncio.Future[ByteRange]
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if not self._exchange.is_active(run):
            return  # it has failed or is no longer wanted
        if error is None:
            error = self._write(run, number, future.result())
        if error is None:
            run.left.discard(number)
            if not run.left:
                self._feed([c.RunCame(run, sum(future.result().parts))])
            return
        if not isinstance(error, ScalerError):
            raise error
        if isinstance(error, LimitError):
            self._feed([c.FetchFailed(run.id, str(error))])
            return
        self._failures.add(f"object {show(run.id)} did not arrive from store {run.source}: {error}")
        # A source that answered lacks the object. The object storage never counts as unreachable, because it has no
        # alternative.
        is_out_of_reach = not source.connected or isinstance(error, RefusedError | UnreachableError | UsageError)
        is_unreachable = run.source != OBJECT_STORAGE and is_out_of_reach
        self._feed([c.RunFailed(run, is_unreachable)])

    def _look_later(self) -> None:
        self._look_timer = self._loop.call_later(LOOK_SECONDS, self._look, self._loop.time() + LOOK_SECONDS)

    def _look(self, due_at: float) -> None:
        """Give up on stores that owe a reply and were silent for SOURCE_SECONDS, although still connected."""
        now = self._loop.time()
        stood_still = now - due_at > LOOK_SECONDS  # this process stalled, so received data may still be unread
        asked = {run.source for run in self._runs()} & self._sources.keys() - {OBJECT_STORAGE}
        self._heard = {number: self._heard[number] for number in asked if number in self._heard}
        for number in asked:
            source = self._sources[number]
            heard, since = self._heard.get(number, (None, now))
            if stood_still or not source.connected or heard != source.heard:
                self._heard[number] = source.heard, now
            elif now - since >= SOURCE_SECONDS:
                self._give_up(number)
        self._look_timer = None
        if any(self._runs()):
            self._look_later()

    def _runs(self) -> Iterator[ChunkRun]:
        """Yield the runs whose chunks were requested."""
        for fetch in self._exchange.fetches.values():
            yield from (run for run in fetch.runs if run.left)

    def _give_up(self, number: int) -> None:
        runs = [run for run in self._runs() if run.source == number]
        self._sources.pop(number).close()
        self._failures.add(f"store {number} sent nothing for {SOURCE_SECONDS:g} s: {counted(len(runs), 'run')} failed")
        self._feed([c.RunFailed(run, is_unreachable=True) for run in runs])

    def _write(self, run: ChunkRun, number: int, found: ByteRange) -> BaseException | None:
        size = sum(found.parts)
        if run.size_bytes and size != run.size_bytes:
            return ObjectLostError(f"its size is {size}, not {run.size_bytes}")
        fetch = self._exchange.fetches[run.id]
        if size < MIN_SHARED_BYTES and _comes_at_once(run):
            fetch.small = Body(found.parts, found.frames, size)
            return None
        try:
            if fetch.memory is None and not self._core.reserve(run.id, GrowingMemory(found.parts), size):
                return LimitError(f"this host's store has no space for an object of size {size}")
            assert fetch.memory is not None, "it has been reserved"
            fetch.memory.write(number * chunk_bytes(size), found.frames)
        except OSError as error:  # no descriptors or memory left here, so the source is not at fault
            return LimitError(f"this host's store cannot hold an object of size {size}: {error.strerror}")
        except ValueError as error:
            return ObjectLostError(str(error))
        return None

    def push(self, object_ids: Iterable[bytes]) -> list[asyncio.Task[None]]:
        """Put objects into the backend, or into the object storage if there is no backend or the backend fails."""
        bodies = [(object_id, self._core.objects.body(object_id)) for object_id in object_ids]
        loop = asyncio.get_running_loop()
        puts = [loop.create_task(self._push(object_id, body)) for object_id, body in bodies if body is not None]
        for put in puts:
            self._pushes.add(put)
            put.add_done_callback(self._pushes.discard)
        return puts

    async def _push(self, object_id: bytes, body: Body) -> None:
        frames, size, backend = list(body.all_frames()), body.size_bytes, self._exchange.backend
        if backend is not None and size >= LARGE_BYTES:
            try:
                await self._backend(backend).put(object_id, body.parts, frames)
            except ScalerError as error:
                self._failures.add(f"object {show(object_id)} is not in the backend: {error}")
            else:
                self._feed([c.WrittenToBackend([(object_id, size)])])
                return
        try:
            await self._source(OBJECT_STORAGE).put(object_id, assemble(body.parts, frames))
        except ScalerError as error:
            self._failures.add(f"object {show(object_id)} is not in the object storage: {error}")
            self._loop.call_later(SOURCE_SECONDS, self._report_again, object_id)

    def _report_again(self, object_id: bytes) -> None:
        body = self._core.objects.body(object_id)
        if body is not None:
            self._exchange.put(object_id, body.size_bytes)
            self._feed(())


def _comes_at_once(run: ChunkRun) -> bool:
    is_whole = not run.first and run.count >= chunk_count(run.size_bytes)
    return is_whole and run.size_bytes < MIN_SHARED_BYTES
