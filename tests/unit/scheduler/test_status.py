"""The document for monitors: its content, and its limited size."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

from scaler.extensions.calls.core import CALLS_BYTES
from scaler.extensions.data_plane import core as data_limits
from scaler.extensions.health.core import LINKS_BYTES
from scaler.monitor.cluster_rows import FunctionRow, SchedulerRow, StorageRow
from scaler.monitor.messages import MonitorStatus
from scaler.monitor.reports import status as limits
from scaler.monitor.reports.status import MAX_PROCESSORS_LISTED, MAX_ROWS, ServerStatus, status
from scaler.monitor.rows import KEYS, objects
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import (
    MAX_CONTROL_BYTES,
    ManagerStatus,
    Outcome,
    ProcessorStatus,
    Suspended,
    UnitState,
    UnitStatus,
    WorkerHeartbeat,
)
from tests.unit.scheduler.driver import Cluster


def document(cluster: Cluster) -> Any:
    return parsed(encoded(cluster))


def parsed(text: bytes) -> Any:
    """Return a document with the rows of its tables as objects."""
    document = json.loads(text)
    return document | {name: objects(document[name]) for name in KEYS if name in document}


AROUND = ServerStatus(
    at=1.7e9,
    incarnation=7,
    scheduler=SchedulerRow(12.5, 1 << 20, 60.0, 0.002, journal_bytes=1 << 26, disk_failure="full"),
    storage=StorageRow("tcp://127.0.0.1:8517"),
    sent=Counter(Run=3),
    received=Counter(Done=2, Submit=1),
)


def encoded(cluster: Cluster, around: ServerStatus = AROUND) -> bytes:
    return status(cluster.state, replace(around, rooms=cluster.rooms))


def test_counts_tasks_by_state_and_outcome(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", queue_size=0)
    first, *_ = cluster.submit(client, 3)
    cluster.submit(client, references=[(first,)])
    assert document(cluster)["tasks"]["waiting"] == 1
    assert document(cluster)["tasks"]["ready"] == 2
    assert document(cluster)["tasks"]["assigned"] == 1
    cluster.finish(worker, first)
    cluster.cancel(client, *cluster.state.clients[cluster.peer(client)].tasks)
    assert document(cluster)["tasks"]["ended"]["done"] == 1
    assert document(cluster)["tasks"]["ended"]["cancelled"] == 2
    failures = {outcome.name.lower() for outcome in Outcome if outcome is not Outcome.SUCCESS}
    assert set(document(cluster)["tasks"]["ended"]) == {"done", *failures}


def test_running_tasks_are_at_most_the_slots_and_suspended_ones_count_separately() -> None:
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("w", slots=2)
    first, *_ = cluster.submit(client, 5)
    cluster.say(worker, Suspended([first], [1], [True]))
    tasks = document(cluster)["tasks"]
    assert (tasks["assigned"], tasks["running"], tasks["suspended"]) == (4, 2, 1)
    assert sum(tasks[state] for state in ("waiting", "ready", "assigned", "suspended")) == 5


def test_worker_has_a_row_with_its_load_and_last_heartbeat(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", {"gpu": 2.0, "linux": None}, slots=2, queue_size=3)
    first, *_ = cluster.submit(client, 4)
    cluster.say(worker, Suspended([first], [1], [True]))
    processor = ProcessorStatus(7, 99.0, 1 << 20, True, True, first, 1.5)
    cluster.say(worker, WorkerHeartbeat(1.0, 3.0, 1 << 19, 2, 0.001, [processor]))
    (row,) = document(cluster)["workers"]
    assert row["capabilities"] == "gpu=2,linux"
    assert (row["slots"], row["assigned"], row["suspended"], row["free"], row["sent"]) == (2, 4, 1, 0, 4)
    assert (row["manager"], row["unit"]) == ("manager", "unit-w")
    assert (row["name"], row["host"], row["pid"]) == ("manager-1", "host", 1)
    assert (row["draining"], row["connected"]) == (False, True)
    assert (row["agent_cpu_percent"], row["queued"], row["latency_seconds"]) == (3.0, 2, 0.001)
    assert (row["quarantined"], row["processors"][0]["function"]) == (False, "function")
    assert (row["processors"][0]["running"], row["processors"][0]["running_seconds"]) == (first.hex(), 1.5)
    cluster.wait(2.0, alive=[client, worker])
    assert document(cluster)["workers"][0]["processors"][0]["running_seconds"] == 3.5
    cluster.finish(worker, first)
    assert document(cluster)["workers"][0]["processors"][0]["running"] == ""


def test_tasks_started_after_a_heartbeat_are_shown_with_idle_processors(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=2, queue_size=2)
    first, second, third, *_ = cluster.submit(client, 4)
    pair = [ProcessorStatus(pid, 0.0, 0, True, False, task, 1.0) for pid, task in ((7, first), (8, second))]
    cluster.say(worker, WorkerHeartbeat(1.0, 0.0, 0, 2, 0.001, [*pair, ProcessorStatus(9, 0.0, 0, False, False)]))
    cluster.wait(1.5, alive=[client, worker])
    cluster.finish(worker, first)
    cluster.wait(0.5, alive=[client, worker])
    (row,) = document(cluster)["workers"]
    shown = [(each["pid"], each["running"], each["running_seconds"]) for each in row["processors"]]
    assert shown == [(7, third.hex(), 0.5), (8, second.hex(), 3.0), (9, "", 0.0)]


def test_clients_and_functions_have_rows_with_running_and_ended_tasks(cluster: Cluster) -> None:
    client, worker = cluster.client("alice"), cluster.worker("w", slots=2, queue_size=0)
    first, second, third, *_ = cluster.submit(client, 5)
    cluster.finish(worker, first, seconds=2.5)
    cluster.finish(worker, second, outcome=Outcome.EXCEPTION, payload=b"no", seconds=0.5)
    cluster.cancel(client, third)
    told = document(cluster)
    assert told["clients"] == [
        {"id": cluster.peer(client).hex(), "name": "alice"}
        | {"tasks": 3, "queued": 1, "running": 2, "ended": 2, "failed": 1, "cancelled": 0}
    ]
    [row] = told["functions"]
    set_by_receiver = {*FunctionRow._fields[-6:]}
    assert {name: value for name, value in row.items() if name not in set_by_receiver} == (
        {"name": "function", "queued": 1, "running": 2, "ended": 2, "failed": 1, "seconds_total": 3.0}
        | {"cancelled": 0, "untimed": 0, "has_chunks": False}
        | {"p50_seconds": 0.5, "p95_seconds": 2.5, "max_seconds": 2.5, "p50_before_seconds": None}
        | dict.fromkeys(("memory_peak_bytes", "memory_mean_bytes"), 0)
    )


def test_function_stays_listed_after_its_tasks_and_client_are_gone(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    done, running = cluster.submit(client, 2, name="work")
    cluster.finish(worker, done, seconds=1.0)
    cluster.leave(client)
    (row,) = document(cluster)["functions"]
    assert (row["running"], row["ended"]) == (1, 1)
    cluster.finish(worker, running, seconds=1.0)
    (row,) = document(cluster)["functions"]
    assert (row["queued"], row["running"], row["ended"], row["seconds_total"]) == (0, 0, 2, 2.0)
    assert (row["p95_seconds"], row["max_seconds"]) == (1.0, 1.0)


def test_managers_have_rows_with_their_units_by_state(cluster: Cluster) -> None:
    manager = cluster.manager("m", 8, unit_slots=2, capabilities={"gpu": None})
    cluster.worker("w", slots=2, manager_id="m")
    units = [
        UnitStatus("unit-w", UnitState.RUNNING, 2, 60.0),
        UnitStatus("b", UnitState.PENDING, 2, 5.0),
        UnitStatus("c", UnitState.FAILED, 2, 9.0, "no quota"),
    ]
    cluster.say(manager, ManagerStatus(cluster.now, units, "no quota"))
    (row,) = document(cluster)["managers"]
    shown = {key: row[key] for key in ("id", "kind", "running", "pending", "failed", "units", "capabilities")}
    assert shown == {
        "id": "m",
        "kind": "test",
        "running": 1,
        "pending": 1,
        "failed": 1,
        "units": 3,
        "capabilities": "gpu",
    }
    assert (row["unit_slots"], row["max_slots"], row["trouble"]) == (2, 8, "no quota")
    assert document(cluster)["totals"]["managers"] == 1


def test_degraded_workers_are_listed_first_then_the_busiest(cluster: Cluster, client: str) -> None:
    cluster.worker("idle")
    broken = cluster.worker("broken")
    cluster.break_connection(broken)
    busy = cluster.worker("busy", {"gpu": None})
    cluster.submit(client, needs=(("gpu", 1.0),))
    assert [row["id"] for row in document(cluster)["workers"]] == [
        cluster.peer(name).hex() for name in (broken, busy, "idle")
    ]
    assert document(cluster)["totals"]["disconnected"] == 1


def test_thousands_of_workers_fit_in_a_control_message(cluster: Cluster) -> None:
    template = cluster.worker("template", {f"capability_{number}": 1.0 for number in range(50)})
    worker = cluster.state.workers[cluster.peer(template)]
    processors = [ProcessorStatus(2**31, 99.125, 2**40, True, True, bytes(16), 123.456789)] * 64
    worker.reports.heartbeat = WorkerHeartbeat(1e9, 99.125, 2**40, 1000, 0.123456789, processors)
    for number in range(1_999):
        cluster.state.workers[number.to_bytes(8, "big")] = worker
    told = encoded(cluster)
    message = decode(encode(MonitorStatus(told)))
    assert isinstance(message, MonitorStatus)
    rows = parsed(message.json)
    assert len(told) < MAX_CONTROL_BYTES
    assert rows["totals"]["workers"] == 2_000
    assert 100 < len(rows["workers"]) <= MAX_ROWS
    assert len(rows["workers"][0]["processors"]) == MAX_PROCESSORS_LISTED


def test_names_of_tasks_and_clients_of_any_length_and_alphabet_fit_in_a_message(cluster: Cluster, client: str) -> None:
    for number in range(60):
        cluster.submit(client, name=f"{number}" + "\N{GRINNING FACE}" * 5_000)
    for number in range(100):
        cluster.client(f"c{number}", "\N{SNOWMAN}" * 2_000)
    told = document(cluster)
    assert len(encoded(cluster)) < MAX_CONTROL_BYTES
    assert told["totals"]["clients"] == 101
    assert told["totals"]["functions"] == 60
    assert told["functions"]


def waiting(cluster: Cluster) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = document(cluster)["waiting"]
    return rows


def test_waiting_tasks_are_counted_by_function_needs_and_priority(cluster: Cluster) -> None:
    alice, bob, _ = cluster.client("alice"), cluster.client("bob"), cluster.worker("w", queue_size=0)
    cluster.submit(alice, 3, name="plain")
    cluster.wait(5.0, alive=[alice, bob, "w"])
    (gpu,) = cluster.submit(bob, name="train", needs=(("gpu", 2.0),))
    cluster.wait(5.0, alive=[alice, bob, "w"])
    cluster.submit(bob, 4, name="plain")
    cluster.submit(alice, 1, name="plain", priority=7)
    shown = [(row["function"], row["capabilities"], row["priority"], row["tasks"]) for row in waiting(cluster)]
    assert shown == [("plain", "", 0, 6), ("train", "gpu=2", 0, 1), ("plain", "", 7, 1)]
    assert [round(row["age_seconds"], 3) for row in waiting(cluster)] == [10.0, 5.0, 0.0]
    assert waiting(cluster)[1]["oldest"] == gpu.hex()
    assert document(cluster)["totals"]["waiting"] == 3


def test_each_group_explains_why_its_oldest_task_waits(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", queue_size=0)
    first, *_ = cluster.submit(client, 3, name="load")
    cluster.submit(client, references=[(first,)], name="combine")
    cluster.submit(client, name="train", needs=(("gpu", 2.0),))
    reasons = {row["function"]: (row["ready"], row["reason"]) for row in waiting(cluster)}
    assert reasons["load"][0] == 2
    assert reasons["load"][1] == "no slot is free; 1 slot can run such tasks"
    assert (reasons["combine"][0], "load()" in reasons["combine"][1]) == (0, True)
    assert reasons["train"][0] == 1
    assert "no worker offers gpu=2" in reasons["train"][1]
    cluster.finish(worker, first)
    assert {row["function"]: row["ready"] for row in waiting(cluster)}["combine"] == 1


def test_age_counts_only_tasks_that_are_still_waiting(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", queue_size=0)
    for _ in range(5):
        cluster.submit(client)
        cluster.wait(1.0, alive=[client, worker])
    for left in range(4, 0, -1):
        assert waiting(cluster)[0]["age_seconds"] == left
        cluster.finish(worker, *cluster.on(worker))
    assert waiting(cluster) == []


def test_full_tables_and_everything_else_fit_into_one_message() -> None:
    tables = (
        limits.WORKERS_BYTES,
        3 * limits.ROWS_BYTES,
        data_limits.STORES_BYTES,
        data_limits.PAIRS_BYTES,
        data_limits.OBJECTS_BYTES,
    )
    more = (LINKS_BYTES, CALLS_BYTES, limits.WAITING_BYTES)
    assert sum(tables) + sum(more) + 16 * 1024 <= MAX_CONTROL_BYTES
