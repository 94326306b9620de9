"""Fetches objects from other stores, in runs of chunks assigned by the scheduler. Pure.

Invariants: an object is fetched from FetchObject until StopFetching, Fetched, or NotFetched; each
assigned run is answered once, by ChunksFetched or FetchesFailed, unless the fetch of its object has stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, assert_never

from scaler.ids import owner_of
from scaler.object_storage.body import Body
from scaler.object_storage.commands import FetchObject, ReportDropped, ReportPut, StopFetching, ToExchange
from scaler.object_storage.messages import (
    ChunksFetched,
    FetchChunks,
    FetchesFailed,
    ObjectsDropped,
    ObjectsHeld,
    ObjectsUnavailable,
    ObjectsUnwanted,
    ObjectsWanted,
    PushObjects,
    SoleCopies,
    StoreAddress,
    StoresChanged,
)
from scaler.protocol import messages as m
from scaler.protocol.chunks import chunk_count

MAX_ROWS_PER_MESSAGE = 10_000
"""Keeps messages to the scheduler within the size of a control message."""
UNAVAILABLE = "no store has it"
LOST = "its only copy was lost with host {}"

_Row = TypeVar("_Row")
FromScheduler = FetchChunks | ObjectsUnavailable | SoleCopies | PushObjects | StoresChanged
FROM_SCHEDULER = (FetchChunks, ObjectsUnavailable, SoleCopies, PushObjects, StoresChanged)


@dataclass(frozen=True, slots=True)
class SchedulerOpened:
    """The scheduler has a new session without this store's state. held, in_backend: complete objects with sizes."""

    held: list[tuple[bytes, int]]
    in_backend: list[tuple[bytes, int]] = field(default_factory=list)


class WrittenByStore(NamedTuple):
    """Input: this store has written these (id, size) to the backend."""

    rows: list[tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """Consecutive chunks of an object from one source. size_bytes: size of the object; 0 if unknown."""

    id: bytes
    size_bytes: int
    first: int
    count: int
    source: int

    @property
    def is_whole(self) -> bool:
        return not self.first and self.count >= chunk_count(self.size_bytes)


class RunCame(NamedTuple):
    """Input: a run has been fetched. size_bytes: size of the whole object."""

    run: ChunkRun
    size_bytes: int


class RunFailed(NamedTuple):
    """Input: a run could not be fetched. is_unreachable: this host cannot connect to the source."""

    run: ChunkRun
    is_unreachable: bool


class Fetched(NamedTuple):
    """Command: all chunks have arrived, so the object becomes a copy."""

    id: bytes


class NotFetched(NamedTuple):
    """Command: discard the received chunks. text: reason for readers; empty if there are none."""

    id: bytes
    text: str


ExchangeInput = ToExchange | FromScheduler | SchedulerOpened | WrittenByStore | RunCame | RunFailed
ExchangeCommand = m.Message | ChunkRun | Fetched | NotFetched
"""A message: for the scheduler. A run: get its chunks; answered by RunCame or RunFailed."""


@dataclass(slots=True)
class WantedObject:
    """An object that readers wait for. have: bitmap of received chunks."""

    size_bytes: int = 0
    have: int = 0
    runs: set[ChunkRun] = field(default_factory=set)


REPORT_SECONDS = 0.1


class PutReports:
    """Batched reports of large objects to the scheduler, used while no host has a store. Invariant: a reported object
    that is released later is reported as dropped; otherwise the scheduler would list the object forever."""

    def __init__(self, body_of: Callable[[bytes], Body | None]) -> None:
        self._body_of = body_of
        self._changed: dict[bytes, None] = {}
        self._reported: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._changed)

    def put(self, ids: Iterable[bytes]) -> None:
        self._changed.update(dict.fromkeys(ids))

    def forget(self, ids: Iterable[bytes]) -> None:
        """Record a request to release objects. Some may be kept."""
        self._changed.update(dict.fromkeys(self._reported.intersection(ids)))

    def forget_owner(self, owner: bytes) -> None:
        self.forget([each for each in self._reported if owner_of(each) == owner])

    def dropped(self, ids: Iterable[bytes]) -> None:
        self._reported.difference_update(ids)

    def restart(self, ids: Iterable[bytes]) -> None:
        self._changed = dict.fromkeys(ids)
        self._reported.clear()

    def take(self) -> tuple[list[tuple[bytes, int]], list[bytes]]:
        """Return new objects with sizes, and reported objects that were released."""
        bodies = {each: self._body_of(each) for each in self._changed}
        put = [(each, body.size_bytes) for each, body in bodies.items() if body is not None]
        dropped = [each for each, body in bodies.items() if body is None and each in self._reported]
        self._changed.clear()
        self._reported.difference_update(dropped)
        self._reported.update(each for each, _ in put)
        return put, dropped


