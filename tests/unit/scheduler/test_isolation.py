"""Data of one key does not exist for another; an admin sees and may change everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaler.extensions.failures.core import Failures
from scaler.extensions.logs.core import Logs
from scaler.monitor.messages import Explain, Explained, FailedTask, ReadFailure, ReadLog, TaskLog
from scaler.net.connection import LOCAL, Identity
from scaler.protocol.messages import (
    Cancel,
    Clear,
    Drain,
    Heartbeat,
    ManagerDetails,
    Message,
    Outcome,
    Pin,
    Printed,
    Release,
    RestartWorkers,
    Role,
    Shutdown,
    ShutdownCluster,
    Spec,
    Submit,
    TaskGroup,
    WorkersRestarted,
)
from scaler.scheduler.core.changes import Incident
from scaler.scheduler.core.commands import Stop
from scaler.scheduler.core.core import REPEAT_SECONDS
from tests.unit.scheduler.driver import FUNCTION, Cluster, Remembering

ALICE, BOB, ROOT = Identity("alice"), Identity("bob"), Identity("root", is_admin=True)
QUESTIONS: list[Callable[[bytes], Message]] = [Explain, ReadLog, ReadFailure]


class ClusterWithAnswers(Cluster):
    parts = (Remembering, Failures, Logs)


def asked(cluster: Cluster, client: str, question: Message) -> Message:
    """Ask a question and return the answer."""
    cluster.said.clear()
    cluster.say(client, question)
    [(_, answer)] = [said for said in cluster.said if said[0] == client]
    return answer


def failed_task(cluster: Cluster, client: str) -> bytes:
    """Make a task of a client print something and fail."""
    (task,) = cluster.submit(client)
    cluster.say("w", Printed([task], [False], [0], [b"secret"]))
    cluster.finish("w", task, outcome=Outcome.EXCEPTION, payload=b"\x80 error")
    return task


@pytest.fixture
def cluster() -> Cluster:
    cluster = ClusterWithAnswers()
    cluster.worker("w", slots=8)
    cluster.client("a1", identity=ALICE)
    cluster.client("a2", identity=ALICE)
    cluster.client("b", identity=BOB)
    cluster.client("admin", identity=ROOT)
    return cluster


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("has_left", [False, True])
def test_tasks_of_another_key_appear_nonexistent(
    cluster: Cluster, question: Callable[[bytes], Message], has_left: bool
) -> None:
    task = failed_task(cluster, "a1")
    never_submitted = cluster.task_id("a1")
    if has_left:
        cluster.leave("a1")
    answers = [asked(cluster, "b", question(each)) for each in (task, never_submitted)]
    texts = [
        str(answer).replace(repr(each), "ID") for answer, each in zip(answers, (task, never_submitted), strict=True)
    ]
    assert texts[0] == texts[1]
    assert "secret" not in texts[0]


@pytest.mark.parametrize("asking", ["a1", "a2", "admin"])
@pytest.mark.parametrize("has_left", [False, True])
def test_same_key_and_admins_may_see_a_sessions_history(cluster: Cluster, asking: str, has_left: bool) -> None:
    task = failed_task(cluster, "a1")
    if has_left and asking != "a1":
        cluster.leave("a1")
    answers = [asked(cluster, asking, question(task)) for question in QUESTIONS]
    match answers:
        case [Explained(text=text), TaskLog(stdout=b"secret"), FailedTask(runs=[_])]:
            assert "it raised" in text
        case _:
            pytest.fail(f"{answers}")


def test_client_cannot_cancel_release_or_clear_for_others(cluster: Cluster) -> None:
    ours = cluster.object_id("a1")
    cluster.say("a1", Pin([ours]))
    tasks = cluster.submit("a1", 10)
    cluster.commands.clear()
    for other in ("a2", "b"):
        for message in (Cancel(tasks), Release([ours, FUNCTION]), Pin([ours]), Clear(cluster.peer("a1")), Clear()):
            cluster.say(other, message)
    assert cluster.state.living_tasks == 10
    assert cluster.recalls("w", kill=True) == []
    assert cluster.state.objects.pins[cluster.peer("a1")].keys() >= {ours, FUNCTION}


def test_admin_cancels_and_clears_for_other_users(cluster: Cluster) -> None:
    first, *others = cluster.submit("a1", 10)
    cluster.say("admin", Cancel([first]))
    assert cluster.recalls("w", kill=True) == [first]
    cluster.say("admin", Clear(cluster.peer("a1")))
    assert set(cluster.recalls("w", kill=True)) | set(cluster.outcomes("a1")) == {first, *others}
    assert not cluster.state.objects.stored


@pytest.mark.parametrize(
    ("identity", "role", "may"),
    [(ALICE, Role.CLIENT, False), (LOCAL, Role.CLIENT, False), (ROOT, Role.CLIENT, True), (LOCAL, Role.ADMIN, True)],
)
def test_only_an_admin_shuts_down_a_protected_cluster(
    cluster: Cluster, identity: Identity, role: Role, may: bool
) -> None:
    cluster.client("c", identity=identity, role=role)
    commands = cluster.say("c", ShutdownCluster())
    assert any(isinstance(command, Stop) for command in commands) is may
    assert any(isinstance(message, Shutdown) for _, message in cluster.said) is may


@pytest.mark.parametrize(("identity", "may"), [(ALICE, False), (LOCAL, True), (ROOT, True)])
def test_workers_are_restarted_by_admins_or_without_keys(cluster: Cluster, identity: Identity, may: bool) -> None:
    cluster.client("c", identity=identity)
    cluster.say("c", RestartWorkers([], True))
    answers = [message for name, message in cluster.said if name == "c" and isinstance(message, WorkersRestarted)]
    assert [bool(answer.workers) for answer in answers] == [may]
    assert any(isinstance(message, Drain) for _, message in cluster.said) is may
    assert bool(answers[0].refused) is not may


def test_restarted_workers_finish_running_tasks_or_exit_at_once(cluster: Cluster) -> None:
    cluster.client("c", identity=ROOT)
    cluster.worker("other")
    chosen = cluster.peer("other")

    def restart(*, graceful: bool) -> tuple[list[bytes], list[type]]:
        cluster.said.clear()
        cluster.say("c", RestartWorkers([chosen, bytes(8)], graceful))
        (answer,) = [message for _, message in cluster.said if isinstance(message, WorkersRestarted)]
        return answer.workers, [type(message) for name, message in cluster.said if name == "other"]

    assert restart(graceful=True) == ([chosen], [Drain])
    assert restart(graceful=True) == ([], [])
    assert restart(graceful=False) == ([chosen], [Shutdown])


def test_functions_and_inputs_of_another_key_cannot_be_named(cluster: Cluster) -> None:
    (done,) = cluster.submit("a1")
    cluster.finish("w", done)
    unlisted, referring = cluster.task_id("b"), cluster.task_id("b")
    cluster.say("b", Submit([], [TaskGroup(Spec(FUNCTION), [unlisted], [b"\x80"])]))
    assert cluster.outcome("b", unlisted) is Outcome.REJECTED
    for reference in (done, cluster.object_id("a1")):
        referring = cluster.task_id("b")
        cluster.submit("b", ids=[referring], references=[(reference,)])
        assert cluster.outcome("b", referring) is Outcome.OBJECT_LOST


def test_client_id_stays_with_its_key_after_a_disconnect(cluster: Cluster) -> None:
    task = failed_task(cluster, "a1")
    cluster.leave("a1")
    assert "belongs to another client" in cluster.refusal("a1", BOB)
    assert cluster.refusal("a1", ALICE) == ""
    cluster.relay("a1", "w", ReadLog(task))
    assert cluster.peer("a1") not in cluster.state.clients


# -- clients inside tasks ---------------------------------------------------------------------------------------------


def test_client_inside_a_task_sees_what_its_owner_sees(cluster: Cluster) -> None:
    failed = failed_task(cluster, "a1")
    (of_alice,), (of_bob,) = cluster.submit("a2"), cluster.submit("b")
    cluster.nested("inner", "w", of_alice)
    logs = []
    for task in (of_alice, b"", of_bob, bytes(16)):
        cluster.said.clear()
        cluster.relay("inner", "w", ReadLog(failed), task)
        logs += [answer.stdout for name, answer in cluster.said if name == "inner" and isinstance(answer, TaskLog)]
    assert logs == [b"secret", b"", b"", b""]
    assert cluster.state.clients[cluster.peer("inner")].account.key == "alice"


def test_client_whose_task_runs_on_another_worker_reads_no_logs(cluster: Cluster) -> None:
    failed = failed_task(cluster, "a1")
    (elsewhere,) = cluster.submit("a1", needs=(("gpu", 1.0),))
    cluster.worker("other", {"gpu": 1.0})
    assert cluster.on("other") == [elsewhere]
    cluster.nested("inner", "w", elsewhere)
    cluster.said.clear()
    cluster.relay("inner", "w", ReadLog(failed), elsewhere)
    assert ("inner", TaskLog(failed, b"", b"", 0)) in cluster.said
    cluster.say("w", Heartbeat(1.0))


# -- protocol errors ---------------------------------------------------------------------------------------------------


def test_peer_violations_are_reported_at_once_then_counted(cluster: Cluster) -> None:
    cluster.take_facts()
    for _ in range(59):
        cluster.say("b", Submit([], [TaskGroup(Spec(FUNCTION), [cluster.task_id("a1")], [b"\x80"])]))
    cluster.submit("b")
    foreign = TaskGroup(Spec(FUNCTION, name="function"), [cluster.task_id("a1")] * 200, [b"\x80"] * 200)
    for _ in range(59):
        cluster.say("b", Submit([], [foreign]))
    assert [incident.kind for incident in incidents(cluster)] == ["protocol_error"]
    cluster.wait(REPEAT_SECONDS + 1, alive=("a1", "a2", "b", "admin", "w"))
    (summary,) = incidents(cluster)
    assert summary.text.endswith("(and 5898 more like this)")


def incidents(cluster: Cluster) -> list[Incident]:
    return [fact for fact in cluster.take_facts() if isinstance(fact, Incident)]


def test_manager_is_not_replaced_by_one_with_another_key(cluster: Cluster) -> None:
    cluster.manager("m", manager_id="m")
    cluster.break_connection("m")
    details = ManagerDetails("m", "test", capabilities={}, max_slots=1, unit_slots=1)
    assert cluster.refusal("m2", LOCAL, details) == ""
    assert "'m' is in use" in cluster.refusal("m2", BOB, details)
