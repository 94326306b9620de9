"""Invariants of the data plane that hold after every step of the scheduler's core. O(everything)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from scaler.extensions.data_plane.directory import Directory
from scaler.extensions.data_plane.locality import Locality
from scaler.extensions.data_plane.persisted import MAX_ASKED, PersistedResults
from scaler.extensions.data_plane.queues import NearQueue
from scaler.extensions.data_plane.stores import HostStores
from scaler.extensions.data_plane.tracker import Tracker
from scaler.extensions.data_plane.transfer import (
    MAX_RUNS_OF_FETCH,
    MAX_RUNS_OF_FETCHER,
    MAX_RUNS_OF_SOURCE,
    MAX_SHARED_RUNS,
    MAX_SMALL_RUNS,
    FetchRun,
    Kind,
    Traffic,
    Transfer,
)
from scaler.ids import owner_of
from scaler.needs import Needs
from scaler.protocol.chunks import LARGE_BYTES
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import Worker


def check_stores(state: ClusterState) -> None:
    """Raise AssertionError if an invariant is violated."""
    stores = state.rooms.stores
    assert isinstance(stores, HostStores), "the scheduler moves objects with this class"
    _check_locality(state, stores)
    check_tracker(stores.tracker)


def _check_locality(state: ClusterState, locality: Locality) -> None:
    """A task that prefers a store is queued there, and fits a worker there."""
    by_store: dict[int, set[Worker]] = {}
    assert locality.store_of.keys() == set(state.workers.values()), "each worker uses a store"
    for worker, number in locality.store_of.items():
        by_store.setdefault(number, set()).add(worker)
    stores = locality.stores
    assert {number: set(store.workers) for number, store in stores.items()} == by_store, "the stores' workers are wrong"
    assert locality.is_spread == (len(by_store) > 1), "the flag for several stores is wrong"
    for number, store in stores.items():
        assert store.total_slots == sum(each.slots for each in store.workers), f"slots at store {number}"
    for needs, queue in state.ready.queues.items():
        assert isinstance(queue, NearQueue), "the data plane creates the queues"
        _check_queue(needs, queue, by_store)


def _check_queue(needs: Needs, queue: NearQueue, by_store: Mapping[int, Collection[Worker]]) -> None:
    lying = {task: number for number, of_store in queue.stores.items() for task in of_store}
    assert queue.preferred == lying, "a task that prefers a store is in its queue"
    assert not queue.taken, "taken tasks were sent or put back"
    assert Counter(task.group.rank for task in lying) == queue.ranks_preferring, "the count of ranks is wrong"
    for number, of_store in queue.stores.items():
        assert of_store.count == sum(1 for _ in of_store) > 0, f"the queue of store {number} has a wrong count of tasks"
        assert any(needs.fits(worker.offers) for worker in by_store.get(number, ())), (
            f"tasks wait for store {number}, where no worker fits them"
        )


def check_tracker(tracker: Tracker) -> None:
    """Raise AssertionError if an invariant is violated after `take`."""
    assert not tracker.unsettled, "everything is settled at the end of a step"
    check_directory(tracker.directory, tracker.links.keys() | tracker.awaited)
    _check_persisted(tracker.persisted, tracker.directory)
    runs = [run for each in tracker.transfers.values() for fetch in each.fetches.values() for run in fetch.runs]
    served = [(run, source) for source, link in tracker.links.items() for run in link.serves]
    assert {(run, run.source) for run in runs} == set(served), "a source serves the runs of its fetchers"
    for number, link in tracker.links.items():
        _check_link(tracker, number, link, [run for run in runs if run.fetch.store == number])
    for identifier, transfer in tracker.transfers.items():
        _check_transfer(tracker, identifier, transfer)
        _check_fetches(transfer)


def _check_link(tracker: Tracker, number: int, link: Traffic, own: Sequence[FetchRun]) -> None:
    kinds = [sum(run.kind is kind for run in link.serves) for kind in Kind]
    small, lone, shared = kinds
    assert link.serves_of == kinds, f"store {number} has a wrong count of runs that it serves"
    is_unbounded = link.is_backend
    assert small <= MAX_SMALL_RUNS or is_unbounded, f"store {number} serves {small} small runs"
    assert lone + shared <= MAX_RUNS_OF_SOURCE or is_unbounded, f"store {number} serves {lone + shared} runs"
    assert shared <= MAX_SHARED_RUNS or is_unbounded, f"store {number} serves {shared} runs of shared objects"
    small = sum(run.kind is Kind.SMALL for run in own)
    assert (link.gets, link.gets_small) == (len(own), small), (
        f"store {number} has a wrong count of runs that it receives"
    )
    assert link.gets - small <= MAX_RUNS_OF_FETCHER, f"store {number} gets {link.gets} runs"
    fetches = {each.id: each.fetches[number] for each in tracker.transfers.values() if number in each.fetches}
    assert link.fetches == fetches, f"store {number} has a wrong list of fetches"
    assert all(transfer.id in tracker.transfers for transfer in link.offered), "a transfer that ended is offered"


def _check_fetches(transfer: Transfer) -> None:
    name = f"the transfer of {transfer.id.hex()}"
    for fetch in transfer.fetches.values():
        assert not fetch.have & fetch.asked, f"{name}: a received chunk is still in transfer"
        assert fetch.asked == sum(run.chunks for run in fetch.runs), f"{name}: the runs contain all requested chunks"
        assert len(fetch.runs) <= MAX_RUNS_OF_FETCH, f"{name}: too many runs"
        assert fetch.runs or fetch in transfer.waiting, f"{name}: a fetch waits for nothing"


def _check_transfer(tracker: Tracker, identifier: bytes, transfer: Transfer) -> None:
    name = f"the transfer of {identifier.hex()}"
    assert transfer.id == identifier, f"{name} is indexed by its object"
    assert transfer.fetches, f"{name} has no fetch but is listed"
    assert {*transfer.waiting} <= {*transfer.fetches.values()}, f"{name} has a waiting fetch that has ended"
    assert len(set(transfer.sources)) == len(transfer.sources), f"{name} lists a source twice"
    sources = {number for number, link in tracker.links.items() if transfer in link.offered}
    assert set(transfer.sources) == sources, f"{name} is missing from its sources' lists"
    counts = [0] * len(transfer.counts)
    for fetch in transfer.fetches.values():
        for chunk in range(len(counts)):
            counts[chunk] += (fetch.have | fetch.asked) >> chunk & 1
    for counted, count in zip(transfer.counts, counts, strict=True):
        assert count <= counted, f"{name} counts fewer copies of its chunks than exist"
    for rank, mask in enumerate(transfer.ranks):
        listed = [chunk for chunk, count in enumerate(transfer.counts) if count.bit_length() == rank]
        assert mask == sum(1 << chunk for chunk in listed), f"{name} ranks its chunks incorrectly"


def check_directory(directory: Directory, stores: Collection[int]) -> None:
    """Raise AssertionError if an invariant is violated. stores: numbers of all stores."""
    filed = {(store, each) for store, objects in directory.by_store.items() for each in objects}
    held = {
        (store, each)
        for objects in directory.by_owner.values()
        for each, copies in objects.items()
        for store in copies.holders
    }
    assert filed == held, "objects are indexed by the stores that have them"
    assert {store for store, _ in held} <= set(stores), "a departed store has no objects"
    assert all(directory.large.values()), "an owner without large objects is listed"
    assert directory.large.keys() <= directory.by_owner.keys(), "an owner without objects is listed"
    for owner, objects in directory.by_owner.items():
        assert objects, f"owner {owner.hex()} has no object but is listed"
        large = {each: copies for each, copies in objects.items() if copies.size_bytes >= LARGE_BYTES}
        assert directory.large.get(owner, {}) == large, f"the list of large objects of owner {owner.hex()} is wrong"
        for identifier, copies in objects.items():
            assert owner_of(identifier) == owner, f"object {identifier.hex()} is indexed by another owner"
            assert copies.holders, f"object {identifier.hex()} has no holder but is listed"


def _check_persisted(persisted: PersistedResults, directory: Directory) -> None:
    assert all(persisted.refusals.values()), "a client without persisted results is listed"
    listed = {identifier for of_owner in persisted.refusals.values() for identifier in of_owner}
    assert persisted.asked | persisted.unsettled.keys() <= listed, "a result that was forgotten is settled"
    assert len(persisted.asked) <= MAX_ASKED, "the object storage has too many requests"
    pending = persisted.asked | persisted.unsettled.keys() | {identifier for _, identifier in persisted.delayed}
    for identifier in listed - pending:
        copies = directory.find(identifier)
        assert copies is None or copies.holders & persisted.places, "a persisted result lacks a copy"
