"""Limits on the scheduler's resources for the peers of one key, and for all."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.config import servers
from scaler.net.connection import Identity
from scaler.protocol.messages import (
    AcknowledgeResults,
    Cancel,
    Clear,
    Outcome,
    Pin,
    RefusalReason,
    Refused,
    Spec,
    Submit,
    TaskGroup,
)
from scaler.scheduler.core import accounts, tasks
from scaler.scheduler.core.accounts import ENTRY_BYTES, HOUR_SECONDS, spec_bytes
from scaler.scheduler.core.commands import Expel
from scaler.scheduler.core.core import EXPIRY_SECONDS
from tests.unit.scheduler.driver import CODE, FUNCTION, Cluster

ALICE, BOB = Identity("alice"), Identity("bob")


def cluster_of(**limits: Any) -> Cluster:
    """A cluster with one busy worker, two sessions of alice, and one of bob."""
    cluster = Cluster(**limits)
    for name, identity in (("a1", ALICE), ("a2", ALICE), ("b", BOB)):
        cluster.client(name, identity=identity)
    return cluster


def submit(cluster: Cluster, client: str, *payloads: bytes) -> list[Outcome | None]:
    """Submit tasks with these arguments; return the outcomes, None for accepted tasks."""
    ids = [cluster.task_id(client) for _ in payloads]
    cluster.say(client, Submit([(FUNCTION, CODE)], [TaskGroup(Spec(FUNCTION), ids, list(payloads))]))
    return [cluster.outcome(client, task) for task in ids]


def why(cluster: Cluster, client: str) -> str:
    """The text of the last outcome of a client."""
    return list(cluster.outcomes(client).values())[-1][1].decode()


def test_task_limit_applies_per_key_across_sessions() -> None:
    cluster = cluster_of(max_tasks_per_client=3)
    assert submit(cluster, "a1", b"1", b"2") == [None, None]
    assert submit(cluster, "a2", b"3", b"4") == [None, Outcome.REJECTED]
    assert why(cluster, "a2") == "max_tasks_per_client is 3, and key alice has reached it"
    assert submit(cluster, "b", b"1", b"2", b"3") == [None] * 3
    cluster.leave("a1")
    assert submit(cluster, cluster.client("a3", identity=ALICE), b"5", b"6", b"7") == [None, None, Outcome.REJECTED]


@pytest.mark.parametrize("own", [100_000, -1])
def test_byte_limits_apply_before_a_task_is_stored(own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "default_memory_limit_bytes", lambda: 200_000 if own >= 0 else 100_000)
    cluster = cluster_of(max_bytes_per_client=own)
    assert submit(cluster, "a1", bytes(40_000), bytes(40_000)) == [None, None]
    assert submit(cluster, "a2", bytes(40_000), b"small") == [Outcome.REJECTED, None]
    limit = "max_bytes_per_client" if own >= 0 else "the limit for all keys"
    assert why(cluster, "a2") == f"{limit} is 100000, and the scheduler has already reached it"
    assert submit(cluster, "b", bytes(40_000)) == [None if own >= 0 else Outcome.REJECTED]


def test_results_count_until_acknowledged_and_functions_until_released() -> None:
    cluster = cluster_of(max_bytes_per_client=100_000)
    worker = cluster.worker("w")
    account = cluster.state.clients[cluster.peer("a1")].account
    (task,) = cluster.submit("a1")
    before = account.size_bytes
    assert before > len(CODE)
    cluster.finish(worker, task, payload=bytes(90_000))
    assert account.size_bytes > 90_000
    assert submit(cluster, "a1", bytes(20_000)) == [Outcome.REJECTED]
    cluster.say("a1", AcknowledgeResults(2))
    cluster.wait(EXPIRY_SECONDS, alive=["a1", "w"])
    assert account.size_bytes == ENTRY_BYTES + len(CODE)
    cluster.leave("a1")
    assert (account.size_bytes, account.tasks) == (0, 0)


def test_references_names_and_pins_count_against_the_byte_limit() -> None:
    cluster = cluster_of(max_bytes_per_client=100_000)
    account = cluster.state.clients[cluster.peer("a1")].account
    cluster.say("a1", Pin([cluster.object_id("a1") for _ in range(1_000)]))
    assert account.size_bytes == 100_000 // ENTRY_BYTES * ENTRY_BYTES
    cluster.leave("a1")
    cluster.client("a1", identity=ALICE)
    (first,) = cluster.submit("a1")
    before = account.size_bytes
    cluster.submit("a1", name="n" * 5_000, references=[(first,) * 100])
    assert account.size_bytes >= before + 5_000
    assert spec_bytes(Spec(FUNCTION, tags=("ab", "c"), needs=(("gpu", 1),))) == 4 * ENTRY_BYTES + 6


def test_client_at_its_limit_that_reads_no_results_is_disconnected() -> None:
    cluster = cluster_of(max_bytes_per_client=100_000)
    for _ in range(1_000):
        submit(cluster, "a1", *[bytes(200_000)] * 10)
        expelled = [command for command in cluster.commands if isinstance(command, Expel)]
        if expelled:
            break
    [expel] = expelled
    assert expel.peer == cluster.peer("a1")
    assert isinstance(expel.reason, Refused)
    assert expel.reason.reason is RefusalReason.LIMIT
    assert expel.reason.text.startswith("it uses twice max_bytes_per_client")
    assert cluster.peer("a1") not in cluster.state.clients
    assert submit(cluster, "a2", b"small") == [None]


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_connections_are_limited_per_key_and_known_peers_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_PEERS_OF_KEY", 2)
    cluster = cluster_of()
    assert cluster.refusal("a3", ALICE) == "key alice has 2 peers, the limit per key"
    assert cluster.refusal("a1", ALICE) == cluster.refusal("b2", BOB) == ""
    cluster.client("a1", identity=ALICE)
    cluster.leave("a2")
    assert cluster.refusal("a3", ALICE) == ""
    monkeypatch.setattr(accounts, "MAX_PEERS", 2)
    assert cluster.refusal("c", Identity("carol")) == "the scheduler has 2 peers, its limit"


def test_hourly_session_limit_applies_per_key_and_ignores_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_SESSIONS_PER_HOUR", 3)
    cluster = cluster_of()
    cluster.break_connection("a1")
    for _ in range(10):
        assert cluster.refusal("a1", ALICE) == ""
    cluster.leave(cluster.client("a3", identity=ALICE))
    assert cluster.refusal("a4", ALICE).startswith("key alice has opened 3 sessions within an hour: wait ")
    assert cluster.refusal("b2", BOB) == ""
    cluster.now += HOUR_SECONDS
    cluster.state.stalled_seconds = 0.0
    assert cluster.refusal("a4", ALICE) == ""


# -- a flood ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Clear, Cancel])
def test_mass_cancellation_does_not_delay_another_key(
    kind: type[Clear | Cancel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MAX_CANCELLED", 20)
    cluster = cluster_of()
    worker = cluster.worker("w", slots=1, queue_size=0)
    many = cluster.submit("a1", 60)
    alice = cluster.state.clients[cluster.peer("a1")]
    cluster.say("a1", Clear() if kind is Clear else Cancel(many))
    left = [len(alice.tasks)]
    (single,) = cluster.submit("b")
    while cluster.core.next_step_at(cluster.now) == cluster.now:
        left.append(len(alice.tasks))
        cluster.step()
    assert left[:3] == [41, 21, 1]
    (running,) = alice.tasks.values()
    cluster.finish(worker, running.id, outcome=Outcome.CANCELLED)
    assert [outcome for outcome, _ in cluster.outcomes("a1").values()] == [Outcome.CANCELLED] * len(many)
    cluster.finish(worker, single)
    assert cluster.outcome("b", single) is Outcome.SUCCESS


@pytest.mark.parametrize("sessions", [1, 10])
def test_single_task_waits_for_few_tasks_of_another_keys_flood(sessions: int, cluster: Cluster) -> None:
    worker = cluster.worker("w", slots=2)
    for number in range(sessions):
        cluster.submit(cluster.client(f"f{number}", identity=ALICE), 300 // sessions)
    for _ in range(20):  # measured by now: 10 ms each
        cluster.finish(worker, *cluster.on(worker)[:2])
    cluster.client("b", identity=BOB)
    (task,) = cluster.submit("b")
    ended = 0
    while cluster.outcome("b", task) is None:
        cluster.finish(worker, *cluster.on(worker)[:2])
        ended += 2
    assert ended <= 20
