"""Task searches by id and name, which examine only some of many tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scaler.extensions.history import core as ended_module
from scaler.extensions.history import core as module
from scaler.extensions.history.core import MAX_FOUND, find
from scaler.monitor.rows import objects
from scaler.net.connection import Received
from scaler.protocol.messages import Outcome, ProcessorStatus, Spec, Submit, Suspended, TaskGroup, WorkerHeartbeat
from tests.extensions.history.recorded import Recorded
from tests.unit.scheduler.driver import CODE, FUNCTION

AT = 1.7e9


def found(cluster: Recorded, search: str) -> list[dict[str, Any]]:
    return objects(json.loads(find(cluster.state, search, AT, cluster.now)))


def ids(cluster: Recorded, search: str) -> list[str]:
    return [row["id"] for row in found(cluster, search)]


def flood(cluster: Recorded, client: str, count: int, name: str) -> list[bytes]:
    """Submit many tasks in one batch, without the checks of all of them."""
    tasks = [cluster.task_id(client) for _ in range(count)]
    group = TaskGroup(Spec(FUNCTION, name=name), tasks, [b"\x80"] * count)
    cluster.core.step([Received(cluster.peer(client), Submit([(FUNCTION, CODE)], [group]))], cluster.now)
    return tasks


def test_tasks_in_all_states_are_found_by_function_name(cluster: Recorded) -> None:
    client, worker = cluster.client("alice"), cluster.worker("w", slots=2, queue_size=1)
    done, suspended, running, assigned, *rest = cluster.submit(client, 8, name="Price")
    cluster.submit(client, name="combine", references=[(running,)])
    cluster.finish(worker, done, seconds=2.0)
    cluster.say(worker, Suspended([suspended], [1], [True]))
    processor = ProcessorStatus(7, 99.0, 1 << 20, True, False, running, 1.5)
    cluster.say(worker, WorkerHeartbeat(1.0, 3.0, 1 << 19, 2, 0.001, [processor]))
    states = {row["id"]: row["state"] for row in found(cluster, "pric")}
    assert states.pop(done.hex()) == "done"
    assert (states[suspended.hex()], states[running.hex()]) == ("suspended", "running")
    assert "assigned" in states.values()
    assert states[rest[-1].hex()] == "ready"
    assert len(states) == 7
    (row,) = found(cluster, "COMBINE")
    assert (row["state"], row["function"], row["client"], row["worker"]) == ("waiting", "combine", "alice", "")
    by_id = {row["id"]: row for row in found(cluster, "price")}
    assert by_id[running.hex()]["duration_us"] == 1_500_000
    assert (by_id[done.hex()]["duration_us"], by_id[done.hex()]["ended_at"]) == (2_000_000, AT)
    assert assigned.hex() in states


def test_tasks_are_found_by_client_and_worker_name(cluster: Recorded) -> None:
    alice, bob = cluster.client("a", "risk-desk"), cluster.client("b", "notebook")
    cluster.worker("w", queue_size=0)
    (running,) = cluster.submit(alice)
    (failed,) = cluster.submit(bob, retries=0)
    assert ids(cluster, "risk") == [running.hex()]
    assert ids(cluster, "book") == [failed.hex()]
    worker = cluster.state.workers[cluster.peer("w")].name
    assert ids(cluster, worker) == [running.hex()]
    cluster.finish("w", running)
    cluster.finish("w", failed, outcome=Outcome.EXCEPTION, payload=b"no")
    assert ids(cluster, worker) == [failed.hex(), running.hex()]
    assert [row["state"] for row in found(cluster, "book")] == ["exception"]
    assert ids(cluster, "nothing of that name") == []


@pytest.mark.parametrize("digits", [32, 31, 16, 1])
def test_finds_a_task_by_id_prefix_in_any_case(digits: int, cluster: Recorded) -> None:
    client = cluster.client("\xaa\xbb")
    (task,) = cluster.submit(client)
    assert ids(cluster, f" {task.hex()[:digits].upper()} ") == [task.hex()]
    assert ids(cluster, task.hex()[: digits - 1] + "x") == []
    assert ids(cluster, task.hex() + "0") == []


def test_waiting_tasks_are_found_by_id_and_name_beyond_the_search_limit(
    cluster: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VISITED", 500)
    client = cluster.client()
    many = flood(cluster, client, 2_000, "many")
    rare = flood(cluster, client, 3, "rare")
    last = flood(cluster, client, 2_000, "many")[-1]
    assert sorted(ids(cluster, "rare")) == [task.hex() for task in rare]
    assert ids(cluster, "many") == [task.hex() for task in many[:MAX_FOUND]]
    for task in (many[0], many[-1], last, rare[1]):
        assert ids(cluster, task.hex()) == [task.hex()]
        assert task.hex() in ids(cluster, task.hex()[:-1])
        assert len(ids(cluster, task.hex()[:24])) == MAX_FOUND


def test_tasks_are_found_by_id_prefix_among_mostly_ended_ones(
    cluster: Recorded, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VISITED", 500)
    tasks = flood(cluster, client, 503, "work")
    cluster.cancel(client, *tasks[:-2])
    while cluster.core.next_step_at(cluster.now) <= cluster.now:
        cluster.step()
    states = {row["id"]: row["state"] for row in found(cluster, tasks[0].hex()[:24])}
    assert [states.get(task.hex()) for task in tasks[-3:]] == ["cancelled", "ready", "ready"]


def test_finds_a_failed_task_after_thousands_of_later_ones(cluster: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_module, "MAX_REMEMBERED", 100)
    client, worker = cluster.client(), cluster.worker("w", slots=60)
    (failed,) = cluster.submit(client, name="price", retries=0)
    cluster.finish(worker, failed, outcome=Outcome.EXCEPTION, payload=b"no")
    while cluster.ended_tasks.find(failed) is not None:
        cluster.submit(client, 60, name="load")
        cluster.finish(worker, *cluster.on(worker))
    assert [(row["id"], row["state"]) for row in found(cluster, "price")] == [(failed.hex(), "exception")]
