"""The life of a task in the scheduler core, through its public interface."""

from __future__ import annotations

import pytest

from scaler.ids import result_id
from scaler.protocol.codec import encode
from scaler.protocol.messages import (
    MAX_CONTROL_BYTES,
    AcknowledgeResults,
    Clear,
    Done,
    ForgetObjects,
    ForgetOwner,
    Outcome,
    Pin,
    Release,
    Spec,
    Submit,
    TaskGroup,
    stored_reference,
)
from scaler.scheduler.core.changes import Incident
from scaler.scheduler.core.commands import Command, SendToStorage
from scaler.scheduler.core.core import EXPIRY_SECONDS
from scaler.scheduler.core.state import Group
from tests.unit.scheduler.driver import CODE, FUNCTION, VALUE, Cluster


def storage_parts(commands: list[Command]) -> list[list[bytes]]:
    """Return the ids that the storage must release, message by message."""
    messages = [command.message for command in commands if isinstance(command, SendToStorage)]
    return [message.ids for message in messages if isinstance(message, ForgetObjects)]


def forgotten(cluster: Cluster) -> list[bytes]:
    return [task for part in storage_parts(cluster.commands) for task in part]


def test_measured_duration_excludes_the_wait_for_inputs(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    [task] = cluster.submit(client)
    [timing] = {each.group.timing for each in cluster.state.clients[cluster.peer(client)].tasks.values()}
    done = Done([task], [1], [Outcome.SUCCESS], [VALUE], [5_000_000], inputs_us=[4_000_000], inputs_bytes=[7])
    cluster.say(worker, done)
    assert timing.seconds == 1.0


def test_resubmitting_changes_nothing_before_or_after_the_end(cluster: Cluster, client: str, worker: str) -> None:
    (task,) = cluster.submit(client)
    cluster.submit(client, ids=[task])
    assert len(cluster.runs(worker)) == 1
    cluster.finish(worker, task)
    cluster.submit(client, ids=[task])
    assert len(cluster.runs(worker)) == 1
    assert cluster.outcome(client, task) is Outcome.SUCCESS


def test_late_result_of_an_earlier_attempt_is_dropped_and_released(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=2)
    (task,) = cluster.submit(client)
    cluster.finish(worker, task, outcome=Outcome.NOT_STARTED, payload=b"", seconds=0.0)
    assert [attempt for _, attempt, _ in cluster.runs(worker)] == [1, 2]
    late = result_id(task, 1)
    cluster.finish(worker, task, payload=stored_reference(late, 10**6), attempt=1)
    assert cluster.outcome(client, task) is None
    assert forgotten(cluster) == [late]
    cluster.finish(worker, task)
    assert cluster.outcome(client, task) is Outcome.SUCCESS


def test_late_result_releases_only_its_own_object(cluster: Cluster) -> None:
    client, one, other = cluster.client(), cluster.worker("one"), cluster.worker("other")
    running = cluster.submit(client, 2)
    unknown = cluster.task_id(client)
    stored = cluster.object_id(client)
    for task, claimed in [(unknown, stored), (unknown, result_id(running[0], 1)), (stored, stored)]:
        cluster.say(one, Done([task], [1], [Outcome.SUCCESS], [stored_reference(claimed, 1)], [1]))
    for worker in (one, other):  # each reports the task that the other worker runs
        for task in set(running) - set(cluster.on(worker)):
            cluster.say(worker, Done([task], [1], [Outcome.SUCCESS], [stored_reference(result_id(task, 1), 1)], [1]))
    assert forgotten(cluster) == []


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY])
def test_result_with_a_foreign_id_is_ignored(cluster: Cluster, outcome: Outcome, client: str, worker: str) -> None:
    (task,) = cluster.submit(client)
    cluster.finish(worker, task, outcome=outcome, payload=stored_reference(cluster.object_id(client), 1))
    assert cluster.outcome(client, task) is Outcome.OBJECT_LOST
    assert forgotten(cluster) == []


def test_dependency_may_follow_its_dependent_in_a_message(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=4)
    second, first = cluster.task_id(client), cluster.task_id(client)
    cluster.submit(client, ids=[second, first], references=[(first,), ()])
    assert cluster.on(worker) == [first]
    cluster.finish(worker, first)
    assert cluster.on(worker) == [second]


