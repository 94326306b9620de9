"""Durable sessions: tasks and results that outlive the client that submitted them."""

from __future__ import annotations

from typing import TypeVar

import pytest

from scaler.extensions.durability import sessions
from scaler.ids import result_id
from scaler.monitor.messages import UNFINISHED, EndSession, ListSessionTasks, SessionEnded, SessionTasks
from scaler.net.connection import Identity
from scaler.protocol.messages import (
    AcknowledgeResults,
    Finished,
    ForgetOwner,
    ListSessions,
    Message,
    Outcome,
    Redeliver,
    SessionsListed,
    stored_reference,
)
from scaler.scheduler.core.changes import Incident
from scaler.scheduler.core.commands import SendToStorage
from tests.unit.scheduler.driver import VALUE, Cluster

ALICE, BOB = Identity("alice"), Identity("bob")
NAME = "nightly"
M = TypeVar("M", bound=Message)


def with_session(session_retention_seconds: float = 604_800.0) -> Cluster:
    cluster = Cluster()
    cluster.rooms.durability.retention_seconds = session_retention_seconds  # type: ignore[attr-defined]
    cluster.worker("w", slots=4)
    cluster.client("s", session=NAME, identity=ALICE)
    return cluster


def come_back(cluster: Cluster) -> None:
    cluster.said.clear()
    cluster.client("s", session=NAME, identity=ALICE)


def told(cluster: Cluster, client: str, kind: type[M]) -> list[M]:
    return [message for name, message in cluster.said if name == client and isinstance(message, kind)]


def ask(cluster: Cluster, client: str, question: Message, kind: type[M]) -> M:
    cluster.say(client, question)
    return told(cluster, client, kind)[-1]


def test_start_once_tasks_use_new_workers_while_their_session_is_unused() -> None:
    cluster = with_session()
    task, other = cluster.submit("s", 2, retries=0, needs=(("gpu", 1.0),))
    cluster.leave("s")
    cluster.worker("new", {"gpu": 2.0}, slots=2)
    assert cluster.on("new") == [task, other]


def test_tasks_continue_with_results_retained_after_the_client_leaves() -> None:
    cluster = with_session()
    queued, running = cluster.submit("s", 2)
    cluster.leave("s")
    cluster.finish("w", running)
    cluster.finish("w", queued, outcome=Outcome.EXCEPTION)
    assert not told(cluster, "s", Finished)
    come_back(cluster)
    cluster.say("s", Redeliver([queued, running]))
    assert cluster.outcomes("s") == {running: (Outcome.SUCCESS, VALUE), queued: (Outcome.EXCEPTION, VALUE)}


def test_resubmitted_task_runs_once_and_is_answered_each_time() -> None:
    cluster = with_session()
    (task,) = cluster.submit("s")
    cluster.finish("w", task)
    cluster.say("s", AcknowledgeResults(1))
    cluster.leave("s")
    come_back(cluster)
    cluster.submit("s", ids=[task])
    assert cluster.outcome("s", task) == Outcome.SUCCESS
    assert not cluster.runs("w")


def test_resubmitted_failed_tasks_run_under_later_attempts() -> None:
    cluster = with_session()
    failed, succeeded = cluster.submit("s", 2)
    cluster.finish("w", failed, outcome=Outcome.EXCEPTION)
    cluster.finish("w", succeeded)
    come_back(cluster)
    cluster.submit("s", ids=[failed, succeeded], labels=[(b"a", b""), (b"b", b"")])
    assert [(task, attempt) for task, attempt, _ in cluster.runs("w")] == [(failed, 2)]


def test_two_keys_with_one_digest_raise_and_never_share_a_task() -> None:
    cluster = with_session()
    (task,) = cluster.submit("s", labels=[(b"first", b"")])
    cluster.submit("s", ids=[task], labels=[(b"second \xff", b"")])
    outcome, text = cluster.outcomes("s")[task]
    assert outcome == Outcome.REJECTED
    assert text.decode() == "the keys 'first' and 'second \ufffd' have the same digest: change one of them"
    assert cluster.state.living_task(task)