class Exchange:
    def __init__(self) -> None:
        self.stores: dict[int, StoreAddress] = {}
        self._fetches: dict[bytes, WantedObject] = {}
        self._wanted: list[bytes] = []
        self._unwanted: list[bytes] = []
        self._put: list[tuple[bytes, int]] = []
        self._in_backend: list[tuple[bytes, int]] = []
        self._came: list[tuple[bytes, int, int, int]] = []
        self._failed: list[tuple[bytes, int, int, bool]] = []
        self._commands: list[ExchangeCommand] = []

    def step(self, inputs: Iterable[ExchangeInput]) -> list[ExchangeCommand]:
        for item in inputs:
            if isinstance(item, FROM_SCHEDULER):
                self._hear(item)
            else:
                self._take(item)
        self._tell_each(self._wanted, ObjectsWanted)  # first, since the scheduler ignores chunks of unwanted objects
        self._tell_each(self._came, lambda rows: ChunksFetched(*_columns(rows)))
        self._tell_each(self._failed, lambda rows: FetchesFailed(*_columns(rows)))
        self._tell_each(self._put, _held)
        self._tell_each(self._in_backend, lambda rows: _held(rows, in_backend=True))
        self._tell_each(self._unwanted, ObjectsUnwanted)
        commands, self._commands = self._commands, []
        # Fetched last: a copy without room is reported as dropped, which must follow the report of its chunks.
        return sorted(commands, key=lambda command: isinstance(command, Fetched))

    @property
    def backend(self) -> StoreAddress | None:
        return next((store for store in self.stores.values() if store.backend_key), None)

    def _take(self, item: ToExchange | SchedulerOpened | WrittenByStore | RunCame | RunFailed) -> None:
        match item:
            case FetchObject(object_id):
                self._fetches[object_id] = WantedObject()
                self._wanted.append(object_id)
            case StopFetching(object_id):
                if self._fetches.pop(object_id, None) is not None:
                    self._unwanted.append(object_id)
                    self._commands.append(NotFetched(object_id, ""))
            case ReportDropped(ids):
                self._tell_each(ids, ObjectsDropped)
            case ReportPut(object_id, size_bytes):
                self._put.append((object_id, size_bytes))
            case WrittenByStore(rows):
                self._in_backend += rows
            case SchedulerOpened(held, in_backend):
                self._put += held
                self._in_backend += in_backend
                self._wanted += self._fetches
                self.stores.clear()
                for wanted, fetch in self._fetches.items():
                    fetch.runs.clear()
                    self._came += [(wanted, first, count, fetch.size_bytes) for first, count in _runs_of(fetch.have)]
            case RunCame(run, size_bytes):
                self._end(run, size_bytes)
            case RunFailed(run, is_unreachable):
                self._fail(run, is_unreachable=is_unreachable)
            case _:
                assert_never(item)

    def _hear(self, message: FromScheduler) -> None:
        match message:
            case FetchChunks(ids, sizes, firsts, counts, sources):
                for row in zip(ids, sizes, firsts, counts, sources, strict=True):
                    self._begin(ChunkRun(*row))
            case ObjectsUnavailable(ids, host):
                text = LOST.format(host) if host else UNAVAILABLE
                for object_id in ids:
                    if self._fetches.pop(object_id, None) is not None:
                        self._commands.append(NotFetched(object_id, text))
            case StoresChanged(stores, gone):
                self.stores.update((store.number, store) for store in stores)
                for number in gone:
                    self.stores.pop(number, None)
            case SoleCopies() | PushObjects():
                pass  # for the shell
            case _:
                assert_never(message)

    def _begin(self, run: ChunkRun) -> None:
        fetch = self._fetches.get(run.id)
        if fetch is None or run in fetch.runs:
            return  # already reported as no longer wanted
        fetch.runs.add(run)
        store = self.stores.get(run.source)
        if run.source and (store is None or not store.address):
            self._fail(run, is_unreachable=store is not None)
        else:
            self._commands.append(run)

    def _end(self, run: ChunkRun, size_bytes: int) -> None:
        fetch = self._fetches.get(run.id)
        if fetch is None or run not in fetch.runs:
            return
        fetch.runs.remove(run)
        fetch.size_bytes = size_bytes
        whole = chunk_count(size_bytes)
        count = run.count if run.size_bytes else whole
        fetch.have |= ((1 << count) - 1) << run.first
        self._came.append((run.id, run.first, count, size_bytes))
        if fetch.have == (1 << whole) - 1:
            del self._fetches[run.id]
            self._commands.append(Fetched(run.id))

    def _fail(self, run: ChunkRun, *, is_unreachable: bool) -> None:
        fetch = self._fetches.get(run.id)
        if fetch is not None and run in fetch.runs:
            fetch.runs.remove(run)
            self._failed.append((run.id, run.first, run.source, is_unreachable))

    def _tell_each(self, rows: list[_Row], message: Callable[[list[_Row]], m.Message]) -> None:
        for start in range(0, len(rows), MAX_ROWS_PER_MESSAGE):
            self._commands.append(message(rows[start : start + MAX_ROWS_PER_MESSAGE]))
        rows.clear()


def _held(rows: list[tuple[bytes, int]], *, in_backend: bool = False) -> ObjectsHeld:
    ids, sizes = _columns(rows)
    return ObjectsHeld(ids, sizes, in_backend)


def _columns(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


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
