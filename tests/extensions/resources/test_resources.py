"""Resources of tasks: counted, never oversubscribed, and without starving large tasks."""

from __future__ import annotations

import pytest

from scaler.extensions.explain.core import explain
from scaler.extensions.resources.core import FIRST_SECONDS, RESERVE_AFTER_SECONDS
from scaler.extensions.resources.stocks import MemoryPools
from scaler.policy.simple import SimplePolicy
from scaler.policy.view import ClusterView, Wanted
from scaler.protocol.messages import ManagerStatus, Notice, Run, Suspended, WorkerDetails
from tests.unit.scheduler.driver import Cluster

GB = 1e9
Pairs = tuple[tuple[str, float], ...]
HALF_GPU: Pairs = (("gpu", 0.5),)
GPU: Pairs = (("gpu", 1.0),)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def client(cluster: Cluster) -> str:
    return cluster.client()


def memory(amount_gb: float) -> Pairs:
    return (("memory", amount_gb * GB),)


def cpus(amount: float) -> Pairs:
    return (("cpus", amount),)


def why(cluster: Cluster, task: bytes) -> str:
    return explain(cluster.state, task, cluster.now)


def devices(cluster: Cluster, worker: str) -> list[tuple[int, ...]]:
    """The GPU indexes of each dispatched attempt."""
    runs = [message for name, message in cluster.said if name == worker and isinstance(message, Run)]
    return [found for message in runs for group in message.groups for found in group.devices]


