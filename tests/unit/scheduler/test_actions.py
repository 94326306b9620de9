"""Actions of clients and workers, as reported to extensions by the core."""

from __future__ import annotations

from typing import Any

from scaler.protocol.messages import Clear, Drain, ShutdownCluster
from scaler.scheduler.core.changes import Action
from tests.unit.scheduler.driver import Cluster


def actions(cluster: Cluster) -> list[tuple[Any, ...]]:
    return [
        (fact.kind, fact.peer, fact.text, fact.count, fact.key)
        for fact in cluster.take_facts()
        if isinstance(fact, Action)
    ]


def test_core_reports_each_new_task_once_and_before_its_events(cluster: Cluster) -> None:
    client = cluster.client()
    cluster.take_facts()
    tasks = cluster.submit(client, 3)
    assert actions(cluster) == [], "not with every message"
    cluster.cancel(client, tasks[0], b"another client's")
    peer = cluster.peer(client)
    submitted, cancelled = actions(cluster)
    assert (submitted[0], submitted[1], submitted[3]) == ("submitted", peer, 3)
    assert cancelled == ("cancelled", peer, "tasks", 1, "")
    cluster.say(client, Clear())
    assert actions(cluster) == [("cleared", peer, "client with 2 unfinished tasks", 0, "")]
    cluster.submit(client, 1)
    cluster.wait(1.0, alive=[client])
    assert [each[0] for each in actions(cluster)] == ["submitted"]


def test_core_reports_shutdowns_refusals_and_drained_workers() -> None:
    for protected, kind in ((True, "refused"), (False, "shut down")):
        cluster = Cluster(protected=protected)
        client = cluster.client()
        cluster.say(client, ShutdownCluster())
        assert [each[0] for each in actions(cluster)] == [kind]
    cluster = Cluster()
    worker = cluster.worker("w")
    cluster.say(worker, Drain("spot notice"))
    ((kind, peer, text, _, _),) = actions(cluster)
    assert (kind, peer) == ("drained", cluster.peer(worker))
    assert text.endswith(": spot notice")


def test_nested_clients_tasks_belong_to_their_workers_connection(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client)
    cluster.take_facts()
    cluster.relay("nested", worker, Clear(), task)
    (cleared,) = actions(cluster)[-1:]
    assert cleared[:2] == ("cleared", cluster.peer(worker))
    assert cleared[2].endswith("(inside a task)")
    assert cleared[4] == "local", "the key of the client whose task it is in"
