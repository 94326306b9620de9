"""If the object storage lacks a task's object, the task's client is asked to restore it."""

from __future__ import annotations

import pytest

from scaler.extensions.durability.ledger import Recovered
from scaler.extensions.durability.sessions import Label
from scaler.extensions.explain.core import explain
from scaler.ids import IdFactory
from scaler.net.connection import LOCAL
from scaler.protocol.messages import (
    PROTOCOL_VERSION,
    ClientDetails,
    Hello,
    ObjectsMissing,
    ObjectsRestored,
    Outcome,
    Role,
    Spec,
    Submit,
    TaskGroup,
)
from scaler.scheduler.core.commands import DurabilitySaid
from tests.unit.scheduler.driver import CODE, FUNCTION, Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.client()
    made.worker("worker")
    return made


def misses(cluster: Cluster, identifier: bytes, *tasks: bytes) -> None:
    cluster.finish("worker", *tasks, outcome=Outcome.INPUT_MISSING, payload=identifier + b"it is not there")


def asked(cluster: Cluster) -> list[list[bytes]]:
    return [message.ids for name, message in cluster.said if name == "client" and isinstance(message, ObjectsMissing)]


def test_tasks_leave_their_worker_until_the_client_restores_a_missing_object(cluster: Cluster) -> None:
    lost = cluster.object_id("client")
    first, second, other = cluster.submit("client", 3, references=[(lost,), (lost,), ()])
    misses(cluster, lost, first)
    assert first not in cluster.on("worker")
    assert "its client was asked to upload it again" in explain(cluster.state, first, cluster.now)
    misses(cluster, lost, second)
    cluster.finish("worker", other)
    assert cluster.outcome("client", other) is Outcome.SUCCESS
    assert asked(cluster) == [[lost]]
    cluster.say("client", ObjectsRestored([lost], []))
    assert cluster.on("worker") == [first, second]
    cluster.finish("worker", first, second)
    assert cluster.outcome("client", second) is Outcome.SUCCESS


def test_tasks_and_dependents_fail_if_the_client_also_lost_the_missing_object(cluster: Cluster) -> None:
    lost = cluster.object_id("client")
    task, dependent = cluster.task_id("client"), cluster.task_id("client")
    cluster.submit("client", ids=[task, dependent], references=[(lost,), (task,)])
    misses(cluster, lost, task)
    cluster.say("client", ObjectsRestored([], [lost], "it is gone"))
    outcomes = cluster.outcomes("client")
    assert outcomes[task] == (Outcome.OBJECT_LOST, f"object {lost.hex()} is lost: it is gone".encode())
    assert outcomes[dependent][0] is Outcome.OBJECT_LOST


def test_object_of_another_client_is_not_requested(cluster: Cluster) -> None:
    cluster.client("other")
    (task,) = cluster.submit("client")
    misses(cluster, cluster.object_id("other"), task)
    assert cluster.outcomes("client")[task] == (Outcome.OBJECT_LOST, b"it is not there")
    assert not [message for _, message in cluster.said if isinstance(message, ObjectsMissing)]


def test_task_whose_worker_cannot_get_an_object_eventually_fails(cluster: Cluster) -> None:
    lost = cluster.object_id("client")
    (task,) = cluster.submit("client", references=[(lost,)])
    began, rounds = cluster.now, 0
    while cluster.outcome("client", task) is None:
        misses(cluster, lost, task)
        rounds += 1
        cluster.say("client", ObjectsRestored([lost], []))
        while cluster.outcome("client", task) is None and not cluster.on("worker"):
            cluster.wait(0.25, alive=["client", "worker"])
    assert cluster.outcomes("client")[task] == (Outcome.OBJECT_LOST, b"it is not there")
    assert rounds == 21
    assert 10 < cluster.now - began < 25


@pytest.mark.parametrize("session", ["", "nightly"])
def test_reconnecting_client_is_asked_for_missing_objects(session: str) -> None:
    cluster = Cluster()
    peer = cluster.peer("client")
    ids = IdFactory(peer)
    task, lost = ids.task(), ids.object()
    group = TaskGroup(Spec(FUNCTION, name="function"), [task], [b"\x80 arguments"])
    hello = Hello(Role.CLIENT, False, PROTOCOL_VERSION, "", "", "", "host", 1, ClientDetails("client", session))
    labels = {task: Label("function")} if session else {}
    submit = Submit([(FUNCTION, CODE)], [group])
    cluster.step(DurabilitySaid(Recovered(peer, hello, LOCAL, submit, [], {}, {}, {}, [], labels)))
    cluster.worker("worker")
    cluster.wait(3.0, alive=["worker"])
    assert cluster.on("worker") == [task]
    misses(cluster, lost, task)
    assert asked(cluster) == []
    cluster.client(session=session)
    assert asked(cluster) == [[lost]]
    cluster.say("client", ObjectsRestored([lost], []))
    assert cluster.on("worker") == [task]