def test_four_tasks_of_8_gb_never_run_together_on_a_worker_of_16_gb(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", {"memory": 16 * GB}, slots=4)
    tasks = cluster.submit(client, 4, needs=memory(8))
    assert cluster.on(worker) == tasks[:2]
    assert "it waits for 8 GB of memory; worker manager-1 (host, pid 1) has 0 B of memory free" in why(
        cluster, tasks[3]
    )
    cluster.finish(worker, tasks[0])
    assert cluster.on(worker) == tasks[1:3]


def test_workers_of_one_host_share_its_memory_exclusively(cluster: Cluster, client: str) -> None:
    for name in ("a", "b", "c"):
        cluster.worker(name, memory_bytes=16 * GB, memory_pool="machine")
    cluster.submit(client, 3, needs=memory(7))
    assert sorted(len(cluster.on(name)) for name in "abc") == [0, 1, 1]
    own = cluster.worker("own", memory_bytes=16 * GB)
    assert len(cluster.on(own)) == 1, "a worker with memory of its own"
    busy, idle = (next(name for name in "abc" if len(cluster.on(name)) == count) for count in (1, 0))
    cluster.leave(busy)
    cluster.submit(client, 2, needs=memory(8))
    assert len(cluster.on(idle)) == 1, "a departed worker's share is free again"


def test_shared_memory_stays_accounted_until_the_last_worker_leaves() -> None:
    pools, details = MemoryPools(), WorkerDetails("m", "u", 1, 1, {}, memory_bytes=10**9, memory_pool="pool")
    first = pools.join("host", details)
    pools.join("host", details)
    pools.leave("host", details)
    assert pools.join("host", details) is first
    pools.leave("host", details)
    pools.leave("host", details)
    assert pools.join("host", details) is not first


def test_task_of_four_cpus_fills_a_worker_of_four_slots(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=4)
    first = cluster.submit(client, 3)
    (wide,) = cluster.submit(client, needs=cpus(4))
    assert "it waits for 4 cpus; worker manager-1 (host, pid 1) has 1 cpu free" in why(cluster, wide)
    cluster.finish(worker, *first)
    assert cluster.on(worker) == [wide]
    later = cluster.submit(client, 5)
    assert cluster.on(worker) == [wide], "the worker runs and queues nothing else"
    cluster.finish(worker, wide)
    assert cluster.on(worker) == later


def test_task_cpus_count_against_the_workers_cpus(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", {"cpus": 32.0}, slots=4)
    tasks = cluster.submit(client, 5, needs=cpus(16))
    assert cluster.on(worker) == tasks[:2]


def test_whole_gpu_tasks_have_exclusive_indexes_and_fractions_share(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", {"gpu": 3.0}, slots=8)
    half = cluster.submit(client, 2, needs=HALF_GPU)
    cluster.submit(client, needs=(("gpu", 2.0),))
    waiting = cluster.submit(client, needs=GPU)
    assert devices(cluster, worker) == [(0,), (0,), (1, 2)]
    cluster.finish(worker, half[0])
    assert waiting[0] not in cluster.on(worker), "half of a gpu is not one"
    cluster.finish(worker, half[1])
    assert devices(cluster, worker)[-1] == (0,)


def test_blocked_task_lends_cpus_but_keeps_memory(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", {"memory": 16 * GB}, slots=4)
    (parent,) = cluster.submit(client, needs=(("cpus", 4.0), ("memory", 10 * GB)))
    child, large = cluster.submit(client), cluster.submit(client, needs=memory(8))
    assert cluster.on(worker) == [parent]
    cluster.say(worker, Suspended([parent], [1], [True]))
    assert cluster.on(worker) == [parent, *child]
    assert "has 6 GB of memory free" in why(cluster, large[0])


@pytest.mark.parametrize("needs", [cpus(4), memory(12)], ids=["cpus", "memory"])
def test_large_task_does_not_starve_behind_small_ones(needs: Pairs, cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", {"memory": 16 * GB}, slots=4)
    small = () if needs == cpus(4) else memory(4)
    cluster.submit(client, 8, needs=small)
    (large,) = cluster.submit(client, needs=needs)
    for _ in range(100):
        if large in cluster.on(worker):
            break
        cluster.submit(client, 1, needs=small)
        cluster.finish(worker, cluster.on(worker)[0], seconds=0.1)
        cluster.wait(0.1, alive=[client, worker])
    assert large in cluster.on(worker)
    assert cluster.now < 100.0 + 2 * RESERVE_AFTER_SECONDS + 1.0
    cluster.finish(worker, *cluster.on(worker))
    assert cluster.on(worker), "other tasks continue"


def test_space_reserved_too_long_is_lent_to_others_equally_long(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", {"memory": 16 * GB}, slots=4)
    (long,) = cluster.submit(client, needs=memory(8))
    (large,) = cluster.submit(client, needs=memory(12))
    cluster.wait(RESERVE_AFTER_SECONDS + 0.5, alive=[client, worker])
    (small,) = cluster.submit(client, needs=memory(4))
    assert cluster.on(worker) == [long], "room is kept for the large one"
    assert "freed capacity there is reserved for tasks that need memory=12GB" in why(cluster, small)
    assert "freed capacity there is reserved for it" in why(cluster, large)
    cluster.wait(FIRST_SECONDS, alive=[client, worker])
    assert cluster.on(worker) == [long, small]


def test_unsatisfiable_work_is_reported_and_starts_no_units() -> None:
    wanted: list[int] = []

    class Watched(SimplePolicy):
        def plan(self, view: ClusterView) -> dict[str, Wanted]:
            answer = super().plan(view)
            wanted.extend(each.units for each in answer.values())
            return answer

    cluster = Cluster(Watched(""))
    client, manager = cluster.client(), cluster.manager("m", unit_slots=4, unit_memory_bytes=16 * GB)
    cluster.say(manager, ManagerStatus(cluster.now, []))
    (task,) = cluster.submit(client, needs=memory(20))
    cluster.submit(client, needs=cpus(8))
    cluster.wait(3.0, alive=[client, manager])
    assert "no worker offers memory=20GB" in why(cluster, task)
    (notice, other) = [message.text for name, message in cluster.said if name == client and isinstance(message, Notice)]
    assert "there is no more than memory=15232MiB" in notice
    assert "Request less in memory=..., or start workers with --per-worker-capabilities memory=20GB" in notice
    assert "no more than cpus=4" in other
    assert set(wanted) == {0}
