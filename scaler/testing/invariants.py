"""Invariants that hold after every step of the scheduler's core. O(everything)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from scaler.ids import is_task, owner_of
from scaler.needs import UNITS_PER_ONE, Needs
from scaler.protocol.chunks import LARGE_BYTES
from scaler.scheduler.core.accounts import ENTRY_BYTES, REFERENCE_BYTES, KeyAccount, spec_bytes
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.directory import Directory
from scaler.scheduler.core.ready import ReadyQueue
from scaler.scheduler.core.state import Assigned, ClientRecord, Delayed, Ready, Recalled, Task, Waiting, Worker
from scaler.scheduler.data.persisted import MAX_ASKED, PersistedResults
from scaler.scheduler.data.tracker import Tracker
from scaler.scheduler.data.transfer import (
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


def check(state: ClusterState) -> None:
    """Raise AssertionError if an invariant is violated."""
    clients = list(state.all_clients())
    _check_clients(state, clients)
    _check_departed(state)
    _check_tasks(state, clients)
    _check_groups(state, clients)
    _check_workers(state)
    _check_locality(state)
    for client in state.clients.values():
        _check_dependencies(state, client, {task for held in state.data.missing.values() for task in held})
    assert {owner_of(identifier) for identifier in state.data.missing} <= state.clients.keys(), (
        "a lost object's owner left"
    )
    for task in state.held:
        assert type(task.state) is Waiting, f"held task {task.id.hex()} is not waiting"
    _check_accounts(state, clients)
    _check_objects(state, clients)
    tracker = state.data.tracker
    assert isinstance(tracker, Tracker), "the scheduler moves objects with this class"
    check_tracker(tracker)


def _check_clients(state: ClusterState, clients: list[ClientRecord]) -> None:
    for client in state.clients.values():
        assert not client.terminated, f"client {client.name} is terminated and still listed"
        assert client.via is None or client.via.id in state.workers, f"client {client.name} lives in a lost worker"
        numbers = [batch.number for batch in client.unacknowledged]
        assert numbers == sorted(set(numbers)), f"client {client.name} has Finished numbers out of order"
        if client.session is not None:
            labels = client.session.labels.keys()
            assert labels >= client.tasks.keys() | client.retained.keys(), f"{client.name} has a task without a label"
            assert labels >= client.session.owed.keys(), f"{client.name} owes the result of an unknown task"
    for client in clients:
        for spec, group in client.groups.items():
            assert group.spec == spec, "a group is filed under its spec"
            assert group.live > 0, f"group {spec.name} has no living task and was not dropped"
            assert state.objects.functions.keys() >= {*spec.registered}, (
                f"function of {spec.name} was dropped too early"
            )


def _check_departed(state: ClusterState) -> None:
    for client in state.departed:
        assert client.terminated, "a departed client is terminated"
        assert client.tasks, "a departed client without tasks is forgotten"
        for task in client.tasks.values():
            assert type(task.state) is Recalled, "what a departed client had running is recalled"
            assert task.state.cancel, "a task of a terminated client is not asked back to run again"


def _check_accounts(state: ClusterState, clients: list[ClientRecord]) -> None:
    tasks, size_bytes = Counter[KeyAccount](), Counter[KeyAccount]()
    objects = state.objects
    for client in clients:
        account = client.account
        tasks[account] += len(client.tasks)
        size_bytes[account] += sum(map(spec_bytes, client.groups))
        size_bytes[account] += sum(ENTRY_BYTES + len(each.payload) for each in client.retained.values())
        size_bytes[account] += 0 if client.session is None else client.session.size_bytes
        for task in client.tasks.values():
            size_bytes[account] += len(task.payload) + REFERENCE_BYTES * len(task.references)
        if not client.terminated:
            pinned = [objects.functions.get(each) for each in objects.pins.get(client.id, ())]
            size_bytes[account] += sum(ENTRY_BYTES + (len(each.payload) if each else 0) for each in pinned)
    for account in {client.account for client in clients}:
        counted, found = (account.tasks, account.size_bytes), (tasks[account], size_bytes[account])
        assert counted == found, f"account {account.key} counts {counted}, and has {found}"


def _check_tasks(state: ClusterState, clients: list[ClientRecord]) -> None:
    queued = Counter(task.id for queue in state.ready.queues.values() for task in queue)
    for client in clients:
        for identifier, task in client.tasks.items():
            name, group = f"task {identifier.hex()}", task.group
            assert task.id == identifier, "a task is filed under its id"
            assert group.client is client, "a task's group is its client's"
            if (errors := task.errors) is not None:
                spec = group.spec
                assert errors.failures <= max(spec.retries, spec.failed), f"{name} has more retries than it may have"
                assert errors.losses <= spec.max_losses, f"{name} is tried again after more losses than it may have"
            match task.state:
                case Ready():
                    assert queued.pop(identifier, 0) == 1, f"ready {name} is not once in its queue"
                case Waiting() | Delayed():
                    pass
                case Assigned(worker=worker) | Recalled(worker=worker):
                    assert worker.tasks.get(identifier) is task, f"{name} is not among its worker's tasks"
                    assert worker.id in state.workers, f"{name} is on a lost worker"
                case _:
                    raise AssertionError(f"{name} ended and is still listed")
    assert not queued, f"{len(queued)} tasks are queued and not listed as ready"


def _check_groups(state: ClusterState, clients: list[ClientRecord]) -> None:
    tasks = [task for client in clients for task in client.tasks.values()]
    live = Counter(task.group for task in tasks)
    ready = Counter(task.group for task in tasks if type(task.state) is Ready)
    assigned = Counter(task.group for task in tasks if isinstance(task.state, Assigned | Recalled))
    waiting = sum(isinstance(task.state, Waiting | Delayed) for task in tasks)
    assert state.counts.waiting == waiting, f"{state.counts.waiting} tasks counted as waiting, {waiting} wait"
    groups = {group for client in clients for group in client.groups.values()}
    assert set(live) == groups, "a task's group is listed"
    for group in groups:
        counted = (group.live, group.ready, group.assigned)
        true = (live[group], ready[group], assigned[group])
        assert counted == true, f"group {group.spec.name} counts {counted}, and has {true}"
        assert group.calls.keys() <= group.client.tasks.keys(), f"group {group.spec.name} counts calls of an ended task"
        assert group.more == sum(group.calls.values()) - len(group.calls), f"group {group.spec.name} counts calls wrong"
    more = sum(group.more for group in groups)
    assert state.counts.more == more, f"{state.counts.more} calls are counted beyond one per task, and there are {more}"


def _check_worker(state: ClusterState, worker: Worker) -> None:
    name, pool = worker.name, state.pools[worker.offers]
    assert worker.busy <= worker.limit + worker.slots, f"{name} has {worker.busy} tasks beyond {worker.limit}"
    recalled = sum(type(task.state) is Recalled for task in worker.tasks.values())
    assert worker.recalled == recalled, f"{name} counts {worker.recalled} recalled tasks, and has {recalled}"
    counted = Counter(task.group.timing for key, task in worker.tasks.items() if key not in worker.blocked)
    assert worker.by_function == counted, f"{name} counts its tasks by function wrong: {counted.total()} there are"
    assert worker.blocked <= worker.tasks.keys(), f"{name} has a blocked task that is not its own"
    assert (worker in state.overloaded) == (worker.busy > worker.slots), f"{name} is overloaded, or is not"
    willing = worker.is_willing and worker.busy < worker.limit
    has_slot = worker.busy + worker.claims.extra <= worker.slots - 1
    assert (worker in pool.idle) == (willing and has_slot), f"{name} is idle, or is not"
    for task in worker.tasks.values():
        assert task.needs.fits(worker.offers), f"{name} has a task that it cannot run"


def _check_workers(state: ClusterState) -> None:
    for worker in state.workers.values():
        _check_worker(state, worker)
    assert {offers: pool.workers for offers, pool in state.pools.items()} == Counter(
        worker.offers for worker in state.workers.values()
    ), "pool size"
    _check_resources(state)
    for worker in chain.from_iterable([*pool.idle, *pool.prefetching] for pool in state.pools.values()):
        assert worker.id in state.workers, "a lost worker is in a pool"


def _check_locality(state: ClusterState) -> None:
    """A task that prefers a store is queued there, and fits a worker there."""
    by_store: dict[int, set[Worker]] = {}
    for worker in state.workers.values():
        by_store.setdefault(worker.store, set()).add(worker)
    stores = state.data.locality.stores
    assert {number: set(store.workers) for number, store in stores.items()} == by_store, "stores have other workers"
    assert state.data.locality.is_spread == (len(by_store) > 1), "workers use several stores, or do not"
    for number, store in stores.items():
        assert store.total_slots == sum(each.slots for each in store.workers), f"slots at store {number}"
    for needs, queue in state.ready.queues.items():
        _check_queue(needs, queue, by_store)


def _check_queue(needs: Needs, queue: ReadyQueue, by_store: Mapping[int, Collection[Worker]]) -> None:
    lying = {task: number for number, of_store in queue.stores.items() for task in of_store}
    assert queue.preferred == lying, "a task that prefers a store lies in its queue"
    assert not queue.taken, "what was taken was sent or put back"
    assert Counter(task.group.rank for task in lying) == queue.preferred_ranks, "ranks are counted wrong"
    assert queue.total == sum(1 for _ in queue), f"a queue counts {queue.total} tasks"
    for number, of_store in queue.stores.items():
        assert of_store.count == sum(1 for _ in of_store) > 0, f"the queue of store {number} counts its tasks wrong"
        assert any(needs.fits(worker.offers) for worker in by_store.get(number, ())), (
            f"tasks wait for store {number}, where no worker fits them"
        )


def _check_resources(state: ClusterState) -> None:
    """Claimed resources match the assigned tasks, and none is claimed twice."""
    used: Counter[Any] = Counter()
    devices: Counter[tuple[Any, int]] = Counter()
    for worker in state.workers.values():
        _check_slots(state, worker)
        for needs, indexes in worker.claims.by_task.values():
            for each, amount in needs.claims:
                stock = _stocks(worker).get(each)
                if hasattr(stock, "left"):
                    assert indexes or worker.claims.may_exceed, f"{worker.name} gave a task no gpu"
                    part = min(amount, UNITS_PER_ONE)
                    devices.update({(stock, index): part for index in indexes})
                    used[stock] += part * len(indexes)
                elif stock is not None:
                    used[stock] += amount
    _check_stocks(state, used, devices)


def _check_slots(state: ClusterState, worker: Worker) -> None:
    name = worker.name
    counted = {key for key, task in worker.tasks.items() if task.needs.is_counted}
    assert worker.claims.by_task.keys() == counted, f"{name} counts what its tasks take of it"
    extra = 0.0
    for key, (needs, _) in worker.claims.by_task.items():
        assert needs == worker.tasks[key].needs, f"{name} counts what a task needs"
        extra += needs.width(worker.offers, worker.slots) - 1 if key not in worker.blocked else 0
    found = worker.claims.extra
    assert found == extra, f"{name} counts {found} more slots than tasks, and they take {extra}"
    if extra and not worker.claims.may_exceed:
        assert worker.busy + extra <= worker.slots, f"{name} has tasks for more slots than it has"
    reserved = [queue for queue in state.ready.queues.values() if queue is worker.claims.reserved]
    assert worker.claims.reserved is None or reserved, f"{name} keeps slots for a queue that is gone"


def _stocks(worker: Worker) -> dict[str, Any]:
    """Return what the extension `resources` counts."""
    return cast("dict[str, Any]", getattr(worker.claims, "stocks", {}))


def _check_stocks(state: ClusterState, used: Counter[Any], devices: Counter[tuple[Any, int]]) -> None:
    workers = state.workers.values()
    hosts = Counter(getattr(worker.claims, "shared_memory", None) for worker in workers)
    exceeding = {stock for worker in workers if worker.claims.may_exceed for stock in _stocks(worker).values()}
    for stock in {stock for worker in workers for stock in _stocks(worker).values()}:
        assert stock.used == used[stock], f"a stock counts {stock.used}, and its tasks take {used[stock]}"
        assert stock.used <= stock.total or stock in exceeding, f"{stock.used} are taken of a stock of {stock.total}"
        assert stock.workers == hosts[stock], "the workers that share a host's memory are counted wrong"
        if hasattr(stock, "left"):
            full = type(stock)(stock.total).left
            left = [whole - devices[stock, index] for index, whole in enumerate(full)]
            assert stock.left == left, f"gpus have {stock.left} left, and it should be {left}"
            assert min(left, default=0) >= 0 or stock in exceeding, f"a gpu is given away twice: {left}"


def _check_dependencies(state: ClusterState, client: ClientRecord, held: set[Task]) -> None:
    """Every value that a task or client may name is retained and counted."""
    uses: Counter[bytes] = Counter()
    for task in client.tasks.values():
        name = f"task {task.id.hex()}"
        references = list(filter(is_task, task.references))
        assert all(owner_of(reference) == client.id for reference in references), f"{name} depends on another client's"
        uses.update(reference for reference in references if reference not in client.tasks)
        missing = sum(reference in client.tasks for reference in references)
        if type(task.state) is Waiting:
            missing += (task in held) + (task in state.held)
            assert 0 < task.state.missing == missing, f"{name} misses {missing}, not {task.state.missing}"
        elif type(task.state) is Ready:
            assert missing == 0, f"{name} is beyond waiting and misses {missing}"
    sent = {identifier for batch in client.unacknowledged for identifier in batch.ids}
    for key, retained in client.retained.items():
        kept = client.session is not None or key in sent
        assert retained.unacknowledged == kept, f"{key.hex()} is unacknowledged, or is not"
        assert retained.uses == uses[key], f"{key.hex()} counts {retained.uses} uses, has {uses[key]}"
        assert retained.uses or retained.unacknowledged, f"{key.hex()} is retained for nothing"


def _check_objects(state: ClusterState, clients: list[ClientRecord]) -> None:
    objects = state.objects
    used = Counter(identifier for client in clients for spec in client.groups for identifier in spec.registered)
    pinned = Counter(chain.from_iterable(objects.pins.values()))
    assert objects.pins.keys() <= state.clients.keys(), "a client that has left pins something"
    for key, entry in chain(objects.functions.items(), objects.stored.items()):
        assert entry.uses > 0 or entry.pins, f"object {key.hex()} is kept for nothing"
        assert entry.pins == pinned[key], f"the pins of object {key.hex()} are counted wrong"
    for key, function in objects.functions.items():
        assert function.uses == used[key], f"the uses of function {key.hex()} are counted wrong"
        assert function.announced_to <= state.workers.keys(), "a lost worker was sent a function"


def check_tracker(tracker: Tracker) -> None:
    """Raise AssertionError if an invariant is violated after `take`."""
    assert not tracker.unsettled, "all is settled at the end of a step"
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
    assert link.serves_of == kinds, f"store {number} counts the runs that it serves"
    is_unbounded = link.is_backend
    assert small <= MAX_SMALL_RUNS or is_unbounded, f"store {number} serves {small} small runs"
    assert lone + shared <= MAX_RUNS_OF_SOURCE or is_unbounded, f"store {number} serves {lone + shared} runs"
    assert shared <= MAX_SHARED_RUNS or is_unbounded, f"store {number} serves {shared} runs of shared objects"
    small = sum(run.kind is Kind.SMALL for run in own)
    assert (link.gets, link.gets_small) == (len(own), small), f"store {number} counts the runs that it gets"
    assert link.gets - small <= MAX_RUNS_OF_FETCHER, f"store {number} gets {link.gets} runs"
    fetches = {each.id: each.fetches[number] for each in tracker.transfers.values() if number in each.fetches}
    assert link.fetches == fetches, f"the fetches of store {number} are listed"
    assert all(transfer.id in tracker.transfers for transfer in link.offered), "a transfer that ended is offered"


def _check_fetches(transfer: Transfer) -> None:
    name = f"the transfer of {transfer.id.hex()}"
    for fetch in transfer.fetches.values():
        assert not fetch.have & fetch.asked, f"{name}: a chunk that has come is under way"
        assert fetch.asked == sum(run.chunks for run in fetch.runs), f"{name}: what is under way is in runs"
        assert len(fetch.runs) <= MAX_RUNS_OF_FETCH, f"{name}: too many runs"
        assert fetch.runs or fetch in transfer.waiting, f"{name}: a fetch that waits for nothing"


def _check_transfer(tracker: Tracker, identifier: bytes, transfer: Transfer) -> None:
    name = f"the transfer of {identifier.hex()}"
    assert transfer.id == identifier, f"{name} is filed under its object"
    assert transfer.fetches, f"{name} has no fetch and is listed"
    assert {*transfer.waiting} <= {*transfer.fetches.values()}, f"{name} has a fetch that waits and has ended"
    assert len(set(transfer.sources)) == len(transfer.sources), f"{name} lists a source twice"
    sources = {number for number, link in tracker.links.items() if transfer in link.offered}
    assert set(transfer.sources) == sources, f"{name} is offered by its sources"
    counts = [0] * len(transfer.counts)
    for fetch in transfer.fetches.values():
        for chunk in range(len(counts)):
            counts[chunk] += (fetch.have | fetch.asked) >> chunk & 1
    for counted, count in zip(transfer.counts, counts, strict=True):
        assert count <= counted, f"{name} counts fewer copies of its chunks than there are"
    for rank, mask in enumerate(transfer.ranks):
        listed = [chunk for chunk, count in enumerate(transfer.counts) if count.bit_length() == rank]
        assert mask == sum(1 << chunk for chunk in listed), f"{name} ranks its chunks wrong"


def check_directory(directory: Directory, stores: Collection[int]) -> None:
    """Raise AssertionError if an invariant is violated. stores: numbers of all stores."""
    filed = {(store, each) for store, objects in directory.by_store.items() for each in objects}
    held = {
        (store, each)
        for objects in directory.by_owner.values()
        for each, copies in objects.items()
        for store in copies.holders
    }
    assert filed == held, "objects are filed under the stores that have them"
    assert {store for store, _ in held} <= set(stores), "a store that has gone has nothing"
    assert all(directory.large.values()), "an owner without large objects is listed"
    assert directory.large.keys() <= directory.by_owner.keys(), "an owner without objects is listed"
    for owner, objects in directory.by_owner.items():
        assert objects, f"owner {owner.hex()} has no object and is listed"
        large = {each: copies for each, copies in objects.items() if copies.size_bytes >= LARGE_BYTES}
        assert directory.large.get(owner, {}) == large, f"the large objects of owner {owner.hex()} are listed"
        for identifier, copies in objects.items():
            assert owner_of(identifier) == owner, f"object {identifier.hex()} is filed under another owner"
            assert copies.holders, f"object {identifier.hex()} has no holder and is listed"


def _check_persisted(persisted: PersistedResults, directory: Directory) -> None:
    assert all(persisted.refusals.values()), "a client without persisted results is listed"
    listed = {identifier for of_owner in persisted.refusals.values() for identifier in of_owner}
    assert persisted.asked | persisted.unsettled.keys() <= listed, "a result is settled that was forgotten"
    assert len(persisted.asked) <= MAX_ASKED, "the object storage is asked for too much"
    pending = persisted.asked | persisted.unsettled.keys() | {identifier for _, identifier in persisted.delayed}
    for identifier in listed - pending:
        copies = directory.find(identifier)
        assert copies is None or copies.holders & persisted.places, "a persisted result lacks a copy"
