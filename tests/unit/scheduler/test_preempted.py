"""A preempted task runs again, and no limit is charged."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from scaler.protocol.messages import Outcome, Recall, Started
from scaler.scheduler.core.changes import TaskRetried
from scaler.scheduler.core.ready import Turns
from scaler.scheduler.core.state import Task, Worker
from tests.unit.scheduler.driver import Cluster

AHEAD = "a task of key bob with priority 100"


class Stopping(Turns):
    """Stops the tasks that a test names."""

    refusal = ""

    def __init__(self) -> None:
        self.named: list[bytes] = []
        self.asked = 0
        self.cluster: Stops

    def to_preempt(self, now: float, /) -> Iterable[tuple[Worker, Task, str]]:
        self.asked += 1
        self.preempt_at = now + 1.0
        named, self.named = self.named, []
        workers = self.cluster.state.workers.values()
        return [(worker, worker.tasks[task], AHEAD) for task in named for worker in workers if task in worker.tasks]


class Stops(Cluster):
    extensions = tuple(each for each in Cluster.extensions if each != "sharing")
    changes = (*Cluster.changes, TaskRetried)

    def __init__(self) -> None:
        super().__init__()
        self.turns = self.state.ready.turns = Stopping()
        self.turns.cluster = self
        self.client()
        self.worker("w", queue_size=0)

    def preempt(self, *tasks: bytes) -> None:
        self.turns.named += tasks
        self.turns.preempt_at = self.now
        self.step()

    def stop(self, task: bytes, seconds: float = 12.0) -> None:
        self.finish("w", task, outcome=Outcome.NOT_STARTED, payload=b"stopped for another task", seconds=seconds)

    def texts(self) -> list[str]:
        return [change.reason for change in self.facts if isinstance(change, TaskRetried)]


def preempted() -> tuple[Stops, bytes, bytes]:
    """Return a cluster with a task that is being stopped, and a ready one."""
    cluster = Stops()
    first, second = cluster.submit("client", 2, preemptible=5.0)
    cluster.preempt(first)
    return cluster, first, second


def test_worker_is_asked_to_stop_the_preempted_task() -> None:
    cluster, first, _ = preempted()
    assert [message for name, message in cluster.said if name == "w" and isinstance(message, Recall)] == [
        Recall([first], [1], False, preempt=True)
    ]


def test_stopped_task_is_the_next_task_of_its_client() -> None:
    cluster, first, second = preempted()
    (third,) = cluster.submit("client")
    cluster.stop(first)
    assert cluster.on("w") == [first]
    cluster.finish("w", first)
    assert cluster.on("w") == [second]
    cluster.finish("w", second)
    cluster.finish("w", third)
    assert {each[0] for each in cluster.outcomes("client").values()} == {Outcome.SUCCESS}


def test_stop_is_recorded_with_its_reason_and_counts_as_no_failure() -> None:
    cluster, first, _ = preempted()
    cluster.stop(first)
    task = cluster.state.living_task(first)
    assert task is not None
    assert task.errors is not None
    assert (task.errors.uncharged, task.errors.losses, task.errors.failures) == (1, 0, 0)
    assert cluster.texts() == [f"attempt 1 on manager-1 (host, pid 1): stopped after 12 s for {AHEAD}"]
    assert task.error_texts == cluster.texts()
    worker = cluster.state.workers[cluster.peer("w")]
    assert (worker.progress.failures_in_row, worker.recalled) == (0, 0)


def test_client_learns_that_the_stopped_task_no_longer_runs() -> None:
    cluster, first, _ = preempted()
    cluster.stop(first)
    assert ("client", Started([first], requeued=True)) in cluster.said


def test_stop_by_an_earlier_scheduler_is_recorded_and_counts_as_no_failure() -> None:
    cluster = Stops()
    (task,) = cluster.submit("client", 1, preemptible=5.0)
    cluster.stop(task)
    assert cluster.texts() == ["attempt 1 on manager-1 (host, pid 1): stopped for another task"]
    assert ("client", Started([task], requeued=True)) in cluster.said
    cluster.stop(task, seconds=0.0)  # it never began
    assert len(cluster.texts()) == 1


def test_result_within_the_grace_period_counts() -> None:
    cluster, first, second = preempted()
    cluster.finish("w", first)
    assert cluster.outcome("client", first) is Outcome.SUCCESS
    assert cluster.on("w") == [second]
    assert cluster.texts() == []


def test_worker_of_an_older_version_continues_the_task() -> None:
    cluster, first, _ = preempted()
    cluster.give_back("w", first, started=True)
    assert cluster.on("w") == [first]
    cluster.finish("w", first)
    assert cluster.outcome("client", first) is Outcome.SUCCESS
    assert cluster.texts() == []


def test_unstarted_task_is_moved_and_not_stopped() -> None:
    cluster, first, _ = preempted()
    cluster.give_back("w", first)
    assert cluster.texts() == []
    assert cluster.on("w") == [first]


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.NOT_STARTED])
def test_task_cancelled_while_it_stops_ends_as_cancelled(outcome: Outcome) -> None:
    cluster, first, _ = preempted()
    cluster.cancel("client", first)
    assert cluster.recalls("w", kill=True) == [first]
    cluster.finish("w", first, outcome=outcome, payload=b"")
    assert cluster.outcome("client", first) is Outcome.CANCELLED
    assert cluster.texts() == []


def test_task_stopped_many_times_is_neither_poison_nor_lost() -> None:
    cluster, first, second = preempted()
    cluster.stop(first)
    for _ in range(30):
        cluster.preempt(first)
        cluster.stop(first)
    task = cluster.state.living_task(first)
    assert task is not None
    assert len(task.error_texts) == 8
    assert task.error_texts[-1].startswith("attempt 31 on ")
    cluster.finish("w", first)
    cluster.finish("w", second)
    assert cluster.outcome("client", first) is Outcome.SUCCESS


def test_task_runs_again_when_its_worker_dies_while_it_stops() -> None:
    cluster, first, _ = preempted()
    cluster.leave("w")
    cluster.worker("other")
    cluster.wait(2.0, ["other"])
    assert first in cluster.on("other")


def test_disconnected_client_gets_no_message_about_a_stop() -> None:
    cluster, first, _ = preempted()
    cluster.leave("client")
    cluster.stop(first)
    assert not any(isinstance(message, Started) for _, message in cluster.said)


def test_preemption_is_not_considered_while_no_task_is_ready() -> None:
    cluster = Stops()
    cluster.submit("client", preemptible=5.0)
    cluster.turns.preempt_at = cluster.now
    cluster.wait(3.0, ["w"])
    assert cluster.turns.asked == 0


def test_preemption_is_considered_again_at_the_announced_time() -> None:
    cluster, _, _ = preempted()
    assert cluster.core.next_step_at(cluster.now) <= cluster.turns.preempt_at
    asked = cluster.turns.asked
    cluster.wait(3.0, ["w"])
    assert cluster.turns.asked - asked == 3
