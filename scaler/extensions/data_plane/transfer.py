"""Records of transfers, fetches, and runs, of each store's traffic and measured rates, and messages to stores. Pure."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import nlargest

from scaler.object_storage.messages import ObjectsUnavailable
from scaler.protocol.chunks import LARGE_BYTES, chunk_bytes, chunk_count
from scaler.protocol.messages import Message, split

MAX_RUNS_OF_FETCH = 2
"""Maximum runs in flight per fetch: the next run is requested while one arrives."""
MAX_RUNS_OF_SOURCE = 4
"""Maximum runs of large objects that one store serves at a time."""
MAX_SHARED_RUNS = 2
"""Maximum runs of shared objects that one store serves at a time. Fewer runs pass the first chunk on sooner."""
MAX_RUNS_OF_FETCHER = 4
"""Maximum runs of large objects that one store receives at a time. Equal to MAX_RUNS_OF_SOURCE to keep links busy."""
MAX_SMALL_RUNS = 64
"""Limit for objects below LARGE_BYTES or of unknown size. These objects never wait for large objects."""


class Kind(IntEnum):
    SMALL = 0
    """Below LARGE_BYTES, or of unknown size."""
    LONE = 1
    SHARED = 2


SMALL, LONE, SHARED = Kind


@dataclass(slots=True, eq=False)
class FetchRun:
    """Chunks in flight from one source to one store. chunks: mask of the chunks not received yet."""

    fetch: Fetch
    source: int
    first: int
    chunks: int
    size_bytes: int
    """Total size of its chunks; 0 if the object's size is unknown."""
    kind: Kind
    began_at: float


@dataclass(slots=True, eq=False)
class Fetch:
    """One store's fetch of one object. have, asked: masks of received and requested chunks."""

    transfer: Transfer
    store: int
    have: int = 0
    asked: int = 0
    runs: list[FetchRun] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    failures: int = 0

    @property
    def missing(self) -> int:
        return self.transfer.full & ~(self.have | self.asked)


