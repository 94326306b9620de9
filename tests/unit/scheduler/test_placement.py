"""Assignment of tasks: credit, prefetch, capabilities, fairness, balancing, and lent slots."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.needs import MEMORY, NEAR, pinned
from scaler.net.connection import Received
from scaler.policy.view import Allocation
from scaler.protocol.messages import (
    Drain,
    ForgetFunctions,
    Heartbeat,
    Outcome,
    Release,
    Run,
    Spec,
    Started,
    Submit,
    Suspended,
    TaskGroup,
    WorkerHeartbeat,
)
from scaler.scheduler.core import core
from scaler.scheduler.core.changes import Incident
from scaler.scheduler.core.commands import Relayed
from scaler.scheduler.core.ready import ReadyQueue
from tests.unit.scheduler.driver import CODE, FUNCTION, Alternating, Cluster, NoScaling


def test_worker_prefetches_one_task_of_unknown_length_or_many_short_ones(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    ids = cluster.submit(client, 3000)
    assert len(cluster.on(worker)) == 2
    cluster.finish(worker, ids[0], seconds=0.001)
    assert 40 <= len(cluster.on(worker)) <= 60
    cluster.finish(worker, *cluster.on(worker), seconds=0.00001)
    assert len(cluster.on(worker)) > 200


def test_distant_worker_prefetches_one_and_a_half_round_trips_of_work() -> None:
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("w")

    def beat(*round_trips: float) -> int:
        for seconds in round_trips:
            cluster.say(worker, WorkerHeartbeat(0.0, 0.0, 0, 0, seconds))
        cluster.finish(worker, cluster.on(worker)[0], seconds=0.01)
        return len(cluster.on(worker))

    cluster.submit(client, 400)
    assert beat() == 5
    assert beat(5.0) == 5, "the first answer may have found a process that was starting"
    assert beat(0.1) == pytest.approx(16, abs=1)
    assert beat(2.0, 3.0, 0.2, 2.0) == pytest.approx(16, abs=1)
    assert beat(2.0) == pytest.approx(31, abs=1), "the fastest one is not among the last five"
    assert beat(*[1e6] * 5) == pytest.approx(151, abs=1), "however far it claims to be"
    beat(*[0.001] * 5)
    cluster.finish(worker, *cluster.on(worker), seconds=0.01)
    assert len(cluster.on(worker)) == pytest.approx(5, abs=1)


def test_task_that_no_worker_can_run_blocks_no_other(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("cpu")
    (gpu_task,) = cluster.submit(client, needs=(("gpu", 2.0),))
    (plain,) = cluster.submit(client)
    assert cluster.on(worker) == [plain]
    gpu = cluster.worker("gpu", {"gpu": 2.0})
    assert cluster.on(gpu) == [gpu_task]


def test_quantity_must_be_offered_in_full_and_a_label_offers_any(cluster: Cluster, client: str) -> None:
    one, label = cluster.worker("one", {"gpu": 1.0}), cluster.worker("label", {"gpu": None})
    (task,) = cluster.submit(client, needs=(("gpu", 2.0),))
    assert (cluster.on(one), cluster.on(label)) == ([], [task])


def test_plain_tasks_avoid_the_worker_with_capabilities() -> None:
    cluster = Cluster(NoScaling(Allocation(prefer_least_capable=True)))
    client = cluster.client()
    gpu, plain = cluster.worker("gpu", {"gpu": 1.0}), cluster.worker("plain")
    (task,) = cluster.submit(client)
    assert (cluster.on(gpu), cluster.on(plain)) == ([], [task])


def test_constrained_tasks_alternate_with_unconstrained_ones(cluster: Cluster) -> None:
    client, gpu = cluster.client(), cluster.worker("gpu", {"gpu": 1.0})
    cluster.submit(client, 100)
    special = set(cluster.submit(client, 10, needs=(("gpu", 1.0),)))
    done: list[bytes] = []
    while not special.issubset(done):
        done.append(cluster.on(gpu)[0])
        cluster.finish(gpu, done[-1], seconds=1.0)
    assert len(done) <= 2 * len(special) + 3


def test_priority_precedes_arrival_and_clients_alternate() -> None:
    cluster = Alternating()
    first, second = cluster.client("first"), cluster.client("second")
    mine = cluster.submit(first, 3)
    theirs = cluster.submit(second, 3)
    (urgent,) = cluster.submit(first, priority=1)
    worker = cluster.worker("w", slots=7)
    assert cluster.on(worker) == [urgent, mine[0], theirs[0], mine[1], theirs[1], mine[2], theirs[2]]


def test_tasks_behind_a_long_one_are_recalled_for_an_idle_worker(cluster: Cluster) -> None:
    client, busy = cluster.client(), cluster.worker("busy")
    running, behind = cluster.submit(client, 2)
    idle = cluster.worker("idle")
    cluster.wait(0.1, alive=[busy, idle])
    assert cluster.recalls(busy, kill=False) == [behind]
    cluster.give_back(busy, behind)
    assert cluster.on(idle) == [behind]
    assert cluster.on(busy) == [running]


def test_queued_tasks_leave_a_stalled_worker_after_two_polls(cluster: Cluster) -> None:
    client = cluster.client()
    stuck, other = cluster.worker("stuck"), cluster.worker("other")
    cluster.submit(client, 80)
    for _ in range(40):
        cluster.wait(0.25, alive=[stuck, other])
        if cluster.recalls(stuck, kill=False):
            break
        if cluster.on(other):
            cluster.finish(other, cluster.on(other)[0], seconds=1.0)
    assert cluster.now - 100.0 >= 2.0
    assert cluster.recalls(stuck, kill=False)


def test_only_the_assigned_worker_reports_running_tasks_to_the_client(cluster: Cluster) -> None:
    one, two, worker = cluster.client("one"), cluster.client("two"), cluster.worker("w", slots=2)
    stranger = cluster.worker("stranger")
    (first,), (second,) = cluster.submit(one), cluster.submit(two)
    runs = first if first in cluster.on(worker) else second
    owner = one if runs is first else two
    cluster.say(stranger, Started([runs]))
    assert not [message for _, message in cluster.said if isinstance(message, Started)]
    cluster.say(worker, Started([runs, bytes(16)]))
    assert [said for said in cluster.said if isinstance(said[1], Started)] == [(owner, Started([runs]))]


def test_task_waiting_for_nested_tasks_lends_its_slot(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", queue_size=1)
    (outer,) = cluster.submit(client)
    cluster.nested("nested", worker)
    cluster.say(worker, Suspended([outer], [1], [True]))
    cluster.submit(client, 4)
    assert len(cluster.on(worker)) == 3
    cluster.say(worker, Suspended([outer], [1], [False]))
    cluster.finish(worker, outer)
    assert cluster.outcome(client, outer) is Outcome.SUCCESS


def test_more_deeply_nested_tasks_come_first(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", queue_size=1)
    (outer,) = cluster.submit(client)
    first = cluster.nested("first", worker)
    cluster.say(worker, Suspended([outer], [1], [True]))
    (middle,) = cluster.submit(first, parent=outer)
    second = cluster.nested("second", worker)
    cluster.say(worker, Suspended([middle], [1], [True]))
    (inner,) = cluster.submit(second, parent=middle)
    cluster.submit(client)  # the worker's prefetch is now full
    (shallow,) = cluster.submit(first, parent=outer)
    (deep,) = cluster.submit(second, parent=middle)
    (orphan,) = cluster.submit(first, parent=bytes(16))
    cluster.finish(worker, inner)
    assert cluster.on(worker)[-1] == deep
    cluster.finish(worker, deep)
    assert cluster.on(worker)[-1] == shallow
    cluster.finish(worker, shallow)
    assert cluster.on(worker)[-1] == orphan


def test_stalled_scheduler_evicts_no_peer() -> None:
    cluster = Cluster(worker_timeout_seconds=10.0)
    cluster.worker("w")
    cluster.now += 300.0
    cluster.step()
    cluster.wait(5.0)
    assert cluster.state.workers


def test_function_is_announced_once_per_worker_and_withdrawn_when_unused(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    for _ in range(3):
        (task,) = cluster.submit(client)
        cluster.finish(worker, task)
    assert sum(len(getattr(message, "functions", ())) for name, message in cluster.said if name == worker) == 1
    cluster.leave(client)
    assert any(isinstance(message, ForgetFunctions) for name, message in cluster.said if name == worker)


def test_function_released_and_redefined_is_announced_to_the_worker_again(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client)
    cluster.finish(worker, task)
    group = TaskGroup(Spec(FUNCTION, name="function"), [cluster.task_id(client)], [b"\x80 arguments"])
    cluster.said.clear()
    cluster.step(
        Received(cluster.peer(client), Release([FUNCTION])),
        Received(cluster.peer(client), Submit([(FUNCTION, CODE)], [group])),
    )
    undefine, run = (message for name, message in cluster.said if name == worker)
    assert isinstance(undefine, ForgetFunctions)
    assert isinstance(run, Run)
    assert run.functions == [(FUNCTION, CODE)]


def test_task_with_oversized_inputs_is_rejected_without_harm(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    (first,) = cluster.submit(client)
    (greedy,) = cluster.submit(client, references=[(first,) * 2000])
    (modest,) = cluster.submit(client, references=[(first,) * 1000])
    cluster.finish(worker, first, payload=b"\x80" + bytes(32_000))
    outcome, text = cluster.outcomes(client)[greedy]
    assert outcome is Outcome.REJECTED
    assert b"MAX_INPUT_BYTES" in text
    assert cluster.on(worker) == [modest]


def test_client_in_a_task_may_send_only_client_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "REPEAT_SECONDS", 0.0)
    cluster = Cluster()
    client, worker, other = cluster.client(), cluster.worker("w"), cluster.worker("x")
    cluster.take_facts()
    cluster.step(Relayed(cluster.peer(worker), cluster.peer("nested"), b"", None, "malformed message"))
    cluster.relay("nested", worker, Drain("now"))
    assert cluster.peer("nested") not in cluster.state.clients
    cluster.nested("nested", worker)
    cluster.relay("nested", other, Heartbeat(1.0))
    cluster.relay(client, worker, Heartbeat(1.0))
    texts = [fact.text for fact in cluster.take_facts() if isinstance(fact, Incident)]
    assert [text.partition(" that ")[0] for text in texts[1:]] == [
        "relayed Drain, which clients may not send",
        "relayed a message for a client",
        "relayed a message for a client",
    ]


def needs_of(worker: str) -> dict[str, Any]:
    """Return the options of a task that runs on only one worker, at most once."""
    return {"needs": pinned(Cluster.peer(worker).hex()), "retries": 0}


def test_task_pinned_to_a_worker_waits_while_other_tasks_run(cluster: Cluster, client: str) -> None:
    for name in "abc":
        cluster.worker(name)
    (first,) = cluster.submit(client, **needs_of("b"))
    (second,) = cluster.submit(client, **needs_of("b"))
    others = cluster.submit(client, 2)
    assert cluster.on("b") == [first]
    assert sorted(cluster.on("a") + cluster.on("c")) == sorted(others)
    cluster.finish("b", first)
    assert cluster.on("b") == [second]


def test_task_fails_when_its_only_suitable_worker_is_gone(cluster: Cluster, client: str, worker: str) -> None:
    (busy,) = cluster.submit(client)
    (waiting,) = cluster.submit(client, **needs_of(worker))
    assert cluster.on(worker) == [busy]
    cluster.leave(worker)
    (never,) = cluster.submit(client, **needs_of("missing"))
    (odd,) = cluster.submit(client, needs=(("worker:no id", 0.0),))
    assert [cluster.outcome(client, task) for task in (waiting, never, odd)] == [Outcome.WORKER_LOST] * 3
    assert cluster.outcome(client, busy) is None


@pytest.mark.parametrize("has_room", [True, False])
def test_scheduler_examines_few_of_many_queues_per_step(monkeypatch: pytest.MonkeyPatch, has_room: bool) -> None:
    cluster = Cluster()
    for client in ("a", "b"):
        cluster.client(client)
    cluster.worker("w", queue_size=0)
    (running,) = cluster.submit("a", retries=0)
    count = 200
    for client in ("a", "b"):
        specs = [Spec(FUNCTION, name="f", needs=((f"{NEAR}{number}", 0.0),), retries=0) for number in range(count)]
        groups = [TaskGroup(spec, [cluster.task_id(client)], [b"\x80 arguments"], [], [], []) for spec in specs]
        cluster.say(client, Submit([(FUNCTION, CODE)], groups, 0, 0))
    asked = 0
    next_turn = ReadyQueue.next_turn

    def counted(queue: ReadyQueue) -> tuple[Any, ...]:
        nonlocal asked
        asked += 1
        return next_turn(queue)

    monkeypatch.setattr(ReadyQueue, "next_turn", counted)
    if has_room:
        cluster.finish("w", running)
        assert len(cluster.on("w")) == 1
        assert 0 < asked <= count // 2
    else:
        cluster.step()
        assert asked == 0


def test_each_of_many_queues_gets_its_turns_and_free_slots_by_priority() -> None:
    cluster = Cluster()
    for client in ("a", "b"):
        cluster.client(client)
    cluster.worker("w", queue_size=0)
    (running,) = cluster.submit("a", retries=0)
    for number in range(300):
        cluster.submit("a", needs=((f"{NEAR}{number}", 0.0),), retries=0)
    (of_b,) = cluster.submit("b", needs=((f"{NEAR}b", 0.0),), retries=0)
    cluster.finish("w", running, seconds=1.0)
    assert cluster.on("w") == [of_b]
    for client in ("a", "b"):
        cluster.submit(client, needs=((f"{NEAR}more", 0.0),), retries=0)
    (urgent,) = cluster.submit("a", needs=((f"{NEAR}urgent", 0.0),), retries=0, priority=1)
    cluster.finish("w", of_b)
    assert cluster.on("w") == [urgent]
    for number in range(300):
        for client in ("a", "b"):
            cluster.submit(client, needs=((f"missing-{number}", 1.0),), priority=2)
    cluster.finish("w", urgent)
    assert len(cluster.on("w")) == 1


def test_reservations_work_with_more_needs_than_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaler.scheduler.core.cluster.MAX_FITTING", 4)
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("w", {MEMORY: 100.0})
    tasks = [cluster.submit(client, needs=((MEMORY, 99.0 - number),))[0] for number in range(10)]
    cluster.wait(3, alive=[worker, client])
    for _ in tasks:
        cluster.finish(worker, *cluster.on(worker))
    assert set(cluster.outcomes(client)) == set(tasks)