def test_failed_dependency_fails_all_dependents_with_its_exception(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    (first,) = cluster.submit(client)
    (second,) = cluster.submit(client, references=[(first,)])
    (third,) = cluster.submit(client, references=[(second,)])
    cluster.finish(worker, first, outcome=Outcome.EXCEPTION, payload=b"\x80 oops")
    assert set(cluster.outcomes(client).values()) == {(Outcome.EXCEPTION, b"\x80 oops")}
    assert set(cluster.outcomes(client)) == {first, second, third}


def test_value_of_an_inner_node_is_not_sent_to_the_client(cluster: Cluster, client: str, worker: str) -> None:
    (inner,) = cluster.submit(client, deliver=False)
    (outer,) = cluster.submit(client, references=[(inner,)])
    cluster.finish(worker, inner, payload=b"\x80 inner")
    assert cluster.outcomes(client)[inner] == (Outcome.SUCCESS, b"")
    assert cluster.runs(worker)[-1] == (outer, 1, (b"\x80 inner",))


def test_running_task_is_cancelled_once_its_worker_has_killed_it(cluster: Cluster, client: str, worker: str) -> None:
    (task,) = cluster.submit(client)
    cluster.cancel(client, task)
    assert cluster.recalls(worker, kill=True) == [task]
    assert cluster.outcome(client, task) is None
    cluster.finish(worker, task, outcome=Outcome.CANCELLED, payload=b"")
    assert cluster.outcome(client, task) is Outcome.CANCELLED


def test_clear_cancels_everything_and_drops_client_state(cluster: Cluster, client: str, worker: str) -> None:
    held = cluster.object_id(client)
    cluster.say(client, Pin([held]))
    running, *queued = cluster.submit(client, 5)
    cluster.say(client, Clear())
    cluster.give_back(worker, *[task for task in cluster.on(worker) if task != running])
    cluster.finish(worker, running, outcome=Outcome.CANCELLED, payload=b"")
    assert {cluster.outcome(client, task) for task in (running, *queued)} == {Outcome.CANCELLED}
    assert set(forgotten(cluster)) == {held, result_id(running, 1)}


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_task_whose_process_dies_is_retried_up_to_its_limit(cluster: Cluster, deaths: int) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client, retries=2)
    for _ in range(deaths):
        cluster.finish(worker, task, outcome=Outcome.PROCESSOR_DIED, payload=b"killed by signal 9 (SIGKILL)")
        cluster.wait(1.0, alive=[worker])
    if deaths <= 2:
        assert len(cluster.runs(worker)) == deaths + 1
        assert cluster.outcome(client, task) is None
    else:
        outcome, text = cluster.outcomes(client)[task]
        assert outcome is Outcome.PROCESSOR_DIED
        assert text.startswith(b"killed by signal 9 (SIGKILL), 3 attempts")


def test_task_is_retried_after_its_own_exception_only_on_request(cluster: Cluster, client: str, worker: str) -> None:
    plain, opted = cluster.submit(client)[0], cluster.submit(client, retry_on=b"\x80 ValueError", retries=1)[0]
    cluster.finish(worker, plain, outcome=Outcome.EXCEPTION)
    assert cluster.outcome(client, plain) is Outcome.EXCEPTION
    cluster.finish(worker, opted, outcome=Outcome.EXCEPTION_TO_RETRY)
    cluster.wait(1.0, alive=[worker])
    assert len(cluster.runs(worker)) == 3
    cluster.finish(worker, opted, outcome=Outcome.EXCEPTION_TO_RETRY, payload=b"\x80 again")
    assert cluster.outcomes(client)[opted] == (Outcome.EXCEPTION, b"\x80 again")


def test_task_that_brought_down_three_workers_is_poison(cluster: Cluster, client: str) -> None:
    (task,) = cluster.submit(client, retries=10)
    for name in ("a", "b", "c"):
        worker = cluster.worker(name)
        cluster.wait(1.0, alive=[worker])
        assert cluster.on(worker) == [task]
        cluster.leave(worker, "was killed")
    outcome, text = cluster.outcomes(client)[task]
    assert outcome is Outcome.POISON
    assert b"3 workers" in text