class Transfer:
    """An object that stores are fetching. size_bytes: 0 if unknown, in which case it is one chunk."""

    def __init__(self, identifier: bytes, size_bytes: int) -> None:
        self.id = identifier
        self.fetches: dict[int, Fetch] = {}
        self.sources: list[int] = []
        """Stores with chunks: fetchers, and some holders."""
        self.waiting: OrderedDict[Fetch, None] = OrderedDict()
        """Fetches that could start another run but found no source with free capacity."""
        self.assumes_storage = False
        """The object storage is a source by assumption, because no holder is known."""
        self.pushed_by: int | None = None
        self.is_out_of_reach = False
        self.resize(size_bytes)

    def resize(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.chunk_bytes = chunk_bytes(size_bytes)
        self.full = (1 << chunk_count(size_bytes)) - 1
        self.counts = [0] * chunk_count(size_bytes)
        """Per chunk: number of fetches that have or requested it."""
        self.ranks = [self.full]
        """Masks of chunks with 0, 1, 2 to 3, 4 to 7, ... copies."""
        self.classify()

    def classify(self) -> None:
        """Set the kind of the next runs. Call when the size or the number of fetches changes."""
        self.kind = SMALL if self.size_bytes < LARGE_BYTES else LONE if len(self.fetches) < 2 else SHARED

    def count(self, chunks: int, change: int) -> None:
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
        """Return the mask of one of the rarest of these chunks. turn: varied by the caller to spread choices."""
        for rank in self.ranks:
            found = rank & chunks
            if found:
                shift = turn % len(self.counts)
                found = found >> shift << shift or found
                return found & -found
        raise AssertionError("each chunk has a rank")


@dataclass(slots=True, eq=False)
class Traffic:
    """Runs that a connected store serves and receives. is_backend: whether the store serves any number of runs."""

    is_backend: bool = False
    serves: dict[FetchRun, None] = field(default_factory=dict)
    serves_of: list[int] = field(default_factory=lambda: [0, 0, 0])
    may_serve: tuple[bool, bool, bool] = True, True, True
    gets: int = 0
    gets_small: int = 0
    fetches: OrderedDict[bytes, Fetch] = field(default_factory=OrderedDict)
    offered: OrderedDict[Transfer, None] = field(default_factory=OrderedDict)
    """Transfers with this store as a source, most recently served last."""

    def count_run(self, kind: Kind, change: int) -> None:
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


MAX_PAIRS = 20_000
"""Maximum number of pairs. Beyond this, the smaller half is dropped from the pairs but not from the sums."""
USUAL_BYTES_PER_SECOND = 100e6
"""Assumed rate of an unmeasured store, close to that of a 1 Gbit/s link."""
MIN_MEASURED_BYTES = 256 * 1024
"""Smaller transfers are dominated by message latency and not measured."""
REMEMBERED_BYTES = 256 * 1024 * 1024
"""Halve the weight of older samples after this many bytes."""


@dataclass(slots=True, eq=False)
class _Flow:
    """Bytes transferred, and the seconds during which transfers were in progress."""

    size_bytes: float = 0.0
    seconds: float = 0.0
    last_at: float = -math.inf

    def note(self, size_bytes: int, began_at: float, now: float) -> None:
        keep = 0.5 ** (size_bytes / REMEMBERED_BYTES)
        self.size_bytes = keep * self.size_bytes + size_bytes
        self.seconds = keep * self.seconds + now - max(began_at, self.last_at)
        self.last_at = now

    @property
    def bytes_per_second(self) -> float:
        return self.size_bytes / max(self.seconds, 1e-6)


class Moved:
    """Total bytes fetched: overall, by fetcher, by source, and by pair (fetcher, source).

    Also each store's bytes per second in both directions, during transfers.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self.into: Counter[int] = Counter()
        self.out_of: Counter[int] = Counter()
        self.pairs: Counter[tuple[int, int]] = Counter()
        self._flows_into: dict[int, _Flow] = {}
        self._flows_out_of: dict[int, _Flow] = {}

    def note(self, store: int, source: int, size_bytes: int, began_at: float, now: float) -> None:
        """Count a fetch. Amortized O(1)."""
        self.total_bytes += size_bytes
        self.into[store] += size_bytes
        self.out_of[source] += size_bytes
        self.pairs[store, source] += size_bytes
        if len(self.pairs) > MAX_PAIRS:
            self.pairs = Counter(dict(nlargest(MAX_PAIRS // 2, self.pairs.items(), key=lambda item: item[1])))
        if size_bytes >= MIN_MEASURED_BYTES:
            self._flows_into.setdefault(store, _Flow()).note(size_bytes, began_at, now)
            self._flows_out_of.setdefault(source, _Flow()).note(size_bytes, began_at, now)

    def rate_into(self, store: int) -> float:
        flow = self._flows_into.get(store)
        return USUAL_BYTES_PER_SECOND if flow is None else flow.bytes_per_second

    def rate(self, store: int, source: int) -> float:
        flow = self._flows_out_of.get(source)
        return self.rate_into(store) if flow is None else min(self.rate_into(store), flow.bytes_per_second)

    def drop(self, store: int) -> None:
        """Remove a departed store. The sums of other stores still include its bytes."""
        del self.into[store], self.out_of[store]
        self.pairs = Counter({pair: size for pair, size in self.pairs.items() if store not in pair})
        self._flows_into.pop(store, None)
        self._flows_out_of.pop(store, None)


class StoreMail:
    """Messages to stores, in order of decision. Consecutive rows of one type share a message."""

    def __init__(self) -> None:
        self.messages: dict[int, list[Message]] = {}

    def add(self, kind: type[Message], store: int, *row: bytes | int) -> None:
        """Append a row to the columns of a store's last message, or to a new message if the type differs."""
        messages = self.messages.setdefault(store, [])
        if not messages or type(messages[-1]) is not kind:
            messages.append(kind(*([] for _ in row)))
        for name, value in zip(kind.__match_args__, row, strict=True):
            getattr(messages[-1], name).append(value)

    def unavailable(self, store: int, identifier: bytes, host: str) -> None:
        """Report an object as unavailable. host: the host of the last copy, or empty."""
        match self.messages.get(store):
            case [*_, ObjectsUnavailable(ids, last)] if last == host:
                ids.append(identifier)
            case _:
                self.send(store, ObjectsUnavailable([identifier], host))

    def send(self, store: int, message: Message) -> None:
        self.messages.setdefault(store, []).append(message)

    def take(self) -> list[tuple[int, Message]]:
        """Return all messages, split to size, with the numbers of their stores."""
        collected = self.messages.copy()
        self.messages.clear()
        return [
            (store, part)
            for store, messages in collected.items()
            for message in messages
            for part in (split(message) if hasattr(message, "ids") else (message,))
        ]
