"""The memory of functions over all workers."""

from __future__ import annotations

from scaler.extensions.profiles.core import Profiles
from scaler.extensions.profiles.usage import MemorySamples
from scaler.protocol.messages import FunctionUse, WorkerHeartbeat
from tests.unit.scheduler.driver import Cluster
from tests.unit.scheduler.test_status import document


class ClusterWithProfiles(Cluster):
    parts = (Profiles,)


def beat(*uses: FunctionUse) -> WorkerHeartbeat:
    return WorkerHeartbeat(0.0, 0.0, 0, 0, 0.0, functions=list(uses), rss_mean_bytes=5, rss_peak_bytes=7)


def test_mean_covers_all_samples_and_peak_is_the_largest() -> None:
    memory = MemorySamples()
    memory.add(10, 100, 500)
    memory.add(30, 200, 300)
    assert (memory.mean_bytes, memory.peak_bytes) == (175, 500)
    memory.add(10, 100, 600)
    assert (memory.samples, memory.mean_bytes, memory.peak_bytes) == (50, 160, 600)


def test_function_and_worker_rows_have_their_memory() -> None:
    cluster = ClusterWithProfiles()
    client, worker = cluster.client(), cluster.worker("w")
    cluster.submit(client, name="f")
    cluster.say(worker, beat(FunctionUse("f", 10, 100, 500)))
    (row,) = document(cluster)["functions"]
    assert [row[name] for name in ("memory_peak_bytes", "memory_mean_bytes")] == [500, 100]
    (row,) = document(cluster)["workers"]
    assert (row["memory_mean_bytes"], row["memory_peak_bytes"]) == (5, 7)
    cluster.leave(worker)
    assert document(cluster)["functions"][0]["memory_peak_bytes"] == 500
