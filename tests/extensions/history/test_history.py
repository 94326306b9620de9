"""Recently finished tasks: their records, and the limits of retention."""

from __future__ import annotations

import pytest

from scaler.extensions.history import core as module
from scaler.extensions.history.core import EndedTasks
from scaler.needs import Needs
from scaler.protocol.messages import Outcome, Spec
from scaler.scheduler.core.changes import FailureRecord, TasksEnded
from scaler.scheduler.core.state import ClientRecord, Function, Group, Terminated, Timing
from tests.extensions.history.recorded import Recorded

CLIENT = ClientRecord(b"client..", "client", 0.0)
GROUP = Group(CLIENT, CLIENT, Spec(b"f" * 16), (b"f" * 16,), 0, Needs(), (0, 0), 0, Timing(), Function("f", Needs()))


def batch(first: int, count: int, payload: bytes = b"") -> TasksEnded:
    ids = [number.to_bytes(16, "big") for number in range(first, first + count)]
    ended = TasksEnded([], [Outcome.POISON if payload else 0] * count, [1] * count, [], [])
    ended.run_starts, ended.run_groups, ended.run_states = [0], [GROUP], [Terminated("w")]
    ended.ids += ids
    if payload:
        ended.failure_records = {index: FailureRecord(1, payload, []) for index in range(count)}
    return ended


def numbers(history: EndedTasks, limit: int) -> list[int]:
    return [int.from_bytes(ended.ids[index], "big") for ended, index in history.latest(limit)]


def test_whole_batches_are_dropped_when_enough_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 10)
    history = EndedTasks()
    for first in range(0, 40, 4):
        history.add(batch(first, 4))
    assert numbers(history, 100) == list(range(28, 40))
    assert numbers(history, 3) == [37, 38, 39]
    history.add(batch(40, 1000))
    assert len(history) == 1000
    assert history.find((39).to_bytes(16, "big")) is None


def test_each_task_has_function_worker_and_attempt_in_any_step(cluster: Recorded) -> None:
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
    history = cluster.ended_tasks
    found: dict[bytes, tuple[str, str, int]] = {}
    for ended, index in history.latest(100):
        group, name = ended.run_of(index)
        found[ended.ids[index]] = (group.spec.name, name, ended.record_of(index).attempt)
    assert found == {
        task: (f"f{number % 2}", cluster.state.workers[cluster.peer(where[task])].name, 1 + (task == lost))
        for number, task in enumerate(tasks)
    }
