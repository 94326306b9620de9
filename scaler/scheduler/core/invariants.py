"""What must be true after every step, checked from the outside, O(everything). For tests, simulations and replays."""

from __future__ import annotations

from collections import Counter

from scaler.ids import is_task, owner_of
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.state import Assigned, ClientRecord, Delayed, Group, Ready, Recalled, Waiting


def check(state: ClusterState) -> None:
    """Raise AssertionError with what is wrong, when an invariant does not hold."""
    clients = list(state.all_clients())
    _check_clients(state, clients)
    _check_tasks(state, clients)
    _check_workers(state)
    _check_dependencies(state)
    _check_objects(state)


def _check_clients(state: ClusterState, clients: list[ClientRecord]) -> None:
    for client in state.clients.values():
        assert not client.terminated, f"client {client.name} is terminated and still listed"
        assert client.via is None or client.via.id in state.workers, f"client {client.name} lives in a lost worker"
        numbers = [batch.number for batch in client.unacknowledged]
        assert numbers == sorted(set(numbers)), f"client {client.name} has Finished numbers out of order"
    for client in clients[len(state.clients) :]:
        assert client.terminated, "a departed client is terminated"
        assert client.tasks, "a departed client without tasks is forgotten"
        for task in client.tasks.values():
            assert type(task.state) is Recalled, "what a departed client had running is recalled"
    for client in clients:
        for spec, group in client.groups.items():
            assert group.spec == spec, "a group is filed under its spec"
            assert group.live > 0, f"group {spec.name} has no living task and was not dropped"
            assert state.objects.knows(spec), f"function of {spec.name} was dropped too early"


def _check_tasks(state: ClusterState, clients: list[ClientRecord]) -> None:
    queued = Counter(task.id for queue in state.ready.queues.values() for task in queue)
    live: Counter[Group] = Counter()
    ready: Counter[Group] = Counter()
    assigned: Counter[Group] = Counter()
    waiting = 0
    for client in clients:
        for identifier, task in client.tasks.items():
            group = task.group
            assert task.id == identifier, "a task is filed under its id"
            assert group.client is client, "a task's group is its client's"
            live[group] += 1
            match task.state:
                case Ready():
                    assert queued.pop(task.id, 0) == 1, f"ready task {identifier.hex()} is not once in its queue"
                    ready[group] += 1
                case Waiting(missing=missing):
                    assert missing > 0, f"task {identifier.hex()} waits for nothing"
                    waiting += 1
                case Delayed():
                    waiting += 1
                case Assigned(worker=worker):
                    assert worker.tasks.get(identifier) is task, f"{identifier.hex()} is not among its worker's tasks"
                    assert worker.id in state.workers, f"task {identifier.hex()} is on a lost worker"
                    assigned[group] += 1
                case Recalled(worker=worker, cancel=cancel):
                    assert worker.tasks.get(identifier) is task, f"{identifier.hex()} is not among its worker's tasks"
                    assert worker.id in state.workers, f"task {identifier.hex()} is recalled from a lost worker"
                    assert cancel or not client.terminated, (
                        "a task of a terminated client is not asked back to run again"
                    )
                    assigned[group] += 1
                case _:
                    raise AssertionError(f"task {identifier.hex()} ended and is still listed")
    assert not queued, f"{len(queued)} tasks are queued and not listed as ready"
    assert state.waiting == waiting, f"{state.waiting} tasks counted as waiting, {waiting} wait"
    for client in clients:
        for group in client.groups.values():
            counted = (group.live, group.ready, group.assigned)
            true = (live[group], ready[group], assigned[group])
            assert counted == true, f"group {group.spec.name} counts {counted}, and has {true}"
    assert set(live) == {group for client in clients for group in client.groups.values()}, "a task's group is listed"


def _check_workers(state: ClusterState) -> None:
    pools = {pool.offers: pool for pool in state.pools.values()}
    for worker in state.workers.values():
        name = worker.name
        assert worker.busy <= worker.limit + worker.slots, f"{name} has {worker.busy} tasks beyond {worker.limit}"
        recalled = sum(type(task.state) is Recalled for task in worker.tasks.values())
        assert worker.recalled == recalled, f"{name} counts {worker.recalled} recalled tasks, and has {recalled}"
        counted = Counter(task.group.timing for key, task in worker.tasks.items() if key not in worker.blocked)
        assert worker.by_function == counted, f"{name} counts its tasks by function wrong: {counted.total()} there are"
        assert worker.blocked <= worker.tasks.keys(), f"{name} has a blocked task that is not its own"
        pool = pools[worker.offers]
        assert (worker in state.overloaded) == (worker.busy > worker.slots), f"{name} is overloaded, or is not"
        willing = worker.is_willing and worker.busy < worker.limit
        assert (worker in pool.idle) == (willing and worker.busy < worker.slots), f"{name} is idle, or is not"
        for task in worker.tasks.values():
            assert task.group.needs.fits(worker.offers), f"{name} has a task that it cannot run"
    for pool in pools.values():
        assert pool.workers == sum(worker.offers == pool.offers for worker in state.workers.values()), "pool size"
        assert all(worker.id in state.workers for worker in [*pool.idle, *pool.prefetching]), (
            "a lost worker is in a pool"
        )


def _check_dependencies(state: ClusterState) -> None:
    """Every value that a task or client may still name is retained, and counted right."""
    uses: Counter[bytes] = Counter()
    for client in state.clients.values():
        for task in client.tasks.values():
            missing = 0
            for reference in task.references:
                if not is_task(reference):
                    continue
                assert owner_of(reference) == client.id, f"task {task.id.hex()} depends on another client's"
                if reference in client.tasks:
                    missing += 1
                else:
                    uses[reference] += 1
            if type(task.state) is Waiting:
                assert task.state.missing == missing, f"task {task.id.hex()} misses {missing}, not {task.state.missing}"
            else:
                assert missing == 0 or client.terminated, f"task {task.id.hex()} is beyond waiting and misses {missing}"
    for client in state.clients.values():
        sent = {identifier for batch in client.unacknowledged for identifier in batch.ids}
        for key, retained in client.retained.items():
            assert retained.unacknowledged == (key in sent), f"{key.hex()} is unacknowledged, or is not"
            assert retained.uses == uses[key], f"{key.hex()} counts {retained.uses} uses, has {uses[key]}"
            assert retained.uses or retained.unacknowledged, f"{key.hex()} is retained for nothing"


def _check_objects(state: ClusterState) -> None:
    used: Counter[bytes] = Counter()
    for client in state.all_clients():
        for spec in client.groups:
            used.update(identifier for identifier in (spec.function, spec.serializer) if identifier)
    for key, function in state.objects.functions.items():
        assert function.uses or function.pinned_by, f"function {key.hex()} is kept for nothing"
        assert function.uses == used[key], f"the uses of function {key.hex()} are counted wrong"
        assert function.pinned_by <= state.clients.keys(), "a client that has left pins a function"
        assert function.announced_to <= state.workers.keys(), "a lost worker was sent a function"
    for key, stored in state.objects.stored.items():
        assert stored.uses > 0 or stored.pinned, f"object {key.hex()} is kept for nothing"
        assert not stored.pinned or owner_of(key) in state.clients, f"{key.hex()}: the client that pins it has left"
