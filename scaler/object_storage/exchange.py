"""Reports between one store and the scheduler about objects held and objects being fetched. Pure.

A missing object is fetched from other stores, in runs of chunks that the scheduler assigns. Invariant: each run is
answered once, by ChunksFetched or FetchesFailed, unless the fetch of its object has ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from scaler.object_storage.body import Body
from scaler.object_storage.messages import (
    ChunksFetched,
    FetchChunks,
    FetchesFailed,
    ObjectsDropped,
    ObjectsHeld,
    ObjectsUnwanted,
    ObjectsWanted,
    StoreAddress,
    StoresChanged,
)
from scaler.object_storage.shared_memory import GrowingMemory
from scaler.protocol.chunks import chunk_count
from scaler.protocol.messages import Message, split

MAX_ROWS_PER_MESSAGE = 10_000
"""Maximum rows per message to the scheduler, which must fit into a control message."""
REPORT_SECONDS = 0.1
"""Maximum delay (seconds) of reports about put objects while no other store needs them."""


@dataclass(slots=True, eq=False)
class ChunkRun:
    """Consecutive chunks of an object from one source. size_bytes: size of the object; 0 if unknown. left: chunks that
    were requested and have not arrived."""

    id: bytes
    size_bytes: int
    first: int
    count: int
    source: int
    left: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class WantedObject:
    """An object being fetched. have: bitmap of received chunks, stored in `memory`, or in `small` for a small object.
    kept_bytes: size of an object that is fetched even without readers and then kept like a put object."""

    size_bytes: int = 0
    have: int = 0
    runs: set[ChunkRun] = field(default_factory=set)
    memory: GrowingMemory | None = None
    reserved_bytes: int = 0
    small: Body | None = None
    kept_bytes: int | None = None


class Exchange:
    def __init__(self) -> None:
        self.stores: dict[int, StoreAddress] = {}
        self.fetches: dict[bytes, WantedObject] = {}
        self.is_open = False
        """True once a scheduler is connected. Until then, nothing is reported."""
        self.report_at = math.inf
        """Time at which reports of put objects are due."""
        self._put: dict[bytes, int] = {}
        self._reported: set[bytes] = set()
        """Objects reported as put here. Their release is reported as well, because it may have crossed the report."""
        # Rows of messages for the scheduler
        self._in_backend: list[tuple[bytes, int]] = []
        self._dropped: list[tuple[bytes]] = []
        self._wanted: list[tuple[bytes]] = []
        self._unwanted: list[tuple[bytes]] = []
        self._came: list[tuple[bytes, int, int, int]] = []
        self._failed: list[tuple[bytes, int, int, bool]] = []

    @property
    def backend(self) -> StoreAddress | None:
        return next((store for store in self.stores.values() if store.backend_key), None)

    def opened(self, held: Iterable[tuple[bytes, int]], in_backend: Iterable[tuple[bytes, int]]) -> None:
        """Report everything to a scheduler without state about this store."""
        self.is_open = True
        self.stores.clear()
        self._put = dict(held)
        self._reported.clear()
        self._in_backend += in_backend
        self._wanted += ((object_id,) for object_id in self.fetches)
        for object_id, fetch in self.fetches.items():
            fetch.runs.clear()
            self._came += [(object_id, first, count, fetch.size_bytes) for first, count in _runs_of(fetch.have)]

    def take_messages(self, now: float, *, is_awaited: bool) -> list[Message]:
        """Return the messages for the scheduler. is_awaited: whether other stores may wait for reports of objects."""
        lists = self._in_backend, self._dropped, self._wanted, self._unwanted, self._came, self._failed
        if not any(lists) and not (self._put and (is_awaited or now >= self.report_at)):
            self.report_at = min(self.report_at, now + REPORT_SECONDS) if self._put else math.inf
            return []
        self.report_at = math.inf
        self._reported.update(self._put)
        messages = [
            *_messages(ObjectsWanted, self._wanted),  # first: the scheduler ignores chunks of unwanted objects
            *_messages(ChunksFetched, self._came),
            *_messages(FetchesFailed, self._failed),
            *_messages(ObjectsHeld, list(self._put.items())),
            *_messages(partial(ObjectsHeld, in_backend=True), self._in_backend),
            *_messages(ObjectsUnwanted, self._unwanted),
            *_messages(ObjectsDropped, self._dropped),  # last, because they may concern objects in the other messages
        ]
        self._put.clear()
        for rows in lists:
            rows.clear()
        return messages

    # -- objects here

    def put(self, object_id: bytes, size_bytes: int) -> None:
        if self.is_open:
            self._put[object_id] = size_bytes

    def written(self, rows: Iterable[tuple[bytes, int]]) -> None:
        """Report (id, size) of objects in the backend."""
        if self.is_open:
            self._in_backend += rows

    def dropped(self, object_ids: Iterable[bytes]) -> None:
        for object_id in object_ids if self.is_open else ():
            self._reported.discard(object_id)
            if self._put.pop(object_id, None) is None:
                self._dropped.append((object_id,))

    def forgotten(self, object_ids: Iterable[bytes]) -> None:
        """Drop objects that the scheduler has released."""
        if self._put or self._reported:
            self.dropped([each for each in object_ids if each in self._put or each in self._reported])

    # -- fetches

    def is_active(self, run: ChunkRun) -> bool:
        fetch = self.fetches.get(run.id)
        return fetch is not None and run in fetch.runs

    def stores_changed(self, message: StoresChanged) -> None:
        self.stores.update((store.number, store) for store in message.stores)
        for number in message.gone:
            self.stores.pop(number, None)

    def want(self, object_id: bytes) -> WantedObject:
        fetch = self.fetches.get(object_id)
        if fetch is None:
            fetch = self.fetches[object_id] = WantedObject()
            self._wanted.append((object_id,))
        return fetch

    def unwant(self, object_id: bytes) -> None:
        self._unwanted.append((object_id,))

    def assigned(self, message: FetchChunks) -> list[ChunkRun]:
        """Return the runs to get. Ignores runs of ended fetches, because their ends were reported."""
        runs = []
        for row in zip(message.ids, message.sizes, message.firsts, message.counts, message.sources, strict=True):
            run = ChunkRun(*row)
            if run.id in self.fetches:
                self.fetches[run.id].runs.add(run)
                store = self.stores.get(run.source)
                if run.source and (store is None or not store.address):
                    self.failed(run, is_unreachable=store is not None)
                else:
                    runs.append(run)
        return runs

    def came(self, run: ChunkRun, size_bytes: int) -> bool:
        """Record that all chunks of a run have arrived. Returns whether the object is complete."""
        fetch = self.fetches[run.id]
        fetch.runs.remove(run)
        fetch.size_bytes = size_bytes
        whole = chunk_count(size_bytes)
        count = run.count if run.size_bytes else whole
        fetch.have |= ((1 << count) - 1) << run.first
        self._came.append((run.id, run.first, count, size_bytes))
        return fetch.have == (1 << whole) - 1

    def failed(self, run: ChunkRun, *, is_unreachable: bool) -> None:
        """Record that a run could not be fetched. is_unreachable: this host cannot connect to its source."""
        self.fetches[run.id].runs.remove(run)
        self._failed.append((run.id, run.first, run.source, is_unreachable))


def _messages(make: Callable[..., Message], rows: Iterable[tuple[Any, ...]]) -> list[Message]:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return split(make(*columns), max_rows=MAX_ROWS_PER_MESSAGE) if columns else []


def _runs_of(have: int) -> Iterator[tuple[int, int]]:
    """Yield (first bit, length) of each run of ones."""
    first = 0
    while have:
        zeros = (have & -have).bit_length() - 1
        have >>= zeros
        first += zeros
        count = (~have & (have + 1)).bit_length() - 1
        yield first, count
        have >>= count
        first += count
