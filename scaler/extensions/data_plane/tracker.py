"""Decides which store fetches which chunks from which store. Pure.

A *transfer* is an object that stores fetch. A store's *fetch* gets *runs* of chunks, one after another, from sources:
complete holders, and other fetchers, which pass on received chunks. A lone fetcher gets few long runs. With several
fetchers, each run is one chunk, one of the rarest at its source. A fetch without an available source waits. A source
with free capacity serves waiting fetches round robin, over objects and over fetchers.

Invariants: the received, requested, and missing chunks of a fetch are disjoint. A run's source is connected. The limits
below hold. A fetch without a run waits for a source, an awaited store, or a push into the object storage. A choice
considers at most MAX_LOOKS sources or fetches, so its cost does not depend on the cluster's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from scaler.extensions.data_plane.directory import OBJECT_STORAGE, Copies, Directory
from scaler.extensions.data_plane.persisted import PersistedResults
from scaler.extensions.data_plane.transfer import (
    MAX_RUNS_OF_FETCH,
    MAX_RUNS_OF_SOURCE,
    MAX_SMALL_RUNS,
    Fetch,
    FetchRun,
    Kind,
    Moved,
    StoreMail,
    Traffic,
    Transfer,
)
from scaler.ids import owner_of
from scaler.object_storage.messages import CopyObjects, FetchChunks, PushObjects, SoleCopies
from scaler.protocol.chunks import LARGE_BYTES
from scaler.protocol.messages import ForgetObjects, Message
from scaler.scheduler.core.stores import Timer

FIRST_RUN_BYTES = 4 * 1024 * 1024
"""First run of a lone fetcher. A later run is as large as all chunks received so far, up to MAX_RUN_BYTES."""
MAX_RUN_BYTES = 64 * 1024 * 1024
"""Maximum run of a lone fetcher. Bounds how long other objects wait at the same source."""
MAX_LOOKS = 16
MAX_FAILURES = 8
"""Number of failed runs after which a fetch fails: the object is unavailable to the store."""
SWEEP_SECONDS = 0.25
"""Interval of the sweep that serves fetches missed because of `MAX_LOOKS`."""
UNREACHABLE_SECONDS = 60.0
"""Seconds for which a store is not assigned a source that it could not reach."""


class Tracker:
    """Transfers of all stores. `take` returns the resulting messages."""

    def __init__(self, directory: Directory, moved: Moved, timer: Timer) -> None:
        self.timer = timer
        self.mail = StoreMail()
        self.moved = moved
        self.links = {OBJECT_STORAGE: Traffic()}
        self.backend: int | None = None
        """Number of the object storage's backend, which is listed as a store."""
        self.awaited: set[int] = set()
        """Numbers of stores that workers use but that have not connected yet."""
        self.unknown_from = -math.inf
        """Time until which objects without an entry wait, because stores report their objects after a restart."""
        self.unreachable: dict[tuple[int, int], float] = {}
        """Time until which a connection counts as unavailable, by (fetcher, source)."""
        self.transfers: dict[bytes, Transfer] = {}
        self.persisted = PersistedResults(directory, self.mail, self.wake_by)
        self.directory = directory
        self.unsettled: dict[Transfer, None] = {}
        """Transfers that lost a source. Their waiting fetches may have no source left."""
        self._turn = 0

    def take(self) -> list[tuple[int, Message]]:
        """Settle all transfers. Returns the messages with the numbers of their stores."""
        while self.unsettled:
            transfers, self.unsettled = self.unsettled, {}
            for fetch in [fetch for transfer in transfers for fetch in transfer.waiting]:
                transfer = fetch.transfer
                if fetch in transfer.waiting:
                    self._request(fetch, MAX_LOOKS if fetch.runs else len(transfer.sources))
        return self.mail.take()

    # -- messages from stores

    def wanted(self, store: int, identifiers: Iterable[bytes]) -> None:
        link = self.links[store]
        for identifier in identifiers:
            if identifier in link.fetches:
                continue
            self.dropped(store, identifier)
            transfer = self.transfers.get(identifier) or self._begin(identifier)
            fetch = transfer.fetches[store] = link.fetches[identifier] = Fetch(transfer, store)
            transfer.classify()
            self._wait(fetch)  # served at the end of the step, when all fetchers are known

    def unwanted(self, store: int, identifiers: Iterable[bytes]) -> None:
        for identifier in identifiers:
            fetch = self.links[store].fetches.get(identifier)
            if fetch is not None:
                if store == OBJECT_STORAGE and fetch.transfer.pushed_by == self.backend:
                    fetch.transfer.is_out_of_reach = True  # the backend cannot forward a partial object
                self._drop(fetch)
            self.persisted.refused(store, identifier, self.timer.now)

    def stored(self, identifier: bytes, size_bytes: int, store: int, function: str = "") -> None:
        """Record a stored task result. A small result in the object storage needs no entry."""
        is_known = store in self.links or store in self.awaited
        is_small = store == OBJECT_STORAGE and size_bytes < LARGE_BYTES
        if is_known and not is_small:
            self.held(store, identifier, size_bytes).function = function

    def held(self, store: int, identifier: bytes, size_bytes: int) -> Copies:
        """Record that a store has an object, and serve waiting fetches from it. Returns the object's entry."""
        copies = self.directory.add(identifier, size_bytes, store)
        self.persisted.held(identifier, store)
        transfer = self.transfers.get(identifier)
        if transfer is None:
            return copies
        if not transfer.size_bytes and copies.size_bytes:
            self._resize(transfer, copies.size_bytes)
        if transfer.pushed_by is not None and store in (transfer.pushed_by, OBJECT_STORAGE):
            transfer.pushed_by = None  # the push has succeeded or failed
            self.unsettled[transfer] = None
        fetch = transfer.fetches.get(store)
        if fetch is not None:
            self._has(fetch, transfer.full)
        elif store in self.links:
            self._add_source(transfer, store)
            self._offer(store)
        return copies

    def dropped(self, store: int, identifier: bytes) -> None:
        left = self.directory.discard(identifier, store)
        transfer = self.transfers.get(identifier)
        if transfer is not None and store in transfer.sources and store not in transfer.fetches:
            self._remove_source(transfer, store)
        if left is not None:
            self._note_sole(identifier, left)

    def fetched(self, store: int, identifier: bytes, first: int, count: int, size_bytes: int) -> None:
        """Record received chunks; if the object's size was unknown, all its chunks."""
        fetch = self.links[store].fetches.get(identifier)
        if fetch is None:
            return
        transfer = fetch.transfer
        is_all = any(not run.size_bytes for run in fetch.runs)
        if not transfer.size_bytes:
            self._resize(transfer, size_bytes)
        self._has(fetch, transfer.full if is_all else ((1 << count) - 1) << first & transfer.full)

    def failed(self, store: int, identifier: bytes, first: int, source: int, *, is_unreachable: bool) -> None:
        if is_unreachable:
            self.unreachable[store, source] = self.timer.now + UNREACHABLE_SECONDS
            self.wake_by(self.timer.now + UNREACHABLE_SECONDS)
        fetch = self.links[store].fetches.get(identifier)
        found = [] if fetch is None else [each for each in fetch.runs if (each.first, each.source) == (first, source)]
        if fetch is None or not found:
            return
        self._lose(found[0])
        transfer = fetch.transfer
        if not is_unreachable:
            fetch.failed.add(source)
            fetch.failures += 1
            if source not in transfer.fetches:
                self.dropped(source, identifier)
        self._offer(source)

    def restored(self, identifier: bytes) -> None:
        """Record that a client stored an object in the object storage again, because other recorded holders were
        wrong."""
        if identifier in self.transfers or self.directory.find(identifier) is not None:
            self.held(OBJECT_STORAGE, identifier, 0)

    # -- arrivals and departures

    def came(self, store: int, *, is_backend: bool = False) -> None:
        self.links[store] = Traffic(is_backend=is_backend)
        if is_backend:
            self.backend = store
            self.persisted.places.add(store)
        self.awaited.discard(store)
        self.retry()

    def gone(self, store: int, host: str = "", *, is_back: bool = False) -> None:
        """Remove a store with its objects and fetches. host: the store's host. is_back: it has reconnected, empty."""
        for identifier, copies in self.directory.drop_store(store, host).items():
            self._note_sole(identifier, copies)
        self.persisted.gone(store)
        self.awaited.discard(store)
        link = self.links.get(store)
        if link is None:
            self.retry()
            return
        for fetch in list(link.fetches.values()):
            self._drop(fetch)
        for transfer in list(link.offered):
            self._remove_source(transfer, store)
        for transfer in self.transfers.values():
            transfer.assumes_storage = transfer.assumes_storage and not is_back
            if transfer.pushed_by is not None and (is_back or transfer.pushed_by == store):
                transfer.pushed_by = None
                self.unsettled[transfer] = None
        if is_back:
            return
        for run in list(link.serves):
            self._lose(run)
        del self.links[store]
        if store == self.backend:
            self.backend = None
        self.mail.messages.pop(store, None)
        self.moved.drop(store)
        self.unreachable = {pair: until for pair, until in self.unreachable.items() if store not in pair}

    def retry(self) -> None:
        for transfer in self.transfers.values():
            if transfer.waiting:
                self._add_holders(transfer)
                self.unsettled[transfer] = None

    def wake_by(self, at: float) -> None:
        self.timer.next_at = min(self.timer.next_at, at)

    def sweep(self) -> None:
        self.timer.next_at = self.unknown_from if self.timer.now < self.unknown_from else math.inf
        self.persisted.settle(self.timer.now)
        if self.unreachable:
            left = {pair: until for pair, until in self.unreachable.items() if until > self.timer.now}
            self.wake_by(min(left.values(), default=math.inf))
            if len(left) < len(self.unreachable):
                self.unreachable = left
                self.retry()
        if self.timer.now >= self.unknown_from > -math.inf:
            self.unknown_from = -math.inf
            self.retry()
        if self.transfers:
            self.wake_by(self.timer.now + SWEEP_SECONDS)
            for link in self.links.values():
                for fetch in link.fetches.values() if not link.gets else ():
                    self._wait(fetch)

    def forget(self, identifiers: list[bytes]) -> None:
        """Delete objects from the object storage and from all stores that have or fetch them."""
        self.mail.send(OBJECT_STORAGE, ForgetObjects(identifiers))
        if not self.directory.by_owner and not self.transfers and not self.persisted:
            return
        for identifier in identifiers:
            stores = self.directory.forget(identifier)
            if identifier in self.transfers:
                stores = stores | self.transfers[identifier].fetches.keys()
                self._end(self.transfers[identifier])
            self.persisted.forget(identifier)
            for store in sorted(stores & self.links.keys() - {OBJECT_STORAGE, self.backend}):
                self.mail.add(ForgetObjects, store, identifier)

    def forget_owner(self, owner: bytes) -> None:
        self.directory.forget_owner(owner)
        self.persisted.forget_owner(owner)
        for transfer in [each for each in self.transfers.values() if owner_of(each.id) == owner]:
            self._end(transfer)

    # -- transfers

    def _begin(self, identifier: bytes) -> Transfer:
        copies = self.directory.find(identifier)
        transfer = self.transfers[identifier] = Transfer(identifier, 0 if copies is None else copies.size_bytes)
        self._add_holders(transfer)
        self.wake_by(self.timer.now + SWEEP_SECONDS)
        return transfer

    def _end(self, transfer: Transfer) -> None:
        served = [run.source for fetch in transfer.fetches.values() for run in fetch.runs]
        for fetch in transfer.fetches.values():
            for run in list(fetch.runs):
                self._stop(run)
            del self.links[fetch.store].fetches[transfer.id]
        for source in transfer.sources:
            self.links[source].offered.pop(transfer, None)
        transfer.waiting.clear()
        del self.transfers[transfer.id]
        self.unsettled.pop(transfer, None)
        for source in served:
            self._offer(source)

    def _resize(self, transfer: Transfer, size_bytes: int) -> None:
        """Set the size of an object. Each of its runs so far covers the whole object."""
        transfer.resize(size_bytes)
        for fetch in transfer.fetches.values():
            fetch.asked = transfer.full if fetch.runs else 0
            for run in fetch.runs:
                run.chunks = transfer.full
            transfer.count(fetch.asked, 1)

    def _add_holders(self, transfer: Transfer) -> None:
        """Add some holders as sources, or the object storage if there is no entry."""
        copies = self.directory.find(transfer.id)
        if copies is not None:
            for store in self._some(copies):
                self._add_source(transfer, store)
        elif self.timer.now >= self.unknown_from and not transfer.assumes_storage:
            transfer.assumes_storage = True
            self._add_source(transfer, OBJECT_STORAGE)

    def _some(self, copies: Copies) -> list[int]:
        """Return connected holders, or a rotating selection if there are many."""
        here = sorted(copies.holders & self.links.keys())
        if len(here) > MAX_LOOKS:
            self._turn += 1
            first = self._turn * MAX_LOOKS % len(here)
            here = (here[first:] + here[:first])[:MAX_LOOKS]
        return here

    def _add_source(self, transfer: Transfer, store: int) -> None:
        offered = self.links[store].offered
        if transfer not in offered:
            offered[transfer] = None
            transfer.sources.append(store)

    def _remove_source(self, transfer: Transfer, store: int) -> None:
        self.links[store].offered.pop(transfer, None)
        if store in transfer.sources:
            transfer.sources.remove(store)
        self.unsettled[transfer] = None

    # -- fetches

    def _has(self, fetch: Fetch, chunks: int) -> None:
        """Record chunks of a fetch, and start its next runs."""
        transfer, store = fetch.transfer, fetch.store
        new = chunks & ~fetch.have
        transfer.count(new & ~fetch.asked, 1)
        fetch.have |= chunks
        fetch.asked &= ~chunks
        freed = []
        for run in list(fetch.runs):
            run.chunks &= ~chunks
            if not run.chunks:
                size_bytes = run.size_bytes or transfer.size_bytes
                self.moved.note(store, run.source, size_bytes, run.began_at, self.timer.now)
                self._stop(run)
                freed.append(run.source)
        if fetch.have:
            self._add_source(transfer, store)
        if fetch.have == transfer.full:
            self.directory.add(transfer.id, transfer.size_bytes, store)
            self.persisted.held(transfer.id, store)
            self._leave(fetch)
        for source in freed:  # before this fetch: longer waiting fetches go first, which spreads chunks
            self._offer(source)
        if transfer.waiting:
            self._offer(store)
        if fetch.have != transfer.full:
            self._request(fetch)
        elif freed:
            self._continue(self.links[store])

    def _continue(self, link: Traffic) -> None:
        """Start a waiting fetch of another object at a store with free capacity, round robin."""
        for identifier, fetch in list(islice(link.fetches.items(), MAX_LOOKS)):
            link.fetches.move_to_end(identifier)
            source = self._choose(fetch, MAX_LOOKS) if not fetch.runs and link.may_get(fetch.transfer.kind) else None
            if source is not None:
                self._start(fetch, source)
                if not fetch.missing:
                    fetch.transfer.waiting.pop(fetch, None)
                return

    def _leave(self, fetch: Fetch) -> None:
        """Remove a fetch without runs from its transfer, which ends with its last fetch."""
        transfer = fetch.transfer
        del transfer.fetches[fetch.store]
        transfer.waiting.pop(fetch, None)
        link = self.links[fetch.store]
        del link.fetches[transfer.id]
        transfer.classify()
        if not transfer.fetches:
            self._end(transfer)

    def _drop(self, fetch: Fetch) -> None:
        """Abort an incomplete fetch. Its store is no longer a source of the object."""
        transfer = fetch.transfer
        served = [run.source for run in fetch.runs]
        for run in list(fetch.runs):
            self._stop(run)
        transfer.count(fetch.have, -1)
        fetch.have = 0
        if fetch.store in transfer.sources:
            self._remove_source(transfer, fetch.store)
        self._leave(fetch)
        if transfer.fetches:
            self.unsettled[transfer] = None
        for source in served:
            self._offer(source)

    def _stop(self, run: FetchRun) -> None:
        fetch = run.fetch
        fetch.runs.remove(run)
        fetch.asked &= ~run.chunks
        fetch.transfer.count(run.chunks, -1)
        link = self.links[run.source]
        del link.serves[run]
        link.count_run(run.kind, -1)
        link = self.links[fetch.store]
        link.gets -= 1
        link.gets_small -= run.kind is Kind.SMALL

    def _lose(self, run: FetchRun) -> None:
        self._stop(run)
        self._wait(run.fetch)

    def _wait(self, fetch: Fetch) -> None:
        """Let a fetch search for a source at the end of the step."""
        fetch.transfer.waiting[fetch] = None
        self.unsettled[fetch.transfer] = None

    def _request(self, fetch: Fetch, looks: int = MAX_LOOKS) -> None:
        """Start further runs of a fetch while sources have room; otherwise the fetch waits."""
        transfer, link = fetch.transfer, self.links[fetch.store]
        while len(fetch.runs) < MAX_RUNS_OF_FETCH and fetch.missing:
            if not link.may_get(transfer.kind):
                transfer.waiting[fetch] = None
                return
            source = self._choose(fetch, looks)
            if source is None:
                transfer.waiting[fetch] = None
                if not fetch.runs and not self._is_hopeful(fetch):
                    self._despair(fetch)
                return
            self._start(fetch, source)
        transfer.waiting.pop(fetch, None)

    def _choose(self, fetch: Fetch, looks: int) -> int | None:
        """Return the least loaded source that has room and missing chunks, among `looks` candidates."""
        sources, missing, kind = fetch.transfer.sources, fetch.missing, fetch.transfer.kind
        count = len(sources)
        self._turn += 1
        best, fewest = None, MAX_SMALL_RUNS + MAX_RUNS_OF_SOURCE
        for look in range(min(count, looks)):
            source = sources[(self._turn * (MAX_LOOKS + 1) + look) % count]
            link = self.links[source]
            if not link.may_serve[kind]:
                continue
            runs = 1 if link.is_backend else len(link.serves)  # only an idle host store is better
            if runs < fewest and self._useful(fetch, source, missing):
                best, fewest = source, runs
                if not runs:
                    break
        return best

    def _useful(self, fetch: Fetch, source: int, missing: int) -> int:
        """Return the mask of missing chunks available to a fetch at this source."""
        if not self._may_use(fetch, source):
            return 0
        other = fetch.transfer.fetches.get(source)
        return missing if other is None else missing & other.have

    def _may_use(self, fetch: Fetch, source: int) -> bool:
        if source == fetch.store or source in fetch.failed:
            return False
        if source == OBJECT_STORAGE and self.backend in fetch.transfer.sources and self._may_use(fetch, self.backend):
            return False  # no chunk crosses the backend's link twice
        return not self.unreachable or self.unreachable.get((fetch.store, source), -math.inf) <= self.timer.now

    def _start(self, fetch: Fetch, source: int) -> None:
        """Start the next run of a fetch at this source, which has room and missing chunks."""
        transfer = fetch.transfer
        chunks = self._useful(fetch, source, fetch.missing)
        kind = transfer.kind
        if kind is Kind.SHARED:
            self._turn += 1
            chunks = transfer.rarest(chunks, self._turn * 7919)
            count, first = 1, chunks.bit_length() - 1
        else:
            had = fetch.have.bit_count() * transfer.chunk_bytes
            most = max(FIRST_RUN_BYTES, min(had, MAX_RUN_BYTES)) // transfer.chunk_bytes
            first = (chunks & -chunks).bit_length() - 1
            along = chunks >> first
            count = min(max(most, 1), (~along & along + 1).bit_length() - 1)
            chunks = ((1 << count) - 1) << first
        size_bytes = min((first + count) * transfer.chunk_bytes, transfer.size_bytes) - first * transfer.chunk_bytes
        run = FetchRun(fetch, source, first, chunks, size_bytes, kind, self.timer.now)
        link = self.links[source]
        fetch.runs.append(run)
        fetch.asked |= chunks
        transfer.count(chunks, 1)
        link.serves[run] = None
        link.count_run(kind, 1)
        own = self.links[fetch.store]
        own.gets += 1
        own.gets_small += kind is Kind.SMALL
        self.mail.add(FetchChunks, fetch.store, transfer.id, transfer.size_bytes, first, count, source)

    def _offer(self, source: int) -> None:
        """Serve waiting fetches while a source has room: round robin over objects, then over stores."""
        link = self.links.get(source)
        while link is not None and (fetch := self._next_of(source, link)) is not None:
            transfer = fetch.transfer
            self._start(fetch, source)
            if len(fetch.runs) == MAX_RUNS_OF_FETCH or not fetch.missing:
                del transfer.waiting[fetch]
            link.offered.move_to_end(transfer)

    def _next_of(self, source: int, link: Traffic) -> Fetch | None:
        """Return the fetch that a source serves next, or None."""
        for transfer in list(islice(link.offered, MAX_LOOKS)) if any(link.may_serve) else ():
            may_wait = transfer.waiting and link.may_serve[transfer.kind]
            fetch = self._waiting_for(transfer, source) if may_wait else None
            if fetch is not None:
                return fetch
            link.offered.move_to_end(transfer)
        return None

    def _waiting_for(self, transfer: Transfer, source: int) -> Fetch | None:
        """Return a fetch that waits for this source. Rotates other fetches to the end."""
        for fetch in list(islice(transfer.waiting, MAX_LOOKS)):
            if self.links[fetch.store].may_get(transfer.kind) and self._useful(fetch, source, fetch.missing):
                return fetch
            transfer.waiting.move_to_end(fetch)
        return None

    # -- without a source

    def _is_hopeful(self, fetch: Fetch) -> bool:
        """Return whether known sources have, or will have, all missing chunks of a fetch."""
        transfer, missing = fetch.transfer, fetch.missing
        left = missing
        for source in transfer.sources:
            left &= ~self._useful(fetch, source, missing)
            if not left:
                return True
        for other in transfer.fetches.values():
            if self._may_use(fetch, other.store):
                left &= ~other.asked
        return not left

    def _despair(self, fetch: Fetch) -> None:
        """Find another way for a fetch without a source, or report to its store that the object is unavailable."""
        transfer, copies = fetch.transfer, self.directory.find(fetch.transfer.id)
        known = len(transfer.sources)
        if fetch.failures < MAX_FAILURES:
            self._add_holders(transfer)
            if copies is None and self.timer.now < self.unknown_from:
                return
            if len(transfer.sources) > known:
                self.unsettled[transfer] = None
                return
            holders = set() if copies is None else copies.holders - fetch.failed
            if holders & self.awaited:
                return
            pushing = holders & self.links.keys() - {OBJECT_STORAGE, fetch.store}
            if fetch.store == OBJECT_STORAGE:
                transfer.is_out_of_reach = self.backend in pushing
            if transfer.is_out_of_reach:
                pushing -= {self.backend}
            if pushing and OBJECT_STORAGE not in holders:
                pusher = self.backend if self.backend in pushing else min(pushing)
                if transfer.pushed_by is None or pusher == self.backend != transfer.pushed_by:
                    transfer.pushed_by = pusher
                    if pusher == self.backend:
                        self.mail.add(CopyObjects, OBJECT_STORAGE, transfer.id, transfer.size_bytes)
                    else:
                        self.mail.add(PushObjects, min(pushing), transfer.id)
                return
        self.mail.unavailable(fetch.store, transfer.id, self.directory.lost.get(transfer.id, ""))
        self._drop(fetch)
        self.persisted.refused(fetch.store, transfer.id, self.timer.now)

    def _note_sole(self, identifier: bytes, left: Copies) -> None:
        self.persisted.lost(identifier)
        if len(left.holders) == 1:
            [holder] = left.holders
            if holder in self.links and holder != self.backend:
                self.mail.add(SoleCopies, holder, identifier)
