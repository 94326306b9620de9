"""What the tracker knows of objects on their way: transfers, fetches and runs, and the runs of each store. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import IntEnum

from scaler.protocol.chunks import LARGE_BYTES, chunk_bytes, chunk_count

MAX_RUNS_OF_FETCH = 2
"""Runs under way of one fetch: while one comes, the next is asked for."""
MAX_RUNS_OF_SOURCE = 4
"""Runs under way of large objects that one store serves."""
MAX_SHARED_RUNS = 2
"""Those of objects that several stores fetch: the fewer chunks share a link, the sooner the first is passed on."""
MAX_RUNS_OF_FETCHER = 4
"""Runs under way of large objects that one store gets. With as many as a source serves, all links have work."""
MAX_SMALL_RUNS = 64
"""The same of objects below LARGE_BYTES, or of an unknown size. They never wait for large ones."""


class Kind(IntEnum):
    """Of a run, by its object."""

    SMALL = 0
    """Below LARGE_BYTES, or of an unknown size."""
    LONE = 1
    """One store fetches it."""
    SHARED = 2
    """Several stores fetch it."""


SMALL, LONE, SHARED = Kind


@dataclass(slots=True, eq=False)
class FetchRun:
    """Chunks that a store fetches at a time from one source. chunks: a mask of those that have not come."""

    fetch: Fetch
    source: int
    first: int
    chunks: int
    size_bytes: int
    """Of all its chunks; 0 when the object's size is not known."""
    kind: Kind
    began_at: float


@dataclass(slots=True, eq=False)
class Fetch:
    """One store fetches one object. have, asked: masks of the chunks that have come, and that are under way."""

    transfer: Transfer
    store: int
    have: int = 0
    asked: int = 0
    runs: list[FetchRun] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    """Sources that did not have what they were asked for."""
    failures: int = 0

    @property
    def missing(self) -> int:
        """The mask of the chunks that are to be asked for."""
        return self.transfer.full & ~(self.have | self.asked)


class Transfer:
    """An object that stores fetch. size_bytes: 0 when it is not known; then it is one chunk."""

    def __init__(self, identifier: bytes, size_bytes: int) -> None:
        self.id = identifier
        self.fetches: dict[int, Fetch] = {}
        """By the number of the store."""
        self.sources: list[int] = []
        """Stores that have chunks: fetchers, and some of the holders."""
        self.waiting: OrderedDict[Fetch, None] = OrderedDict()
        """Fetches that may have another run, and found no source with room."""
        self.assumes_storage = False
        """No store is known to have it: the object storage is taken to."""
        self.pushed_by: int | None = None
        """The store that was asked to push it into the object storage."""
        self.is_out_of_reach = False
        """The object storage could not get it from the backend."""
        self.resize(size_bytes)

    def resize(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.chunk_bytes = chunk_bytes(size_bytes)
        self.full = (1 << chunk_count(size_bytes)) - 1
        self.counts = [0] * chunk_count(size_bytes)
        """Of each chunk, how many fetches have it or have asked for it."""
        self.ranks = [self.full]
        """Masks of the chunks with no copy, one, 2 to 3, 4 to 7, and so on."""
        self.classify()

    def classify(self) -> None:
        """Set the kind of its next runs. Call when its size or the number of its fetches changes."""
        self.kind = SMALL if self.size_bytes < LARGE_BYTES else LONE if len(self.fetches) < 2 else SHARED

    def count(self, chunks: int, change: int) -> None:
        """Count copies of some chunks."""
        while chunks:
            lowest = chunks & -chunks
            chunks ^= lowest
            chunk = lowest.bit_length() - 1
            before = self.counts[chunk]
            self.counts[chunk] = before + change
            old, new = before.bit_length(), (before + change).bit_length()
            if old != new:
                self.ranks[old] ^= lowest
                if new == len(self.ranks):
                    self.ranks.append(0)
                self.ranks[new] |= lowest

    def rarest(self, chunks: int, turn: int) -> int:
        """Return the mask of one of the rarest of some chunks. turn: a number that differs each time."""
        for rank in self.ranks:
            found = rank & chunks
            if found:
                shift = turn % len(self.counts)
                found = found >> shift << shift or found
                return found & -found
        raise AssertionError("each chunk has a rank")


@dataclass(slots=True, eq=False)
class Traffic:
    """What a store that is here serves and gets. is_backend: it serves as many runs as are wanted."""

    is_backend: bool = False
    serves: dict[FetchRun, None] = field(default_factory=dict)
    serves_of: list[int] = field(default_factory=lambda: [0, 0, 0])
    """How many of each kind."""
    may_serve: tuple[bool, bool, bool] = True, True, True
    """Whether there is room for another run of each kind."""
    gets: int = 0
    gets_small: int = 0
    fetches: OrderedDict[bytes, Fetch] = field(default_factory=OrderedDict)
    offered: OrderedDict[Transfer, None] = field(default_factory=OrderedDict)
    """Transfers for which it is a source; that which it served last is at the end."""

    def count_run(self, kind: Kind, change: int) -> None:
        """Count the runs that it serves."""
        self.serves_of[kind] += change
        if self.is_backend:
            return
        small, lone, shared = self.serves_of
        has_room = lone + shared < MAX_RUNS_OF_SOURCE
        self.may_serve = small < MAX_SMALL_RUNS, has_room, has_room and shared < MAX_SHARED_RUNS

    def may_get(self, kind: Kind) -> bool:
        if kind is Kind.SMALL:
            return self.gets_small < MAX_SMALL_RUNS
        return self.gets - self.gets_small < MAX_RUNS_OF_FETCHER
