"""Gets objects from other stores: the shell of `exchange.Exchange`, beside the server of a store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from scaler.errors import LimitError, ObjectLostError, RefusedError, ScalerError
from scaler.ids import show
from scaler.logs import RateLimitedLog
from scaler.object_storage.body import Body
from scaler.object_storage.client import StorageClient
from scaler.object_storage.core import ObjectFetched, ObjectNotFetched, StopFetching, StorageCore, StorageInput
from scaler.object_storage.exchange import (
    ChunkRun,
    Exchange,
    ExchangeInput,
    Fetched,
    GetRun,
    KeepCopies,
    NotFetched,
    Push,
    RunCame,
    RunFailed,
    Tell,
)
from scaler.object_storage.layout import assemble
from scaler.object_storage.requests import ByteRange
from scaler.object_storage.shared_memory import MIN_SHARED_BYTES, GrowingMemory
from scaler.protocol.chunks import chunk_bytes, chunk_count
from scaler.protocol.messages import Message, StoreAddress

SOURCE_SECONDS = 3.0
"""How long a source may be away, or out of reach, before its runs have failed."""
OBJECT_STORAGE = 0
"""Number of the object storage among the stores."""

_log = logging.getLogger(__name__)


class Transfers:
    """What is on its way to one store. Belongs to the running loop.

    feed: gives inputs to the store's core. tell: sends a message to the scheduler. connect: to another store, or to the
    object storage (None).
    """

    def __init__(
        self,
        core: StorageCore,
        feed: Callable[[Sequence[StorageInput]], None],
        tell: Callable[[Message], None],
        connect: Callable[[StoreAddress | None], StorageClient],
    ) -> None:
        self.exchange = Exchange()
        self._core = core
        self._feed = feed
        self._tell = tell
        self._connect = connect
        self._sources: dict[int, StorageClient] = {}
        self._memories: dict[bytes, GrowingMemory] = {}
        self._small: dict[bytes, Body] = {}
        """Small objects that have come as a whole."""
        self._left: dict[ChunkRun, int] = {}
        """Chunks that have not come of the runs under way."""
        self._failures = RateLimitedLog(_log, logging.WARNING, asyncio.get_running_loop())

    def take(self, inputs: Sequence[ExchangeInput]) -> None:
        """Step the core, and perform its commands."""
        for command in self.exchange.step(inputs):
            match command:
                case Tell(message):
                    self._tell(message)
                case GetRun(run):
                    self._get(run)
                case Fetched(object_id):
                    self._fetched(object_id)
                case NotFetched(object_id, text):
                    self._forget(object_id)
                    if text:
                        self._feed([ObjectNotFetched(object_id, text)])
                case KeepCopies(ids):
                    self._core.keep(ids)
                case Push(ids):
                    self.push(ids)
        for number in [number for number in self._sources if number and number not in self.exchange.stores]:
            self._sources.pop(number).close()

    def close(self) -> None:
        """End all transfers."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()
        self._memories.clear()

    def _source(self, number: int) -> StorageClient:
        source = self._sources.get(number)
        if source is None:
            address = self.exchange.stores[number] if number else None
            source = self._sources[number] = self._connect(address)
        return source

    def _get(self, run: ChunkRun) -> None:
        """Ask for each chunk of a run; for a small object as a whole, and so for one whose size is not known."""
        source = self._source(run.source)
        size = chunk_bytes(run.size_bytes)
        chunks = range(1) if _comes_at_once(run) else range(run.first, run.first + run.count)
        self._left[run] = len(chunks)
        for number in chunks:
            wanted = run.size_bytes if _comes_at_once(run) else min(size, run.size_bytes - number * size)
            future = source.get_range(run.id, number * size, wanted)
            future.add_done_callback(partial(self._chunk_ended, run, number, source))

    def _chunk_ended(
        self, run: ChunkRun, number: int, source: StorageClient, future: asyncio.Future[ByteRange]
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if run not in self._left:
            return  # it has failed, or nothing waits for it any more
        if error is None:
            error = self._write(run, number, future.result())
        if error is None:
            self._left[run] -= 1
            if not self._left[run]:
                del self._left[run]
                self.take([RunCame(run, sum(future.result().parts))])
            return
        del self._left[run]
        if not isinstance(error, ScalerError):
            raise error
        if isinstance(error, LimitError):
            self.take([StopFetching(run.id)])
            self._feed([ObjectNotFetched(run.id, str(error))])
            return
        self._failures.add(f"object {show(run.id)} did not come from store {run.source}: {error}")
        is_unreachable = not source.was_connected or isinstance(error, RefusedError)
        self.take([RunFailed(run, is_unreachable)])

    def _write(self, run: ChunkRun, number: int, found: ByteRange) -> BaseException | None:
        """Keep a chunk that has come. Returns why it cannot be."""
        size = sum(found.parts)
        if run.size_bytes and size != run.size_bytes:
            return ObjectLostError(f"its size is {size}, and not {run.size_bytes}")
        if size < MIN_SHARED_BYTES and _comes_at_once(run):
            self._small[run.id] = Body(found.parts, found.frames, size)
            return None
        memory = self._memories.get(run.id)
        try:
            if memory is None:
                memory = GrowingMemory(found.parts)
                if not self._core.begin_fetch(run.id, memory, size):
                    return LimitError(f"the store of this host has no room for an object of size {size}")
                self._memories[run.id] = memory
            memory.write(number * chunk_bytes(size), found.frames)
        except (OSError, ValueError) as error:
            return ObjectLostError(str(error))
        for each in (number,) if run.size_bytes else range(chunk_count(size)):
            memory.add_chunk(each)
        return None

    def _fetched(self, object_id: bytes) -> None:
        memory = self._memories.get(object_id)
        try:
            body = memory.body() if memory is not None else self._small[object_id]
        except (OSError, ValueError) as error:
            self._feed([ObjectNotFetched(object_id, f"its memory: {error}")])
        else:
            self._feed([ObjectFetched(object_id, body)])
        self._forget(object_id)

    def _forget(self, object_id: bytes) -> None:
        self._memories.pop(object_id, None)
        self._small.pop(object_id, None)
        for run in [run for run in self._left if run.id == object_id]:
            del self._left[run]

    def push(self, object_ids: Iterable[bytes]) -> list[asyncio.Future[Any]]:
        """Put objects into the object storage, too."""
        puts: list[asyncio.Future[Any]] = []
        for object_id in object_ids:
            body = self._core.body(object_id)
            if body is not None:
                put = self._source(OBJECT_STORAGE).put(object_id, assemble(body.parts, body.all_frames()))
                put.add_done_callback(partial(self._pushed, object_id))
                puts.append(put)
        return puts

    def _pushed(self, object_id: bytes, future: asyncio.Future[object]) -> None:
        if not future.cancelled() and future.exception() is not None:
            self._failures.add(f"object {show(object_id)} is not in the object storage: {future.exception()}")


def _comes_at_once(run: ChunkRun) -> bool:
    return not run.size_bytes or (run.is_whole and run.size_bytes < MIN_SHARED_BYTES)
