"""What must be true after every step, checked from the outside, O(everything). For tests, simulations and replays."""

from __future__ import annotations

from collections import Counter

from scaler.ids import is_task, owner_of
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.state import Assigned, Client, Delayed, Group, Ready, Recalled, Waiting


def check(core: SchedulerCore) -> None:
    """Raise AssertionError with what is wrong, when an invariant does not hold."""
    everybody = [*core.clients.values(), *_leaving(core)]
    _check_clients(core, everybody)
    _check_tasks(core, everybody)
    _check_workers(core)
    _check_dependencies(core)
    _check_objects(core)


def _leaving(core: SchedulerCore) -> list[Client]:
    return [client for clients in core.tasks.departed.values() for client in clients]


def _check_clients(core: SchedulerCore, everybody: list[Client]) -> None:
    for client in core.clients.values():
        assert not client.terminated, f"client {client.name} is gone and still listed"
        assert client.via is None or client.via.id in core.workers, f"client {client.name} lives in a lost worker"
        assert client.batch is None, f"client {client.name} has an unsent batch after the step"
        numbers = [batch.number for batch in client.unacknowledged]
        assert numbers == sorted(set(numbers)), f"client {client.name} has Finished numbers out of order"
    for client in _leaving(core):
        assert client.terminated, "a leaving client is gone"
        assert client.tasks, "a leaving client without tasks is forgotten"
        for task in client.tasks.values():
            assert type(task.state) is Recalled, "what a client that is gone had running is recalled"
    for client in everybody:
        for spec, group in client.groups.items():
            assert group.spec == spec, "a group is filed under its spec"
            assert group.live > 0, f"group {spec.name} has no living task and was not dropped"
            assert core.objects.definition(spec.function) is not None, f"function of {spec.name} was dropped too early"


def _check_tasks(core: SchedulerCore, everybody: list[Client]) -> None:
    queued = Counter(task.id for queue in core.ready.waiting() for task in queue)
    live: Counter[Group] = Counter()
    ready: Counter[Group] = Counter()
    assigned: Counter[Group] = Counter()
    waiting = 0
    for client in everybody:
        for identifier, task in client.tasks.items():
            group = task.group
            state = task.state
            assert task.id == identifier, "a task is filed under its id"
            assert group.client is client, "a task's group is its client's"
            live[group] += 1
            match state:
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
                    assert worker.id in core.workers, f"task {identifier.hex()} is on a lost worker"
                    assigned[group] += 1
                case Recalled(worker=worker, cancel=cancel):
                    assert worker.tasks.get(identifier) is task, f"{identifier.hex()} is not among its worker's tasks"
                    assert worker.id in core.workers, f"task {identifier.hex()} is recalled from a lost worker"
                    assert cancel or not client.terminated, (
                        "a task of a terminated client is not asked back to run again"
                    )
                    assigned[group] += 1
                case _:
                    raise AssertionError(f"task {identifier.hex()} ended and is still listed")
    assert not queued, f"{len(queued)} tasks are queued and not listed as ready"
    assert core.tasks.waiting == waiting, f"{core.tasks.waiting} tasks counted as waiting, {waiting} wait"
    for client in everybody:
        for group in client.groups.values():
            counted = (group.live, group.ready, group.assigned)
            true = (live[group], ready[group], assigned[group])
            assert counted == true, f"group {group.spec.name} counts {counted}, and has {true}"
    assert set(live) == {group for client in everybody for group in client.groups.values()}, "a task's group is listed"


def _check_workers(core: SchedulerCore) -> None:
    pools = {pool.offers: pool for pool in core.placement.pools}
    for worker in core.workers.values():
        name = worker.name
        assert worker.busy <= worker.limit + worker.slots, f"{name} has {worker.busy} tasks beyond {worker.limit}"
        recalled = sum(type(task.state) is Recalled for task in worker.tasks.values())
        assert worker.recalled == recalled, f"{name} counts {worker.recalled} recalled tasks, and has {recalled}"
        held = Counter(task.group.timing for key, task in worker.tasks.items() if key not in worker.blocked)
        assert worker.held == held, f"{name} counts {sum(worker.held.values())} tasks by function, has {held.total()}"
        assert not worker.outgoing, f"{name} has an unsent Run after the step"
        assert worker.blocked <= worker.tasks.keys(), f"{name} has a blocked task that is not its own"
        pool = pools[worker.offers]
        assert (worker in core.placement.overloaded) == (worker.busy > worker.slots), f"{name} is overloaded, or is not"
        willing = not worker.draining and worker.broken_at is None and worker.busy < worker.limit
        assert (worker in pool.idle) == (willing and worker.busy < worker.slots), f"{name} is idle, or is not"
        for task in worker.tasks.values():
            assert task.group.needs.fits(worker.offers), f"{name} has a task that it cannot run"
    for pool in pools.values():
        assert pool.workers == sum(worker.offers == pool.offers for worker in core.workers.values()), "pool size"
        assert all(worker.id in core.workers for worker in [*pool.idle, *pool.room]), "a lost worker is in a pool"


def _check_dependencies(core: SchedulerCore) -> None:
    """Every value that somebody will ask for is kept, and counted right."""
    uses: Counter[bytes] = Counter()
    for client in core.clients.values():
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
    for client in core.clients.values():
        unseen = {identifier for batch in client.unacknowledged for identifier in batch.ids}
        for identifier, kept in client.retained.items():
            assert kept.unacknowledged == (identifier in unseen), f"{identifier.hex()} is unseen, or is not"
            assert kept.uses == uses[identifier], f"{identifier.hex()} counts {kept.uses} uses, has {uses[identifier]}"
            assert kept.uses or kept.unacknowledged, f"{identifier.hex()} is kept for nobody"


def _check_objects(core: SchedulerCore) -> None:
    used: Counter[bytes] = Counter()
    for client in [*core.clients.values(), *_leaving(core)]:
        for spec in client.groups:
            used.update(identifier for identifier in (spec.function, spec.serializer) if identifier)
    for identifier, definition in core.objects.definitions.items():
        assert definition.uses or definition.holders, f"definition {identifier.hex()} is kept for nobody"
        assert definition.uses == used[identifier], f"definition {identifier.hex()} is counted wrong"
        assert definition.holders <= core.clients.keys(), "a client that is gone holds a definition"
        assert definition.told <= core.workers.keys(), "a lost worker was told a definition"
    for identifier, stored in core.objects.stored.items():
        assert stored.uses > 0 or stored.held, f"object {identifier.hex()} is kept for nobody"
        assert not stored.held or owner_of(identifier) in core.clients, f"{identifier.hex()}: its holder is gone"
    for worker in core.workers.values():
        told = {key for key, definition in core.objects.definitions.items() if worker.id in definition.told}
        assert told == worker.known, f"{worker.name} knows other definitions than it was told"