def test_only_the_running_task_is_charged_for_the_loss_of_its_worker(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("a")
    running, queued = cluster.submit(client, 2, retries=1)
    assert cluster.on(worker) == [running, queued]
    for name in ("b", "c"):
        cluster.leave(worker, "was killed")
        worker = cluster.worker(name)
        cluster.wait(1.0, alive=[worker])
        if cluster.outcome(client, running) is None:
            cluster.finish(worker, queued, outcome=Outcome.NOT_STARTED, payload=b"")
    assert cluster.outcome(client, queued) is None


def test_run_once_task_ends_in_doubt_when_its_worker_is_lost(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client, retries=0)
    cluster.leave(worker, "was killed")
    outcome, text = cluster.outcomes(client)[task]
    assert outcome is Outcome.WORKER_LOST
    assert b"may have run" in text


def test_worker_with_five_failures_in_a_row_gets_no_tasks_if_others_succeed(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    for number in range(5):
        (task,) = cluster.submit(client, retries=0)
        if number == 4:
            cluster.worker("well")
        cluster.finish(worker, task, outcome=Outcome.PROCESSOR_DIED, payload=b"exit code 1")
    cluster.submit(client, 10)
    assert cluster.on(worker) == []


def test_departed_clients_tasks_are_dropped_and_its_objects_released(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    running, *_ = cluster.submit(client, 10)
    cluster.leave(client)
    assert running in cluster.recalls(worker, kill=True)
    assert SendToStorage(ForgetOwner(cluster.peer(client))) in cluster.commands
    late = result_id(running, 1)
    cluster.finish(worker, running, payload=stored_reference(late, 10**6))
    assert late in forgotten(cluster)


def test_silent_client_is_dropped_after_its_lease(cluster: Cluster, client: str) -> None:
    cluster.submit(client)
    cluster.wait(59.0)
    assert cluster.state.clients
    cluster.wait(2.0)
    assert not cluster.state.clients
    assert SendToStorage(ForgetOwner(cluster.peer(client))) not in cluster.commands
    cluster.wait(61.0)
    assert SendToStorage(ForgetOwner(cluster.peer(client))) in cluster.commands


def test_tasks_beyond_the_waiting_limit_are_rejected_with_its_name() -> None:
    cluster = Cluster(max_number_of_tasks_waiting=3)
    client = cluster.client()
    ids = cluster.submit(client, 5)
    rejected = {task for task in ids if cluster.outcome(client, task) is Outcome.REJECTED}
    assert rejected == set(ids[3:])
    assert b"max_number_of_tasks_waiting is 3" in cluster.outcomes(client)[ids[4]][1]


def register(cluster: Cluster, client: str, identifier: bytes, payload: bytes) -> Outcome | None:
    """Register a function and submit a task of it; return how the task ended, or None if it runs."""
    task = cluster.task_id(client)
    cluster.say(client, Submit([(identifier, payload)], [TaskGroup(Spec(identifier), [task], [b"\x80"])]))
    return cluster.outcome(client, task)


def test_function_with_a_foreign_content_id_is_never_registered(cluster: Cluster) -> None:
    mallory, alice, worker = cluster.client("mallory"), cluster.client("alice"), cluster.worker("w")
    assert register(cluster, mallory, FUNCTION, b"\x80 evil") is Outcome.REJECTED
    assert any(FUNCTION.hex() in fact.text for fact in cluster.facts if isinstance(fact, Incident))
    (task,) = cluster.submit(alice)
    assert cluster.on(worker) == [task]
    assert cluster.state.objects.functions[FUNCTION].payload == CODE
    assert register(cluster, mallory, FUNCTION, b"\x80 evil") is Outcome.REJECTED
    assert cluster.state.objects.functions[FUNCTION].payload == CODE


def test_function_runs_only_for_clients_that_registered_it(cluster: Cluster) -> None:
    mallory, alice, worker = cluster.client("mallory"), cluster.client("alice"), cluster.worker("w")
    stored = cluster.object_id(alice)
    assert register(cluster, alice, stored, stored_reference(stored, 10**6)) is None
    assert register(cluster, mallory, stored, stored_reference(stored, 10**6)) is Outcome.REJECTED
    task = cluster.task_id(mallory)
    cluster.submit(alice)
    cluster.say(mallory, Submit([], [TaskGroup(Spec(FUNCTION), [task], [b"\x80"])]))
    assert cluster.outcome(mallory, task) is Outcome.REJECTED
    assert task not in cluster.on(worker)
    cluster.finish(worker, *cluster.on(worker))
    cluster.say(alice, Release([stored]))
    assert forgotten(cluster)[-1] == stored


def test_stored_arguments_of_a_task_belong_to_its_client(cluster: Cluster) -> None:
    mallory, alice, worker = cluster.client("mallory"), cluster.client("alice"), cluster.worker("w")
    secret, mine = cluster.object_id(alice), cluster.object_id(mallory)
    cluster.submit(mallory)
    tasks = [cluster.task_id(mallory) for _ in range(2)]
    payloads = [stored_reference(secret, 10**6), stored_reference(mine, 10**6)]
    cluster.say(mallory, Submit([], [TaskGroup(Spec(FUNCTION), tasks, payloads)]))
    assert tasks[0] not in cluster.on(worker)
    assert tasks[1] in cluster.on(worker)


def test_object_is_dropped_after_its_release_and_last_use(cluster: Cluster, client: str, worker: str) -> None:
    stored = cluster.object_id(client)
    (task,) = cluster.submit(client, references=[(stored,)])
    assert cluster.runs(worker)[-1][2] == (stored_reference(stored, 0),)
    cluster.say(client, Release([stored]))
    assert forgotten(cluster) == []
    cluster.finish(worker, task)
    assert forgotten(cluster) == [stored]


def test_stored_result_lives_until_the_client_releases_it(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client)
    stored = result_id(task, 1)
    cluster.finish(worker, task, payload=stored_reference(stored, 10**6))
    cluster.say(client, Release([stored]))
    assert forgotten(cluster) == []
    cluster.say(client, AcknowledgeResults(1))
    assert forgotten(cluster) == [stored]


def test_task_never_goes_to_a_worker_with_an_earlier_attempt(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=2)
    (task,) = cluster.submit(client)
    cluster.leave(client)
    cluster.client(client)
    cluster.submit(client, ids=[task])
    assert len(cluster.runs(worker)) == 1
    cluster.finish(worker, task, outcome=Outcome.CANCELLED, payload=b"")
    assert [attempt for _, attempt, _ in cluster.runs(worker)] == [1, 2]
    cluster.finish(worker, task)
    assert cluster.outcome(client, task) is Outcome.SUCCESS


def test_client_can_name_only_its_own_tasks_and_objects(cluster: Cluster) -> None:
    mine, other = cluster.client("mine"), cluster.client("other")
    (theirs,) = cluster.submit(other)
    stored = cluster.object_id(other)
    tasks = [cluster.submit(mine, references=[(reference,)])[0] for reference in (theirs, stored)]
    for task in tasks:
        outcome, text = cluster.outcomes(mine)[task]
        assert outcome is Outcome.OBJECT_LOST
        assert b"another client" in text
    assert cluster.state.objects.stored == {}


def test_mass_releases_use_messages_of_bounded_size(cluster: Cluster, client: str) -> None:
    held = [cluster.object_id(client) for _ in range(5_000)]
    cluster.say(client, Pin(held))
    commands = cluster.say(client, Clear())
    parts = storage_parts(commands)
    assert [task for part in parts for task in part] == held
    assert all(len(encode(ForgetObjects(part))) < MAX_CONTROL_BYTES for part in parts)


def test_objects_possibly_stored_by_an_interrupted_attempt_are_released(
    cluster: Cluster, client: str, worker: str
) -> None:
    (task,) = cluster.submit(client)
    cluster.finish(worker, task, outcome=Outcome.PROCESSOR_DIED, payload=b"exit code 1")
    assert forgotten(cluster) == [result_id(task, 1)]
    cluster.wait(1.0, alive=[worker])
    cluster.leave(worker, "was killed")
    assert forgotten(cluster) == [result_id(task, 1), result_id(task, 2)]


def test_stored_exception_is_released_with_its_attempt_unless_reported(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client, retry_on=b"\x80 ValueError", retries=1)
    first, last = (stored_reference(result_id(task, attempt), 10**6) for attempt in (1, 2))
    cluster.finish(worker, task, outcome=Outcome.EXCEPTION_TO_RETRY, payload=first)
    cluster.wait(1.0, alive=[worker])
    cluster.finish(worker, task, outcome=Outcome.EXCEPTION_TO_RETRY, payload=last)
    assert cluster.outcomes(client)[task] == (Outcome.EXCEPTION, last)
    assert forgotten(cluster) == [result_id(task, 1)]


def test_task_returns_to_the_worker_it_failed_on_if_no_other_has_room(cluster: Cluster) -> None:
    client, first = cluster.client(), cluster.worker("first")
    (task,) = cluster.submit(client)
    busy = cluster.worker("busy", queue_size=0)
    cluster.submit(client)
    cluster.finish(first, task, outcome=Outcome.PROCESSOR_DIED, payload=b"exit code 1")
    cluster.wait(0.9, alive=[first, busy])
    assert cluster.on(first) == []
    cluster.wait(0.5, alive=[first, busy])
    assert cluster.on(first) == [task]


def test_tasks_in_succession_share_a_group_and_release_their_function_soon_after_the_last_one(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    groups = cluster.state.clients[cluster.peer(client)].groups
    found: list[Group] = []
    for _ in range(2):
        cluster.finish(worker, *cluster.submit(client))
        found.append(*groups.values())
    assert found[0] is found[1]
    assert cluster.state.objects.functions[FUNCTION].uses == 1
    cluster.wait(EXPIRY_SECONDS, alive=[client, worker])
    assert not groups
    assert cluster.state.objects.functions[FUNCTION].uses == 0