def test_session_has_one_client_at_a_time() -> None:
    cluster = with_session()
    in_use = "session 'nightly' is in use by host|1: stop that client first"
    assert cluster.tries_again("s", ALICE, session=NAME) == in_use, "as far as is known yet"
    cluster.wait(2.0, alive=["s", "w"])
    assert cluster.refusal("s", ALICE, session=NAME) == in_use
    assert not cluster.refusal("s", ALICE, session=NAME, own=True), "the program's last connection may still exist"
    cluster.break_connection("s")
    assert not cluster.refusal("s", ALICE, session=NAME)


def test_client_gone_during_an_outage_does_not_hold_its_session() -> None:
    cluster = with_session()
    assert cluster.tries_again("s", ALICE, session=NAME)
    cluster.wait(0.5, alive=["s", "w"])  # its earlier messages are read now
    for _ in range(5):
        assert cluster.tries_again("s", ALICE, session=NAME)
        cluster.wait(1.0, alive=["w"])
    assert not cluster.refusal("s", ALICE, session=NAME)


def test_session_of_another_key_is_separate() -> None:
    cluster = with_session()
    assert "another client" in cluster.refusal("s", BOB, session=NAME)
    assert not cluster.refusal("t", BOB, session=NAME)
    cluster.client("t", session=NAME, identity=BOB)
    (task,) = cluster.submit("s")
    cluster.say("t", Redeliver([task]))
    assert cluster.outcome("t", task) == Outcome.OBJECT_LOST
    listed = ask(cluster, "t", ListSessions(), SessionsListed)
    assert [row.key for row in listed.sessions] == ["bob"]
    assert ask(cluster, "t", ListSessionTasks(cluster.peer("s")), SessionTasks).total == 0
    assert ask(cluster, "t", EndSession(cluster.peer("s"), remove=True), SessionEnded).error


def test_sessions_and_their_tasks_are_listed_in_submission_order() -> None:
    cluster = with_session()
    ids = cluster.submit("s", 3, name="f", labels=[(), (b"key", b"tag"), ()])
    cluster.finish("w", ids[0])
    cluster.finish("w", ids[2], outcome=Outcome.EXCEPTION)
    cluster.leave("s")
    cluster.client("other", identity=ALICE)
    (row,) = ask(cluster, "other", ListSessions(), SessionsListed).sessions
    assert (row.name, row.attached, row.unfinished, row.ended, row.failed) == (NAME, False, 1, 2, 1)
    tasks = ask(cluster, "other", ListSessionTasks(row.id), SessionTasks)
    assert (tasks.total, tasks.ids) == (3, ids)
    assert tasks.outcomes == [Outcome.SUCCESS, UNFINISHED, Outcome.EXCEPTION]
    assert (tasks.names, tasks.keys, tasks.tags) == ([b"f"] * 3, [b"", b"key", b""], [b"", b"tag", b""])
    assert ask(cluster, "other", ListSessionTasks(row.id, 2), SessionTasks).ids == ids[2:]


def test_removed_session_leaves_nothing() -> None:
    cluster = with_session()
    done, running = cluster.submit("s", 2)
    cluster.finish("w", done, payload=stored_reference(result_id(done, 1), 5))
    cluster.leave("s")
    cluster.client("other", identity=ALICE)
    assert ask(cluster, "other", EndSession(cluster.peer("s"), remove=True), SessionEnded).cancelled == 1
    assert cluster.recalls("w", kill=True) == [running]
    cluster.finish("w", running, outcome=Outcome.CANCELLED)
    assert not ask(cluster, "other", ListSessions(), SessionsListed).sessions
    assert SendToStorage(ForgetOwner(cluster.peer("s"))) in cluster.commands


