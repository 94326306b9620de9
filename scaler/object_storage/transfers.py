"""Fetches objects from other stores: the shell of `exchange.Exchange`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from scaler.errors import LimitError, ObjectLostError, RefusedError, ScalerError, UnreachableError, UsageError
from scaler.grammar import counted
from scaler.ids import show
from scaler.logs import RateLimitedLog
from scaler.object_storage import commands as c
from scaler.object_storage import exchange as x
from scaler.object_storage.body import Body, assemble
from scaler.object_storage.client import StorageClient
from scaler.object_storage.core import StorageCore
from scaler.object_storage.messages import PushObjects, SoleCopies, StoreAddress
from scaler.object_storage.requests import ByteRange
from scaler.object_storage.shared_memory import MIN_SHARED_BYTES, GrowingMemory
from scaler.protocol.chunks import LARGE_BYTES, chunk_bytes, chunk_count
from scaler.protocol.messages import Message

if TYPE_CHECKING:
    from scaler.object_storage.backend.run import BackendClient

SOURCE_SECONDS = 3.0
"""Seconds that a source may be away, unreachable, or silent before its runs fail."""
LOOK_SECONDS = 0.25
OBJECT_STORAGE = 0

_log = logging.getLogger(__name__)


class Transfers:
    """Transfers to one store. Belongs to the running loop. feed: passes inputs to the store's core. tell: sends to
    the scheduler. connect: connects to another store, or to the object storage (None)."""

    def __init__(
        self,
        core: StorageCore,
        feed: Callable[[Sequence[c.StorageInput]], None],
        tell: Callable[[Message], None],
        connect: Callable[[StoreAddress | None], StorageClient],
    ) -> None:
        self.exchange = x.Exchange()
        self._core = core
        self._feed = feed
        self._tell = tell
        self._connect = connect
        self._sources: dict[int, StorageClient] = {}
        self._backends: dict[int, BackendClient] = {}
        """At most one entry. The backend of the next run has a different number."""
        self._pushes: set[asyncio.Task[None]] = set()
        self._memories: dict[bytes, GrowingMemory] = {}
        self._small: dict[bytes, Body] = {}
        self._delayed: list[x.ChunkRun] = []
        self._left: dict[x.ChunkRun, set[int]] = {}
        """Missing chunks of active runs. A run requested again gets a new set."""
        self._heard: dict[int, tuple[object, float]] = {}
        """Last progress value of each active source, and the time of its last change."""
        self._loop = asyncio.get_running_loop()
        self._look_timer: asyncio.TimerHandle | None = None
        self._failures = RateLimitedLog(_log, logging.WARNING, self._loop)

    def take(self, inputs: Sequence[x.ExchangeInput]) -> None:
        for item in inputs:
            if isinstance(item, SoleCopies):
                self._core.keep(item.ids)
            elif isinstance(item, PushObjects):
                self.push(item.ids)
        for command in self.exchange.step(inputs):
            match command:
                case Message():
                    self._tell(command)
                case x.ChunkRun():
                    if not self._get_with_room(command):
                        self._loop.call_soon(self._feed, ())  # allows the core to spill in its next step
                case x.Fetched(object_id):
                    self._fetched(object_id)
                case x.NotFetched(object_id, text):
                    self._forget(object_id)
                    if text:
                        self._feed([c.ObjectNotFetched(object_id, text)])
        for number in [number for number in self._sources if number and number not in self.exchange.stores]:
            self._sources.pop(number).close()
        for number in [number for number in self._backends if number not in self.exchange.stores]:
            self._backends.pop(number).close()

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        for backend in self._backends.values():
            backend.close()
        self._sources.clear()
        self._backends.clear()
        self._memories.clear()
        if self._look_timer is not None:
            self._look_timer.cancel()

    def _source(self, number: int) -> StorageClient:
        source = self._sources.get(number)
        if source is None:
            address = self.exchange.stores[number] if number else None
            source = self._sources[number] = self._connect(address)
        return source

    def _backend(self, backend: StoreAddress) -> BackendClient:
        client = self._backends.get(backend.number)
        if client is None:
            from scaler.object_storage.backend.run import BackendClient  # noqa: PLC0415 (where there is one)

            client = self._backends[backend.number] = BackendClient(backend.address, backend.backend_key)
        return client

    def go_on(self) -> None:
        """Start fetches that waited for room. Call after each step of the store's core."""
        delayed, self._delayed = self._delayed, []
        for run in delayed:
            if not run.source or run.source in self.exchange.stores:
                self._get_with_room(run)

    def _get_with_room(self, run: x.ChunkRun) -> bool:
        if run.id not in self._memories and not self._core.has_room_for(run.id, run.size_bytes):
            self._delayed.append(run)
            return False
        self._get(run)
        return True

    def _get(self, run: x.ChunkRun) -> None:
        """Request the chunks of a run. A small object, or one of unknown size, is requested in one piece."""
        backend = self.exchange.backend
        if backend is not None and backend.number == run.source:
            client = self._backend(backend)
            left = self._left[run] = set(range(run.first, run.first + run.count))
            for number in sorted(left):
                chunk = self._loop.create_task(client.get_chunk(run.id, run.size_bytes, number))
                chunk.add_done_callback(partial(self._chunk_ended, run, left, number, client))
            return
        source = self._source(run.source)
        size = chunk_bytes(run.size_bytes)
        chunks = range(1) if _comes_at_once(run) else range(run.first, run.first + run.count)
        left = self._left[run] = set(chunks)
        if self._look_timer is None:
            self._look_later()
        for number in chunks:
            wanted = run.size_bytes if _comes_at_once(run) else min(size, run.size_bytes - number * size)
            future = source.get_range(run.id, number * size, wanted)
            future.add_done_callback(partial(self._chunk_ended, run, left, number, source))

    def _chunk_ended(
        self,
        run: x.ChunkRun,
        left: set[int],
        number: int,
        source: StorageClient | BackendClient,
        future: asyncio.Future[ByteRange],
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if self._left.get(run) is not left:
            return  # the run has failed or is no longer wanted
        if error is None:
            error = self._write(run, number, future.result())
        if error is None:
            left.discard(number)
            if not left:
                del self._left[run]
                self.take([x.RunCame(run, sum(future.result().parts))])
            return
        del self._left[run]
        if not isinstance(error, ScalerError):
            raise error
        if isinstance(error, LimitError):
            self.take([c.StopFetching(run.id)])
            self._feed([c.ObjectNotFetched(run.id, str(error))])
            return
        self._failures.add(f"object {show(run.id)} did not arrive from store {run.source}: {error}")
        # A source that answered lacks the object. The object storage is never unreachable, as there is no alternative
        # to it.
        is_out_of_reach = not source.connected or isinstance(error, RefusedError | UnreachableError | UsageError)
        is_unreachable = run.source != OBJECT_STORAGE and is_out_of_reach
        self.take([x.RunFailed(run, is_unreachable)])

    def _look_later(self) -> None:
        self._look_timer = self._loop.call_later(LOOK_SECONDS, self._look, self._loop.time() + LOOK_SECONDS)

    def _look(self, due_at: float) -> None:
        """Give up stores that owe a reply and were silent for SOURCE_SECONDS, which a connection does not reveal."""
        now = self._loop.time()
        stood_still = now - due_at > LOOK_SECONDS  # this process stalled, so received data may still be unread
        asked = {run.source for run in self._left} & self._sources.keys() - {OBJECT_STORAGE}
        self._heard = {number: self._heard[number] for number in asked if number in self._heard}
        for number in asked:
            source = self._sources[number]
            heard, since = self._heard.get(number, (None, now))
            if stood_still or not source.connected or heard != source.heard:
                self._heard[number] = source.heard, now
            elif now - since >= SOURCE_SECONDS:
                self._give_up(number)
        self._look_timer = None
        if self._left:
            self._look_later()

    def _give_up(self, number: int) -> None:
        runs = [run for run in self._left if run.source == number]
        for run in runs:
            del self._left[run]
        self._sources.pop(number).close()
        self._failures.add(f"store {number} sent nothing for {SOURCE_SECONDS:g} s: {counted(len(runs), 'run')} failed")
        self.take([x.RunFailed(run, is_unreachable=True) for run in runs])

    def _write(self, run: x.ChunkRun, number: int, found: ByteRange) -> BaseException | None:
        size = sum(found.parts)
        if run.size_bytes and size != run.size_bytes:
            return ObjectLostError(f"its size is {size}, not {run.size_bytes}")
        if size < MIN_SHARED_BYTES and _comes_at_once(run):
            self._small[run.id] = Body(found.parts, found.frames, size)
            return None
        memory = self._memories.get(run.id)
        try:
            if memory is None:
                memory = GrowingMemory(found.parts)
                if not self._core.begin_fetch(run.id, memory, size):
                    return LimitError(f"this host's store has no room for an object of size {size}")
                self._memories[run.id] = memory
            memory.write(number * chunk_bytes(size), found.frames)
        except OSError as error:  # no descriptors or memory left here, so the source is not at fault
            return LimitError(f"this host's store cannot hold an object of size {size}: {error.strerror}")
        except ValueError as error:
            return ObjectLostError(str(error))
        for each in (number,) if run.size_bytes else range(chunk_count(size)):
            memory.add_chunk(each)
        return None

    def _fetched(self, object_id: bytes) -> None:
        memory = self._memories.get(object_id)
        try:
            body = memory.body() if memory is not None else self._small[object_id]
        except (OSError, ValueError) as error:
            self._feed([c.ObjectNotFetched(object_id, f"its memory: {error}")])
        else:
            self._feed([c.ObjectFetched(object_id, body)])
        self._forget(object_id)

    def _forget(self, object_id: bytes) -> None:
        self._memories.pop(object_id, None)
        self._small.pop(object_id, None)
        self._delayed = [run for run in self._delayed if run.id != object_id]
        for run in [run for run in self._left if run.id == object_id]:
            del self._left[run]

    def push(self, object_ids: Iterable[bytes]) -> list[asyncio.Task[None]]:
        """Put objects into the backend, or into the object storage if there is no backend or it fails."""
        bodies = [(object_id, self._core.objects.body(object_id)) for object_id in object_ids]
        loop = asyncio.get_running_loop()
        puts = [loop.create_task(self._push(object_id, body)) for object_id, body in bodies if body is not None]
        for put in puts:
            self._pushes.add(put)
            put.add_done_callback(self._pushes.discard)
        return puts

    async def _push(self, object_id: bytes, body: Body) -> None:
        frames, size, backend = list(body.all_frames()), body.size_bytes, self.exchange.backend
        if backend is not None and size >= LARGE_BYTES:
            try:
                await self._backend(backend).put(object_id, body.parts, frames)
            except ScalerError as error:
                self._failures.add(f"object {show(object_id)} is not in the backend: {error}")
            else:
                self.take([x.WrittenByStore([(object_id, size)])])
                return
        try:
            await self._source(OBJECT_STORAGE).put(object_id, assemble(body.parts, frames))
        except ScalerError as error:
            self._failures.add(f"object {show(object_id)} is not in the object storage: {error}")
            self._loop.call_later(SOURCE_SECONDS, self._tell_held, object_id)

    def _tell_held(self, object_id: bytes) -> None:
        body = self._core.objects.body(object_id)
        if body is not None:
            self.take([c.ReportPut(object_id, body.size_bytes)])


def _comes_at_once(run: x.ChunkRun) -> bool:
    return not run.size_bytes or (run.is_whole and run.size_bytes < MIN_SHARED_BYTES)
