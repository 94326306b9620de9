"""Invariants that hold after every step of the scheduler's core. O(everything)."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any, cast

from scaler.ids import is_task, owner_of
from scaler.needs import UNITS_PER_ONE
from scaler.scheduler.core.accounts import ENTRY_BYTES, REFERENCE_BYTES, KeyAccount, spec_bytes
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import Assigned, ClientRecord, Delayed, Ready, Recalled, Task, Waiting, Worker
from scaler.scheduler.core.stores import Stores


def check(state: ClusterState) -> None:
    """Raise AssertionError if an invariant is violated."""
    clients = list(state.all_clients())
    _check_clients(state, clients)
    _check_departed(state)
    _check_tasks(state, clients)
    _check_groups(state, clients)
    _check_workers(state)
    for client in state.clients.values():
        _check_dependencies(state, client, {task for held in state.objects.missing.values() for task in held})
    assert {owner_of(identifier) for identifier in state.objects.missing} <= state.clients.keys(), (
        "a lost object's owner left"
    )
    _check_accounts(state, clients)
    _check_objects(state, clients)
    for queue in state.ready.queues.values():
        assert queue.total == sum(1 for _ in queue), f"a queue has a wrong count of tasks: {queue.total}"
    if type(state.rooms.stores) is not Stores:
        from scaler.testing.store_invariants import check_stores  # noqa: PLC0415 (of an extension)

        check_stores(state)


def _check_clients(state: ClusterState, clients: list[ClientRecord]) -> None:
    sessions = getattr(state.rooms.durability, "sessions", {})
    assert sessions.keys() == {client.id for client in clients if client.is_durable}, "one session each"
    for client in state.clients.values():
        assert not client.terminated, f"client {client.name} is terminated but still listed"
        assert client.via is None or client.via.id in state.workers, (
            f"client {client.name} is live inside a lost worker"
        )
        numbers = [batch.number for batch in client.unacknowledged]
        assert numbers == sorted(set(numbers)), f"client {client.name} has Finished numbers out of order"
        if client.is_durable:
            session = sessions[client.id]
            labels = session.labels.keys()
            assert labels >= client.tasks.keys() | client.retained.keys(), f"{client.name} has a task without a label"
            assert labels >= session.owed.keys(), f"{client.name} expects the result of an unknown task"
    for client in clients:
        for spec, group in client.groups.items():
            assert group.spec == spec, "a group is indexed by its spec"
            assert group.is_active == (group.live > 0), f"group {spec.name} has no live task but takes turns"
            assert state.objects.functions.keys() >= {*spec.registered}, (
                f"function of {spec.name} was dropped too early"
            )


def _check_departed(state: ClusterState) -> None:
    for client in state.departed:
        assert client.terminated, "a departed client is terminated"
        assert client.tasks, "a departed client without tasks is dropped"
        for task in client.tasks.values():
            assert type(task.state) is Recalled, "the running tasks of a departed client are recalled"
            assert task.state.cancel, "a task of a terminated client is not recalled to run again"


def _check_accounts(state: ClusterState, clients: list[ClientRecord]) -> None:
    tasks, size_bytes = Counter[KeyAccount](), Counter[KeyAccount]()
    objects, sessions = state.objects, getattr(state.rooms.durability, "sessions", {})
    for client in clients:
        account = client.account
        tasks[account] += len(client.tasks)
        size_bytes[account] += sum(map(spec_bytes, client.groups))
        size_bytes[account] += sum(ENTRY_BYTES + len(each.payload) for each in client.retained.values())
        size_bytes[account] += sessions[client.id].size_bytes if client.is_durable else 0
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
            assert task.id == identifier, "a task is indexed by its id"
            assert group.client is client, "a task's group is its client's"
            if (errors := task.errors) is not None:
                spec = group.spec
                assert errors.failures <= max(spec.retries, spec.failed), f"{name} has more retries than allowed"
                assert errors.losses <= spec.max_losses, f"{name} is retried after more losses than allowed"
            match task.state:
                case Ready():
                    assert queued.pop(identifier, 0) == 1, f"ready {name} does not appear exactly once in its queue"
                case Waiting() | Delayed():
                    pass
                case Assigned(worker=worker) | Recalled(worker=worker):
                    assert worker.tasks.get(identifier) is task, f"{name} is not among its worker's tasks"
                    assert worker.id in state.workers, f"{name} is on a lost worker"
                case _:
                    raise AssertionError(f"{name} has ended but is still listed")
    assert not queued, f"{len(queued)} tasks are queued but not listed as ready"


def _check_groups(state: ClusterState, clients: list[ClientRecord]) -> None:
    tasks = [task for client in clients for task in client.tasks.values()]
    live = Counter(task.group for task in tasks)
    ready = Counter(task.group for task in tasks if type(task.state) is Ready)
    assigned = Counter(task.group for task in tasks if isinstance(task.state, Assigned | Recalled))
    waiting = sum(isinstance(task.state, Waiting | Delayed) for task in tasks)
    assert state.counts.waiting == waiting, f"{state.counts.waiting} tasks counted as waiting, {waiting} wait"
    groups = {group for client in clients for group in client.groups.values()}
    assert set(live) <= groups, "a task's group is not listed"
    for group in groups:
        counted = (group.live, group.ready, group.assigned)
        true = (live[group], ready[group], assigned[group])
        assert counted == true, f"group {group.spec.name} counts {counted}, and has {true}"
        assert group.calls.keys() <= group.client.tasks.keys(), f"group {group.spec.name} counts calls of an ended task"
        assert group.more == sum(group.calls.values()) - len(group.calls), (
            f"group {group.spec.name} has a wrong count of calls"
        )
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
    assert (worker in state.pools.overloaded) == (worker.busy > worker.slots), (
        f"{name} is overloaded but not listed as such, or the reverse"
    )
    willing = worker.is_willing and worker.busy < worker.limit
    has_slot = worker.busy + worker.claims.extra <= worker.slots - 1
    assert (worker in pool.idle) == (willing and has_slot), f"{name} is idle but not listed as such, or the reverse"
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
    assert worker.claims.by_task.keys() == counted, f"{name} counts the amounts that its tasks use"
    extra = 0.0
    for key, (needs, _) in worker.claims.by_task.items():
        assert needs == worker.tasks[key].needs, f"{name} counts the needs of a task"
        extra += needs.width(worker.offers, worker.slots) - 1 if key not in worker.blocked else 0
    found = worker.claims.extra
    assert found == extra, f"{name} counts {found} more slots than tasks, and they take {extra}"
    if extra and not worker.claims.may_exceed:
        assert worker.busy + extra <= worker.slots, f"{name} has tasks for more slots than it has"
    reserved = [queue for queue in state.ready.queues.values() if queue is worker.claims.reserved]
    assert worker.claims.reserved is None or reserved, f"{name} reserves slots for a queue that no longer exists"


def _stocks(worker: Worker) -> dict[str, Any]:
    """Return what the `resources` extension counts."""
    return cast("dict[str, Any]", getattr(worker.claims, "stocks", {}))


def _check_stocks(state: ClusterState, used: Counter[Any], devices: Counter[tuple[Any, int]]) -> None:
    workers = state.workers.values()
    hosts = Counter(getattr(worker.claims, "shared_memory", None) for worker in workers)
    exceeding = {stock for worker in workers if worker.claims.may_exceed for stock in _stocks(worker).values()}
    for stock in {stock for worker in workers for stock in _stocks(worker).values()}:
        assert stock.used == used[stock], f"a stock counts {stock.used}, and its tasks take {used[stock]}"
        assert stock.used <= stock.total or stock in exceeding, f"{stock.used} are taken of a stock of {stock.total}"
        assert stock.workers == hosts[stock], "the count of workers that share a host's memory is wrong"
        if hasattr(stock, "left"):
            full = type(stock)(stock.total).left
            left = [whole - devices[stock, index] for index, whole in enumerate(full)]
            assert stock.left == left, f"gpus have {stock.left} left, and it should be {left}"
            assert min(left, default=0) >= 0 or stock in exceeding, f"a gpu is assigned twice: {left}"


def _check_dependencies(state: ClusterState, client: ClientRecord, held: set[Task]) -> None:
    """Every value that a task or client may name is retained and counted."""
    uses: Counter[bytes] = Counter()
    for task in client.tasks.values():
        name = f"task {task.id.hex()}"
        references = list(filter(is_task, task.references))
        assert all(owner_of(reference) == client.id for reference in references), (
            f"{name} depends on another client's task"
        )
        uses.update(reference for reference in references if reference not in client.tasks)
        missing = sum(reference in client.tasks for reference in references)
        if type(task.state) is Waiting:
            missing += (task in held) + (task in state.rooms.durability.held)
            assert 0 < task.state.missing == missing, f"{name} misses {missing}, not {task.state.missing}"
        elif type(task.state) is Ready:
            assert missing == 0, f"{name} is no longer waiting but lacks {missing}"
    sent = {identifier for batch in client.unacknowledged for identifier in batch.ids}
    for key, retained in client.retained.items():
        kept = client.is_durable or key in sent
        assert retained.unacknowledged == kept, f"{key.hex()} is unacknowledged but not listed as such, or the reverse"
        assert retained.uses == uses[key], f"{key.hex()} counts {retained.uses} uses, has {uses[key]}"
        assert retained.uses or retained.unacknowledged, f"{key.hex()} is retained unnecessarily"


def _check_objects(state: ClusterState, clients: list[ClientRecord]) -> None:
    objects = state.objects
    used = Counter(identifier for client in clients for spec in client.groups for identifier in spec.registered)
    pinned = Counter(chain.from_iterable(objects.pins.values()))
    assert objects.pins.keys() <= state.clients.keys(), "a client that has left pins something"
    for key, entry in chain(objects.functions.items(), objects.stored.items()):
        assert entry.uses > 0 or entry.pins, f"object {key.hex()} is kept unnecessarily"
        assert entry.pins == pinned[key], f"the count of pins of object {key.hex()} is wrong"
    for key, function in objects.functions.items():
        assert function.uses == used[key], f"the count of uses of function {key.hex()} is wrong"
        assert function.announced_to <= state.workers.keys(), "a lost worker was sent a function"
