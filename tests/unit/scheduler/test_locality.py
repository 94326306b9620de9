"""Tasks run on the host of their inputs, unless waiting there takes longer than moving them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scaler.extensions.explain.core import explain
from scaler.ids import content_id, result_id
from scaler.net.connection import Opened
from scaler.object_storage.messages import ObjectsHeld
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    Drain,
    Hello,
    Role,
    Spec,
    Submit,
    TaskGroup,
    UseStore,
    WorkerDetails,
    stored_reference,
)
from tests.unit.scheduler.driver import Cluster

MB = 10**6
DURATIONS = (0.01, 1.0, 10.0)


class Hosts(Cluster):
    """A cluster with a store per host: w1 is a worker on host-1, which has store 1. Links carry 100 MB/s."""

    def __init__(self, *stores: int) -> None:
        super().__init__()
        self.client()
        self.host(0, "clock")
        for seconds in DURATIONS:
            self.finish("clock", *self.run(seconds=seconds), seconds=seconds)
        self.leave("clock")
        for store in stores:
            self.store(f"s{store}")
            self.host(store)

    def host(self, store: int, name: str = "", slots: int = 1, **offers: float | None) -> str:
        """A worker joins on the host of a store. It offers its name as a label."""
        name = name or f"w{store}"
        details = WorkerDetails("manager", f"unit-{name}", slots, 1000, {name: None, **offers})
        hello = Hello(Role.WORKER, False, PROTOCOL_VERSION, "", "", "", f"host-{store}", 1, details)
        self.step(Opened(self.peer(name), hello))
        if store:
            self.say(name, UseStore(self.peer(f"s{store}")))
        return name

    def run(
        self,
        count: int = 1,
        *,
        seconds: float = 1.0,
        near: Sequence[tuple[int, ...]] = (),
        megabytes: float = 50,
        worker: str = "",
        client: str = "client",
        **options: object,
    ) -> list[bytes]:
        """Submit tasks of a function that takes this long.

        near: the stores that have each of their inputs, which are all of one size. worker: where they have to run.
        """
        code = f"\x80 {seconds}".encode()
        spec = Spec(**{"function": content_id(code), "name": "work", **options})  # type: ignore[arg-type]
        if worker:
            spec = replace(spec, needs=((worker, 0.0),))
        inputs = tuple(self.made(*stores, megabytes=megabytes, client=client) for stores in near)
        ids = [self.task_id(client) for _ in range(count)]
        group = TaskGroup(spec, ids, [b"\x80"] * count, [inputs] * count)
        self.say(client, Submit([(content_id(code), code)], [group]))
        return ids

    def made(self, *stores: int, megabytes: float = 50, client: str = "client") -> bytes:
        """A client has an object that these stores hold. Returns its id."""
        identifier = self.object_id(client)
        for store in stores:
            self.say(f"s{store}", ObjectsHeld([identifier], [round(megabytes * MB)]))
        return identifier

    def why(self, task: bytes) -> str:
        return explain(self.state, task, self.now)


def test_task_runs_where_most_of_its_input_bytes_are() -> None:
    cluster = Hosts(1, 2, 3)
    (first,) = cluster.run(near=[(2,)])
    (second,) = cluster.run(near=[(1,), (3,), (3,)])
    assert (cluster.on("w2"), cluster.on("w3")) == ([first], [second])


def test_task_follows_results_of_its_dependencies() -> None:
    cluster = Hosts(1, 2)
    (made,) = cluster.run(worker="w2")
    (last,) = cluster.submit("client", references=[(made,)])
    cluster.finish("w2", made, payload=stored_reference(result_id(made, 1), 50 * MB))
    assert cluster.on("w2") == [last]


@pytest.mark.parametrize(("input_bytes", "worker"), [(2**20 - 1, "w1"), (2**20, "w2")])
def test_task_follows_inputs_of_at_least_a_mebibyte(input_bytes: int, worker: str) -> None:
    cluster = Hosts(1, 2)
    (task,) = cluster.run(near=[(2,)], megabytes=input_bytes / MB)
    assert cluster.on(worker) == [task]


def test_task_waits_for_its_host_if_moving_its_inputs_is_slower() -> None:
    cluster = Hosts(1, 2)
    cluster.run(worker="w2", seconds=1.0)
    (large,) = cluster.run(near=[(2,)], megabytes=150, retries=0)
    assert cluster.on("w1") == []
    (small,) = cluster.run(near=[(2,)], megabytes=50, retries=0)
    assert cluster.on("w1") == [small]
    cluster.finish("w2", *cluster.on("w2"), seconds=1.0)
    assert cluster.on("w2") == [large]


def test_prefetched_task_moves_when_its_host_is_slower_than_a_transfer() -> None:
    cluster = Hosts(1, 2)
    (running,) = cluster.run(worker="w2", seconds=1.0)
    (task,) = cluster.run(near=[(2,)], megabytes=150)
    assert cluster.on("w2") == [running, task]
    cluster.wait(1.5, ["client", "w1", "w2"])
    assert cluster.recalls("w2", kill=False) == []
    cluster.wait(1.0, ["client", "w1", "w2"])  # the running task takes longer than expected
    assert cluster.recalls("w2", kill=False) == [task]
    cluster.give_back("w2", task)
    assert (cluster.on("w1"), cluster.on("w2")) == ([task], [running])


def test_idle_worker_takes_tasks_waiting_on_its_host() -> None:
    cluster = Hosts(1, 2)
    (running,) = cluster.run(worker="w2")
    (task,) = cluster.run(near=[(2,)], megabytes=900)
    assert cluster.on("w2") == [running, task]
    cluster.host(2, "other")
    assert cluster.recalls("w2", kill=False) == [task]
    cluster.give_back("w2", task)
    assert cluster.on("other") == [task]
    assert cluster.on("w1") == []
    cluster.leave("other")
    assert cluster.on("w2") == [running]


def test_priorities_outrank_hosts() -> None:
    cluster = Hosts(1, 2)
    (running,) = cluster.run(worker="w1")
    (near,) = cluster.run(near=[(1,)], megabytes=900, retries=0)
    cluster.run(worker="w2", seconds=10.0)
    (urgent,) = cluster.run(retries=0, priority=1)
    cluster.finish("w1", running, seconds=1.0)
    assert cluster.on("w1") == [urgent]
    cluster.finish("w1", urgent, seconds=1.0)
    assert cluster.on("w1") == [near]


@pytest.mark.parametrize("leaves", [True, False])
def test_tasks_run_anywhere_once_their_host_has_no_suitable_worker(leaves: bool) -> None:
    cluster = Hosts(1, 2)
    cluster.run(worker="w2")
    near = [task for _ in range(3) for task in cluster.run(near=[(2,)], megabytes=900, retries=0)]
    assert cluster.on("w1") == []
    if leaves:
        cluster.leave("w2")
    else:
        cluster.say("w2", Drain("ends"))
    assert cluster.on("w1") == near[:1] if leaves else cluster.on("w1")[0] in near


def test_explanation_compares_waiting_with_moving() -> None:
    cluster = Hosts(1, 2)
    cluster.run(worker="w1", seconds=10.0), cluster.run(worker="w2", seconds=1.0)
    (task,) = cluster.run(near=[(2,)], megabytes=150, retries=0)
    assert cluster.why(task).split("; ")[1] == (
        "it prefers host host-2, which has 150 MB of the 150 MB of its inputs: a free slot there takes about 1 s, "
        "and moving them elsewhere takes 1.5 s at 100 MB/s"
    )
    cluster.break_connection("w2")
    assert "host-2, which has 150 MB of the 150 MB of its inputs: no worker there accepts tasks now" in cluster.why(
        task
    )
