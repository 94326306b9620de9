"""Displayed attempts: the number of a task's starts, however often it was moved; and failed inputs."""

from __future__ import annotations

from scaler.extensions.explain.core import explain
from scaler.net.connection import Closed
from scaler.protocol.messages import Drain, ManagerStatus, Outcome
from scaler.serialization.exceptions import dump_exception
from tests.unit.scheduler.driver import Cluster
from tests.unit.scheduler.test_events import Watched, rows


def why(cluster: Cluster, task: bytes) -> str:
    return explain(cluster.state, task, cluster.now)


def test_task_recalled_before_its_start_is_in_its_first_attempt() -> None:
    watched = Watched()
    cluster = watched.cluster
    _, moved = cluster.submit(watched.client, 2)
    other = cluster.worker("other")
    assert cluster.recalls(watched.worker, kill=False) == [moved]
    cluster.give_back(watched.worker, moved)
    cluster.finish(other, moved)
    (row,) = rows(watched.report())
    assert (row["id"], row["attempt"]) == (moved.hex(), 1)


def test_task_from_a_drained_worker_starts_attempt_two_and_may_retry_once() -> None:
    watched = Watched()
    cluster = watched.cluster
    (task,) = cluster.submit(watched.client, retries=1)
    cluster.say(watched.worker, Drain("a spot notice"))
    cluster.leave(watched.worker)
    other = cluster.worker("other")
    cluster.finish(other, task, outcome=Outcome.PROCESSOR_DIED, payload=b"killed")
    cluster.wait(0.25)
    assert "this is attempt 3 of 3, after attempt 2 on " in why(cluster, task)


def test_task_with_failed_inputs_names_the_first_failure() -> None:
    watched = Watched()
    cluster = watched.cluster
    (first,) = cluster.submit(watched.client, name="load")
    (second,) = cluster.submit(watched.client, references=[(first,)], name="clean")
    (third,) = cluster.submit(watched.client, references=[(second,)], name="fit")
    cluster.finish(watched.worker, first, outcome=Outcome.EXCEPTION, payload=dump_exception(OSError("no disk"), ""))
    text = f"did not run because its input load ({first.hex()}) failed: OSError: no disk"
    assert why(cluster, second) == why(cluster, third) == f"it {text}, just now"
    found = {row["function"]: (row["failed_input"], row["text"]) for row in rows(watched.report())}
    assert found == {"load": ("", "OSError: no disk"), "clean": (first.hex(), text), "fit": (first.hex(), text)}


def test_lost_and_cut_off_peers_and_degraded_managers_are_incidents() -> None:
    watched = Watched()
    cluster = watched.cluster
    cluster.worker("lost")
    cluster.break_connection("lost")
    cluster.wait(4.0, alive=[watched.client, watched.worker])
    cluster.client("loud")
    cluster.step(Closed(cluster.peer("loud"), "5 malformed messages in a row", is_orderly=False))
    manager = cluster.manager("m")
    for reason in ("", "no quota", "no quota, next attempt in 3 s", "", "no network"):
        cluster.say(manager, ManagerStatus(cluster.now, [], reason))
    watched.report()
    assert [(each.kind, each.subject, each.text[:10]) for each in watched.events.notes["incidents"]] == [
        ("lost", "worker manager-2 (host, pid 1)", "was gone f"),
        ("lost", "client loud", "5 malforme"),
        ("degraded", "manager m", "no quota"),
        ("degraded", "manager m", "no network"),
    ]
