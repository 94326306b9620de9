"""Short tasks that each need the value of the one before: they go to a worker together."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.ids import result_id
from scaler.protocol.messages import Done, Outcome, Returned, Run, stored_reference
from tests.unit.scheduler.driver import VALUE, Cluster

SHORT = 0.0001


@pytest.fixture
def cluster() -> Cluster:
    """A cluster in which the function is known to be short."""
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("w")
    (first,) = cluster.submit(client)
    cluster.finish(worker, first, seconds=SHORT)
    cluster.said.clear()
    return cluster


def chain(cluster: Cluster, length: int, **options: Any) -> list[bytes]:
    ids = [cluster.task_id("client") for _ in range(length)]
    references = [(), *((each,) for each in ids[:-1])]
    return cluster.submit("client", ids=ids, references=references, **options)


def sent_ahead(cluster: Cluster, worker: str = "w") -> list[tuple[bytes, bytes, int, tuple[bytes, ...]]]:
    """Return each follower that was sent to a worker: the task before it, its id, its attempt and its inputs."""
    return [
        row
        for name, message in cluster.said
        if name == worker and isinstance(message, Run)
        for group in message.followers
        for row in zip(group.after, group.ids, group.attempts, group.inputs, strict=True)
    ]


def finish_all(cluster: Cluster, *ids: bytes, worker: str = "w", attempt: int = 1) -> None:
    count = len(ids)
    cluster.say(worker, Done(list(ids), [attempt] * count, [0] * count, [VALUE] * count, [100] * count))


def test_chain_is_dispatched_together_and_runs_in_order(cluster: Cluster) -> None:
    first, second, third = chain(cluster, 3)
    assert cluster.on("w") == [first]
    assert sent_ahead(cluster) == [(first, second, 1, (b"",)), (second, third, 1, (b"",))]
    cluster.finish("w", first, seconds=SHORT)
    assert cluster.on("w") == [second]
    assert [task for task, *_ in cluster.runs("w")] == [first], "it is there already"


def test_results_of_a_whole_chain_in_one_message_count(cluster: Cluster) -> None:
    ids = chain(cluster, 5)
    finish_all(cluster, *ids)
    assert [cluster.outcome("client", each) for each in ids] == [Outcome.SUCCESS] * 5
    assert cluster.on("w") == []


def test_function_of_unknown_length_has_no_followers() -> None:
    cluster = Cluster()
    cluster.client()
    cluster.worker("w")
    chain(cluster, 3)
    assert sent_ahead(cluster) == []


def test_worker_gets_ten_milliseconds_of_followers(cluster: Cluster) -> None:
    (slower,) = cluster.submit("client")
    cluster.finish("w", slower, seconds=0.0059)
    assert chain(cluster, 10)
    assert len(sent_ahead(cluster)) == 2, "the mean is 3 ms"


@pytest.mark.parametrize("options", [{"retries": 0}, {"needs": (("memory", 1.0),)}, {"needs": (("cpus", 1.0),)}])
def test_start_once_tasks_and_tasks_with_resources_do_not_follow(cluster: Cluster, options: dict[str, object]) -> None:
    cluster.worker("large", {"memory": 8.0, "cpus": 8.0}, slots=4)
    chain(cluster, 3, **options)
    assert sent_ahead(cluster) == sent_ahead(cluster, "large") == []


def test_does_not_follow_with_several_dependents_other_needs_or_stored_inputs(cluster: Cluster) -> None:
    (large,) = cluster.submit("client")
    cluster.finish("w", large, payload=stored_reference(result_id(large, 1), 100_000), seconds=SHORT)
    first, second, third = cluster.submit("client", 3)
    cluster.submit("client", 2, references=[(first,), (first,)])
    cluster.submit("client", references=[(large, second)])
    cluster.worker("x", {"x": None})
    cluster.submit("client", references=[(third,)], needs=(("x", 0.0),))
    for name in ("w", "x"):
        cluster.give_back(name, *cluster.on(name))
        assert sent_ahead(cluster, name) == []


def test_followers_of_a_retried_task_join_its_next_attempt(cluster: Cluster) -> None:
    first, second = chain(cluster, 2)
    cluster.finish("w", first, outcome=Outcome.EXCEPTION_TO_RETRY, payload=b"\x80 oops", seconds=SHORT)
    assert cluster.on("w") == []
    assert not cluster.state.workers[cluster.peer("w")].ahead
    cluster.wait(3.0, ["client", "w"])
    assert sent_ahead(cluster)[-1] == (first, second, 2, (b"",))


def test_followers_of_a_failed_task_fail_with_it(cluster: Cluster) -> None:
    first, second, third = chain(cluster, 3)
    cluster.finish("w", first, outcome=Outcome.EXCEPTION, payload=b"\x80 oops")
    assert cluster.outcomes("client")[third] == (Outcome.EXCEPTION, b"\x80 oops")
    finish_all(cluster, second, third)
    assert cluster.on("w") == []


def test_returning_a_task_returns_its_followers(cluster: Cluster) -> None:
    first, second = chain(cluster, 2)
    cluster.give_back("w", first)
    assert sent_ahead(cluster) == [(first, second, 1, (b"",)), (first, second, 2, (b"",))]
    finish_all(cluster, first, second, attempt=2)
    assert cluster.outcome("client", second) is Outcome.SUCCESS


def test_late_follower_is_placed_again(cluster: Cluster) -> None:
    first, second, third = chain(cluster, 3)
    cluster.say("w", Returned([second], [1], [False]))
    cluster.finish("w", first, seconds=SHORT)
    assert cluster.on("w") == [second]
    assert cluster.runs("w")[-1] == (second, 2, (VALUE,))
    assert sent_ahead(cluster)[-1] == (second, third, 2, (b"",))


def test_cancelled_follower_ends_and_its_late_result_is_ignored(cluster: Cluster) -> None:
    first, second, third = chain(cluster, 3)
    cluster.cancel("client", second)
    finish_all(cluster, first, second, third)
    assert cluster.outcome("client", first) is Outcome.SUCCESS
    assert cluster.outcome("client", second) is cluster.outcome("client", third) is Outcome.CANCELLED
    assert not cluster.state.workers[cluster.peer("w")].ahead


def test_lost_worker_costs_only_its_running_task(cluster: Cluster) -> None:
    first, second, third = chain(cluster, 3)
    cluster.finish("w", first, seconds=SHORT)
    cluster.leave("w", "killed")
    cluster.worker("v")
    cluster.wait(2.0, ["client", "v"])
    finish_all(cluster, second, worker="v", attempt=2)
    assert cluster.outcome("client", second) is Outcome.SUCCESS
    assert cluster.on("v") == [third]
