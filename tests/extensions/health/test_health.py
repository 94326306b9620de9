"""Detection of bad workers from the figures of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scaler.extensions.health.core import MIN_PEERS, MIN_TASKS, Health, WorkerFigures, judge
from scaler.extensions.health.paces import MOST_PACED, Pace, WorkerPaces
from scaler.protocol.messages import Outcome, WorkerHeartbeat
from scaler.scheduler.core.state import Timing
from tests.unit.scheduler.driver import Cluster
from tests.unit.scheduler.test_status import document

GIB = 1 << 30
F = Timing()
NAMES = {F: "f"}


def paced(times: float = 1.0, tasks: float = 100.0, failed: float = 0.0) -> WorkerFigures:
    """Return a worker whose tasks take this multiple of the usual time."""
    return WorkerFigures({F: Pace(tasks, failed, times * tasks * 1e6, tasks * 1e6)})


def health(worker: WorkerFigures, *others: WorkerFigures) -> Health:
    return judge([*others, worker], NAMES)[-1]


def test_worker_twice_as_slow_for_a_function_is_reported_as_slow() -> None:
    found = health(paced(2.0), *[paced()] * 7)
    assert found.slowness == 60
    assert found.text == "tasks of f() take 100% longer than on 7 other workers"
    assert [each.slowness for each in judge([paced(2.0), *[paced()] * 7], NAMES)[1:]] == [0] * 7


def test_few_tasks_or_workers_prove_nothing() -> None:
    assert health(paced(9.0), *[paced()] * (MIN_PEERS - 1)).slowness is None
    assert health(paced(9.0, tasks=MIN_TASKS - 1), *[paced()] * 9).slowness is None
    assert health(paced(9.0), *[paced(tasks=MIN_TASKS - 1)] * 9).slowness is None


def test_worker_with_more_failures_than_others_is_named_with_both_shares() -> None:
    found = health(paced(failed=40.0), *[paced(failed=1.0)] * 4)
    assert found.failures == 78
    assert found.text == "40% of its tasks of f() fail, compared to 1%"


def test_tasks_killing_their_processes_are_identified_without_other_workers() -> None:
    found = health(WorkerFigures({}, failures_in_row=0.6))
    assert (found.failures, found.text) == (60, "its last processes died while running tasks")
    assert health(WorkerFigures({})).failures is None


def test_distant_worker_latency_is_measured_in_round_trips() -> None:
    near, far = WorkerFigures({}, round_trips=[0.002] * 5), WorkerFigures({}, round_trips=[0.3, 0.2, 0.2])
    found = health(far, *[near] * 5)
    assert found.lag == 67
    assert found.text == "a round trip takes 200 ms, but 2 ms on other workers"
    assert health(far, *[far] * 5).lag == 0, "all are far"
    assert health(far).lag == 0, "without other workers, 0.2 s counts as distance"
    assert health(WorkerFigures({}, round_trips=[9.0] * 5)).lag == 100
    assert health(WorkerFigures({}, round_trips=[9.0] * 2)).lag is None, "the first one may be that of its start"


@pytest.mark.parametrize(
    ("figures", "cause", "heat", "text"),
    [
        ({"memory_percent": 70.0}, "memory", 0, ""),
        ({"memory_percent": 97.5}, "memory", 100, "98 % of its machine's or container's memory is in use"),
        ({"memory_percent": 0.0}, "memory", None, ""),
        ({"granted_percent": 100.0}, "cpu", 0, ""),
        (
            {"granted_percent": 59.0},
            "cpu",
            80,
            "for 41 % of the time it waits for a CPU because of its container's quota or its hypervisor",
        ),
        ({"granted_percent": 0.0}, "cpu", None, ""),
        ({"disk_free_bytes": 50 * GIB, "disk_bytes": 4000 * GIB}, "disk", 0, ""),
        (
            {"disk_free_bytes": GIB // 10, "disk_bytes": 100 * GIB},
            "disk",
            100,
            "102 MiB of 100 GiB are free on the disk with its temporary files",
        ),
        ({"disk_bytes": 0}, "disk", None, ""),
    ],
)
def test_memory_cpu_and_disk_are_judged_without_other_workers(
    figures: dict[str, Any], cause: str, heat: int | None, text: str
) -> None:
    found = health(WorkerFigures({}, **figures))
    assert (getattr(found, cause), found.text) == (heat, text)


def test_recovered_worker_is_forgiven() -> None:
    timing, paces = Timing(), WorkerPaces()
    for seconds in [5] * 100 + [1] * 10 * MOST_PACED:
        for _ in range(3):
            paces.measured(b"usual", timing, *timing.add(1_000_000).refresh())
        paces.measured(b"recovering", timing, *timing.add(seconds * 1_000_000).refresh())
    assert paces.by_worker[b"recovering"][timing].ratio < 1.1


def test_worker_rows_have_heat_values_and_the_worst_is_first(cluster: Cluster) -> None:
    client, *workers = cluster.client(), *(cluster.worker(f"w{number}", queue_size=0) for number in range(5))
    for _ in range(30):
        cluster.submit(client, 5, name="f")
        for worker in workers:
            cluster.finish(worker, *cluster.on(worker), seconds=3.0 if worker == workers[3] else 1.0)
    (first, *others) = document(cluster)["workers"]
    assert first["id"] == cluster.peer(workers[3]).hex()
    assert first["slowness_heat"] > 50
    assert first["fault"].startswith("tasks of f() take ")
    assert [row["slowness_heat"] for row in others] == [0] * 4
    assert [row["fault"] for row in others] == [""] * 4


def test_heartbeat_reports_memory_cpu_and_disk(cluster: Cluster) -> None:
    worker = cluster.worker("w")
    beat = WorkerHeartbeat(0.0, 0.0, 0, 0, 0.0, memory_percent=97.0, cpu_granted_percent=72.5)
    cluster.say(worker, replace(beat, disk_free_bytes=GIB, disk_bytes=100 * GIB))
    (row,) = document(cluster)["workers"]
    assert [row[f"{cause}_heat"] for cause in ("memory", "cpu", "disk")] == [100, 50, 100]


@pytest.mark.parametrize(
    ("outcome", "counts"), [(Outcome.EXCEPTION, True), (Outcome.TIMED_OUT, True), (Outcome.NOT_STARTED, False)]
)
def test_failures_possibly_caused_by_a_worker_count(outcome: Outcome, counts: bool, cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    cluster.submit(client, name="f")
    cluster.finish(worker, *cluster.on(worker), outcome=outcome)
    paced = cluster.rooms.paces
    assert isinstance(paced, WorkerPaces)
    paces = paced.by_worker.get(cluster.peer(worker))
    failed = 0.0 if paces is None else sum(pace.failed for pace in paces.values())
    assert failed == counts
