"""The document for monitors: what it says, and that it stays small."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from scaler.policy.view import Allocation, ClusterView, Wanted
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import (
    MAX_CONTROL_BYTES,
    ManagerStatus,
    MonitorStatus,
    Outcome,
    ProcessorStatus,
    Suspended,
    WorkerHeartbeat,
)
from scaler.scheduler.status import MAX_PROCESSORS_LISTED, MAX_ROWS, status
from tests.unit.scheduler.driver import Cluster


def document(cluster: Cluster) -> Any:
    return json.loads(encoded(cluster))


def encoded(cluster: Cluster) -> bytes:
    return status(
        cluster.core, cpu_percent=12.5, rss_bytes=1 << 20, sent=Counter(Run=3), received=Counter(Done=2, Submit=1)
    )


def test_it_counts_tasks_by_state_and_by_how_they_ended() -> None:
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("w", queue_size=0)
    first, *_ = cluster.submit(client, 3)
    cluster.submit(client, references=[(first,)])
    assert document(cluster)["tasks"]["waiting"] == 1
    assert document(cluster)["tasks"]["ready"] == 2
    assert document(cluster)["tasks"]["assigned"] == 1
    cluster.finish(worker, first)
    cluster.cancel(client, *cluster.core.clients[cluster.peer(client)].tasks)
    assert document(cluster)["tasks"]["ended"]["done"] == 1
    assert document(cluster)["tasks"]["ended"]["cancelled"] == 2
    failures = {outcome.name.lower() for outcome in Outcome if outcome is not Outcome.SUCCESS}
    assert set(document(cluster)["tasks"]["ended"]) == {"done", *failures}


def test_it_tells_of_the_scheduler_and_its_messages() -> None:
    told = document(Cluster())
    assert told["scheduler"] == {"cpu_percent": 12.5, "rss_bytes": 1 << 20}
    assert told["messages"] == {"sent": {"Run": 3}, "received": {"Done": 2, "Submit": 1}}


def test_a_worker_has_a_row_with_its_load_and_its_last_heartbeat() -> None:
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("w", {"gpu": 2.0, "linux": None}, slots=2, queue_size=3)
    first, *_ = cluster.submit(client, 4)
    cluster.say(worker, Suspended([first], [1], [True]))
    processor = ProcessorStatus(7, 99.0, 1 << 20, True, True, first, 1.5)
    cluster.say(worker, WorkerHeartbeat(1.0, 3.0, 1 << 19, 2, 0.001, [processor]))
    (row,) = document(cluster)["workers"]
    assert row["capabilities"] == "gpu=2,linux"
    assert (row["slots"], row["assigned"], row["suspended"], row["free"]) == (2, 4, 1, 5)
    assert (row["manager"], row["unit"]) == ("manager", "unit-w")
    assert (row["draining"], row["connected"]) == (False, True)
    assert (row["agent_cpu_percent"], row["queued"], row["latency_seconds"]) == (3.0, 2, 0.001)
    assert row["processors"][0]["running"] == first.hex()


def test_clients_managers_and_functions_have_rows() -> None:
    cluster = Cluster()
    client, _ = cluster.client("alice"), cluster.manager("m")
    cluster.submit(client, 5)
    told = document(cluster)
    assert told["clients"] == [{"id": cluster.peer(client).hex(), "name": "alice", "tasks": 5}]
    assert told["functions"] == [{"name": "function", "tasks": 5}]
    assert told["managers"][0]["id"] == "m"
    assert told["totals"]["managers"] == 1


class Two:
    """A policy that wants two units of every manager."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {manager.manager_id: Wanted(2, "two are nicer") for manager in view.managers}


def test_a_manager_has_its_last_scaling_decision_with_what_it_was_made_from() -> None:
    cluster = Cluster(Two())
    manager = cluster.manager("m")
    assert document(cluster)["managers"][0]["decision"] is None
    cluster.submit(cluster.client(), 5)
    cluster.say(manager, ManagerStatus(cluster.now, [], "no quota"))
    (row,) = document(cluster)["managers"]
    assert row["reason"] == "2 units: two are nicer"
    assert row["decision"] == {
        "units": 2,
        "draining": 0,
        "reason": "2 units: two are nicer",
        "queued": 5,
        "running": 0,
        "unmeasured": 5,
        "backlog_seconds": 0.0,
        "units_running": 0,
        "units_pending": 0,
        "units_idle": 0,
        "startup_seconds": None,
        "max_units": 8,
        "trouble": "no quota",
    }


def test_workers_in_trouble_are_listed_first_then_the_busiest() -> None:
    cluster = Cluster()
    client = cluster.client()
    cluster.worker("idle")
    broken = cluster.worker("broken")
    cluster.break_connection(broken)
    busy = cluster.worker("busy", {"gpu": None})
    cluster.submit(client, needs=(("gpu", 1.0),))
    assert [row["id"] for row in document(cluster)["workers"]] == [
        cluster.peer(name).hex() for name in (broken, busy, "idle")
    ]
    assert document(cluster)["totals"]["disconnected"] == 1


def test_ten_thousand_workers_fit_in_a_control_message_and_are_all_counted() -> None:
    cluster = Cluster()
    template = cluster.worker("template", {f"capability_{number}": 1.0 for number in range(50)})
    worker = cluster.core.workers[cluster.peer(template)]
    processors = [ProcessorStatus(2**31, 99.125, 2**40, True, True, bytes(16), 123.456789)] * 64
    worker.heartbeat = WorkerHeartbeat(1e9, 99.125, 2**40, 1000, 0.123456789, processors)
    for number in range(9_999):
        cluster.core.workers[number.to_bytes(8, "big")] = worker
    told = encoded(cluster)
    message = decode(encode(MonitorStatus(told)))
    assert isinstance(message, MonitorStatus)
    rows = json.loads(message.json)
    assert len(told) < MAX_CONTROL_BYTES
    assert rows["totals"]["workers"] == 10_000
    assert 100 < len(rows["workers"]) <= MAX_ROWS
    assert len(rows["workers"][0]["processors"]) == MAX_PROCESSORS_LISTED


def test_names_of_any_length_and_alphabet_fit_too() -> None:
    cluster = Cluster()
    client = cluster.client()
    for number in range(200):
        cluster.submit(client, name=f"{number}" + "\N{GRINNING FACE}" * 50_000)
    for number in range(600):
        cluster.client(f"c{number}", "\N{SNOWMAN}" * 10_000)
    told = document(cluster)
    assert len(encoded(cluster)) < MAX_CONTROL_BYTES
    assert told["totals"]["clients"] == 601
    assert told["totals"]["functions"] == 200
    assert told["functions"]