def test_session_in_use_can_be_cancelled_but_not_removed_by_others() -> None:
    cluster = with_session()
    (task,) = cluster.submit("s")
    cluster.client("other", identity=ALICE)
    refused = ask(cluster, "other", EndSession(cluster.peer("s"), remove=True), SessionEnded)
    assert "in use by host|1" in refused.error
    assert ask(cluster, "other", EndSession(cluster.peer("s"), remove=False), SessionEnded).cancelled == 1
    assert cluster.recalls("w", kill=True) == [task]


def test_session_expires_after_its_last_use_and_task() -> None:
    cluster = with_session(session_retention_seconds=100.0)
    (task,) = cluster.submit("s")
    cluster.leave("s")
    cluster.wait(150.0, alive=["w"])
    assert cluster.state.clients
    cluster.finish("w", task)
    cluster.wait(99.0, alive=["w"])
    assert cluster.state.clients
    cluster.wait(2.0, alive=["w"])
    assert not cluster.state.clients


def account_bytes(cluster: Cluster) -> int:
    return cluster.state.clients[cluster.peer("s")].account.size_bytes


def test_labels_beyond_a_keys_memory_limit_are_refused_with_their_tasks() -> None:
    cluster = Cluster(max_bytes_per_client=100_000)
    cluster.client("s", session=NAME, identity=ALICE)
    ids = cluster.submit("s", 100, labels=[(b"k" * 1000, b"")] * 100)
    refused = [task for task, (outcome, _) in cluster.outcomes("s").items() if outcome == Outcome.REJECTED]
    assert 10 < len(refused) < 50
    assert set(refused) == set(ids[-len(refused) :])
    assert account_bytes(cluster) < 250_000


def test_sessionless_client_cannot_label_tasks_or_request_results() -> None:
    cluster = with_session()
    cluster.client("plain")
    (task,) = cluster.submit("plain", labels=[(b"key", b"tag")])
    assert "it has no durable session" in errors(cluster)
    cluster.client("other")
    cluster.say("other", Redeliver([task]))
    assert "sent Redeliver, which is not allowed" in errors(cluster)
    cluster.finish("w", task)
    assert cluster.outcome("plain", task) == Outcome.SUCCESS


def errors(cluster: Cluster) -> str:
    return "; ".join(fact.text for fact in cluster.take_facts() if isinstance(fact, Incident))


def test_requested_results_are_sent_as_fast_as_they_are_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_REDELIVERED_BYTES", 6_400)
    monkeypatch.setattr(sessions, "SPLIT_BATCH_BYTES", 1_000)
    cluster = with_session()
    count, payload = 100, b"\x80" + bytes(300)
    ids = cluster.submit("s", count)
    while on_worker := cluster.on("w"):
        cluster.finish("w", *on_worker, payload=payload)
    come_back(cluster)
    cluster.say("s", Redeliver(ids[: count // 2]))
    cluster.submit("s", ids=ids[count // 2 :])
    sent = 0
    while sent < count:
        portion = told(cluster, "s", Finished)
        assert 0 < sum(len(each) for message in portion for each in message.payloads) <= 6_400 + 2 * 1_000
        sent += sum(len(message.ids) for message in portion)
        assert portion[-1].number
        cluster.said.clear()
        cluster.say("s", AcknowledgeResults(portion[0].number))
        if len(portion) > 1:
            assert not told(cluster, "s", Finished), "the client has not acknowledged everything"
        cluster.say("s", AcknowledgeResults(portion[-1].number))
    assert sent == count


def test_session_limits_apply_per_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 1)
    cluster = with_session()
    refused = cluster.refusal("t", ALICE, session="another")
    assert refused == "key alice has reached the limit of 1 sessions: remove some"
    assert not cluster.refusal("t", BOB, session="another")
    assert "at most 2048 bytes" in cluster.refusal("t", BOB, session="n" * 3000)
