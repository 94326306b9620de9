"""The memory of functions over all workers."""

from __future__ import annotations

from scaler.extensions.profiles.core import Profiles
from scaler.extensions.profiles.memory import FunctionMemories, FunctionMemory, Leak
from scaler.protocol.messages import FunctionUse, WorkerHeartbeat
from tests.unit.scheduler.driver import Cluster
from tests.unit.scheduler.test_status import document


class ClusterWithProfiles(Cluster):
    parts = (Profiles,)


def beat(*uses: FunctionUse) -> WorkerHeartbeat:
    return WorkerHeartbeat(0.0, 0.0, 0, 0, 0.0, functions=list(uses), rss_mean_bytes=5, rss_peak_bytes=7)


def memory_of(usage: FunctionMemories, function: str = "f") -> FunctionMemory:
    return usage.functions[function]


def test_the_mean_is_that_of_all_samples_and_the_peak_the_largest() -> None:
    usage = FunctionMemories()
    usage.take(b"a", [FunctionUse("f", 10, 100, 500)])
    usage.take(b"b", [FunctionUse("f", 30, 200, 300)])
    assert (memory_of(usage).mean_bytes, memory_of(usage).peak_bytes) == (175, 500)
    usage.take(b"a", [FunctionUse("f", 20, 100, 600)])  # ten more samples
    assert (memory_of(usage).samples, memory_of(usage).mean_bytes, memory_of(usage).peak_bytes) == (50, 160, 600)


def test_a_function_leaks_where_it_does_so_in_half_of_the_processors_that_are_judged() -> None:
    usage = FunctionMemories()
    usage.take(b"a", [FunctionUse("f", 1, 1, 1, 3_000, judged=2, growing=2)])
    assert memory_of(usage).leak == Leak(3_000, 2, 2)
    usage.take(b"b", [FunctionUse("f", 1, 1, 1, 0, judged=3, growing=0)])
    assert memory_of(usage).leak == Leak(0, 2, 5)


def test_the_rows_of_functions_and_workers_have_their_memory() -> None:
    cluster = ClusterWithProfiles()
    client, worker = cluster.client(), cluster.worker("w")
    cluster.submit(client, name="f")
    cluster.say(worker, beat(FunctionUse("f", 10, 100, 500, 7, judged=3, growing=2)))
    (row,) = document(cluster)["functions"]
    assert [row[name] for name in ("memory_peak_bytes", "memory_mean_bytes")] == [500, 100]
    assert [row[name] for name in ("leak_bytes", "leak_processors", "leak_judged")] == [7, 2, 3]
    (row,) = document(cluster)["workers"]
    assert (row["memory_mean_bytes"], row["memory_peak_bytes"]) == (5, 7)
    cluster.leave(worker)
    assert document(cluster)["functions"][0]["leak_bytes"] == 7
