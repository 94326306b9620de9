"""The last tasks that ended: what is remembered of them, and that it is bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler.needs import Needs
from scaler.protocol.messages import Outcome, Spec
from scaler.scheduler.core import facts as module
from scaler.scheduler.core.calls import CallRecord
from scaler.scheduler.core.durations import Timing
from scaler.scheduler.core.facts import FailureRecord, History, TasksEnded
from scaler.scheduler.core.state import ClientRecord, Function, Group, Terminated
from tests.unit.scheduler.driver import Cluster

GROUP = Group(
    ClientRecord(b"client..", "client", 0.0),
    Spec(b"f" * 16),
    (b"f" * 16,),
    0,
    Needs(),
    (0, 0),
    0,
    Timing(),
    Function("f", Needs()),
    CallRecord((b"client..", "f"), "client", "f", 0.0),
)


def batch(first: int, count: int, payload: bytes = b"") -> TasksEnded:
    ids = [number.to_bytes(16, "big") for number in range(first, first + count)]
    ended = TasksEnded([], [Outcome.POISON if payload else 0] * count, [1] * count, [], [])
    ended.begin_run(GROUP, Terminated("w"))
    ended.ids += ids
    if payload:
        ended.failure_records = {index: FailureRecord(1, payload, []) for index in range(count)}
    return ended


def numbers(history: History, limit: int) -> list[int]:
    return [int.from_bytes(ended.ids[index], "big") for ended, index in history.latest(limit)]


def test_whole_batches_are_forgotten_when_enough_are_left_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 10)
    history = History()
    for first in range(0, 40, 4):
        history.add(batch(first, 4))
    assert numbers(history, 100) == list(range(28, 40))
    assert numbers(history, 3) == [37, 38, 39]
    history.add(batch(40, 1000))
    assert len(history) == 1000
    assert history.find((39).to_bytes(16, "big")) is None


def test_a_batch_is_kept_however_large_until_another_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FAILURE_BYTES", 1000)
    history = History()
    history.add(batch(0, 10, b"x" * 500))
    assert len(history) == 10
    history.add(batch(10, 2))
    assert numbers(history, 100) == [10, 11]


def test_it_finds_the_last_end_of_a_task_that_was_said_twice() -> None:
    history = History()
    history.add(batch(7, 1, b"first"))
    second = batch(7, 1, b"second")
    second.step_at = 5.0
    history.add(second)
    found = history.find((7).to_bytes(16, "big"))
    assert found is not None
    ended, index = found
    assert (ended.failure(index).text, ended.step_at) == ("second", 5.0)


def test_function_worker_and_attempt_of_each_task_are_known_whatever_ends_in_one_step(cluster: Cluster) -> None:
    client = cluster.client()
    cluster.workers(["w0", "w1"])
    tasks = [cluster.submit(client, name=f"f{number % 2}")[0] for number in range(4)]
    lost = cluster.on("w1")[0]
    cluster.finish("w1", lost, outcome=Outcome.PROCESSOR_DIED, payload=b"killed")
    where: dict[bytes, str] = {}
    while len(where) < 4:
        cluster.wait(0.1)
        for worker in ("w0", "w1"):
            for task in cluster.on(worker):
                where[task] = worker
                cluster.finish(worker, task)
    assert set(where.values()) == {"w0", "w1"}
    history = cluster.state.history
    found: dict[bytes, tuple[str, str, int]] = {}
    for ended, index in history.latest(100):
        group, name = ended.run_of(index)
        found[ended.ids[index]] = (group.spec.name, name, ended.record_of(index).attempt)
    assert found == {
        task: (f"f{number % 2}", cluster.state.workers[cluster.peer(where[task])].name, 1 + (task == lost))
        for number, task in enumerate(tasks)
    }


def test_runs_of_one_function_on_one_worker_are_told_apart_at_their_borders() -> None:
    other = replace(GROUP, spec=Spec(b"g" * 16, name="g"), function=Function("g", Needs()))
    first, second = Terminated("w1"), Terminated("w2")
    ended = TasksEnded([], [], [], [], [])
    for index, (group, gone) in enumerate(
        [(GROUP, first), (GROUP, first), (other, first), (other, second), (GROUP, second)]
    ):
        if group is not ended.group or gone is not ended.state:
            ended.begin_run(group, gone)
        ended.ids.append(index.to_bytes(16, "big"))
    found = [ended.run_of(index) for index in range(5)]
    assert [worker for _, worker in found] == ["w1", "w1", "w1", "w2", "w2"]
    assert [group.spec.name for group, _ in found] == ["", "", "g", "g", ""]
