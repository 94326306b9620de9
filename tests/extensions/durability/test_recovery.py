"""A restarted scheduler's use of its peers' repeated reports."""

from __future__ import annotations

import pytest

from scaler.net.connection import Opened
from scaler.protocol.messages import (
    ClientDetails,
    Done,
    Message,
    Outcome,
    Recall,
    ReleaseResults,
    Role,
    Run,
    Spec,
    Submit,
    TaskGroup,
    WorkerDetails,
    WorkerReport,
)
from scaler.scheduler.core.durability import RECOVERY_SECONDS
from tests.unit.scheduler.driver import CODE, FUNCTION, VALUE, Cluster

AFTER = RECOVERY_SECONDS + 0.25


class Restarted(Cluster):
    """A newly started scheduler, and peers of its predecessor."""

    def returning(self, name: str, *attempts: tuple[bytes, int], once: bool = False, slots: int = 1) -> None:
        """A worker returns and reports these attempts."""
        self.silent(name, slots)
        self.report(name, *attempts, once=once)

    def comes_back(self, name: str) -> None:
        """A client returns without having resubmitted."""
        hello = self._hello(Role.CLIENT, ClientDetails(name))
        hello.resume = True
        self.step(Opened(self.peer(name), hello))

    def silent(self, name: str, slots: int = 1, offers: dict[str, float | None] | None = None) -> None:
        """A worker returns and has not reported yet."""
        hello = self._hello(Role.WORKER, WorkerDetails("manager", f"unit-{name}", slots, 1000, offers or {}))
        hello.resume = True
        self.step(Opened(self.peer(name), hello))

    def report(self, name: str, *attempts: tuple[bytes, int], once: bool = False) -> None:
        count = len(attempts)
        ids = [task for task, _ in attempts]
        self.say(name, WorkerReport(ids, [number for _, number in attempts], [False] * count, [once] * count))

    def result(
        self, name: str, task: bytes, attempt: int = 1, payload: bytes = VALUE, outcome: Outcome = Outcome.SUCCESS
    ) -> None:
        self.say(name, Done([task], [attempt], [outcome], [payload], [1000]))

    def ids(self, count: int) -> list[bytes]:
        self.client()
        return [self.task_id("client") for _ in range(count)]

    def again(
        self, *tasks: bytes, references: tuple[tuple[bytes, ...], ...] = (), again: int = 1, **options: object
    ) -> None:
        """The client resubmits tasks that it had sent to the previous scheduler."""
        spec = Spec(**{"function": FUNCTION, "name": "function", **options})  # type: ignore[arg-type]
        group = TaskGroup(spec, list(tasks), [b"\x80 arguments"] * len(tasks), list(references))
        self.say("client", Submit([(FUNCTION, CODE)], [group], 0, again))

    def sent(self, name: str, kind: type[Message]) -> list[Message]:
        return [message for peer, message in self.said if peer == name and isinstance(message, kind)]


@pytest.fixture
def cluster() -> Restarted:
    return Restarted()


@pytest.mark.parametrize("client_first", [True, False])
def test_task_running_on_a_worker_continues_there(cluster: Restarted, client_first: bool) -> None:
    (task,) = cluster.ids(1)
    if client_first:
        cluster.again(task)
        cluster.returning("w", (task, 3))
    else:
        cluster.returning("w", (task, 3))
        cluster.again(task)
    cluster.worker("idle")
    cluster.wait(AFTER, alive=["w", "idle", "client"])
    assert cluster.on("w") == [task]
    assert cluster.runs("w") == cluster.runs("idle") == []
    cluster.finish("w", task)
    assert cluster.outcomes("client") == {task: (Outcome.SUCCESS, VALUE)}


@pytest.mark.parametrize("client_first", [True, False])
def test_retained_result_is_delivered_without_a_rerun(cluster: Restarted, client_first: bool) -> None:
    (task,) = cluster.ids(1)
    if client_first:
        cluster.again(task)
    cluster.returning("w", (task, 1))
    cluster.result("w", task)
    if not client_first:
        cluster.again(task)
    assert cluster.outcomes("client") == {task: (Outcome.SUCCESS, VALUE)}
    cluster.wait(AFTER, alive=["w", "client"])
    assert cluster.runs("w") == []


def test_tasks_on_no_worker_wait_for_reports_and_then_run(cluster: Restarted) -> None:
    first, second = cluster.ids(2)
    cluster.worker("w")
    cluster.again(first, second)
    assert cluster.runs("w") == []
    cluster.wait(AFTER, alive=["w", "client"])
    assert [task for task, _, _ in cluster.runs("w")] == [first, second]
    assert {attempt for _, attempt, _ in cluster.runs("w")} == {1025}


def test_restarted_program_finds_running_tasks_of_its_session(cluster: Restarted) -> None:
    cluster.client("s", session="nightly")
    running, other, new = (cluster.task_id("s") for _ in range(3))
    cluster.returning("w", (running, 1), (other, 1), slots=3)
    cluster.submit("s", ids=[running, new], retries=0)
    cluster.wait(AFTER, alive=["w", "s"])
    cluster.finish("w", running)
    assert cluster.outcomes("s") == {running: (Outcome.SUCCESS, VALUE)}
    assert [task for task, _, _ in cluster.runs("w")] == [new]


def test_worker_that_has_not_reported_gets_nothing(cluster: Restarted) -> None:
    cluster.client()
    cluster.silent("w")
    (task,) = cluster.submit("client")
    assert cluster.runs("w") == []
    cluster.report("w")
    assert cluster.on("w") == [task]


def test_late_report_dequeues_a_task_but_not_from_another_worker(cluster: Restarted) -> None:
    queued, running = cluster.ids(2)
    cluster.worker("other", slots=1, queue_size=0)
    cluster.again(running, queued)
    cluster.wait(AFTER, alive=["other", "client"])
    assert cluster.on("other") == [running]
    cluster.returning("late", (queued, 1), (running, 1))
    assert cluster.on("late") == [queued]
    assert cluster.sent("late", Recall) == [Recall([running], [1], True)]
    cluster.result("late", running)
    assert cluster.outcome("client", running) is None


@pytest.mark.parametrize("outcome", [Outcome.PROCESSOR_DIED, Outcome.NOT_STARTED])
def test_failed_attempt_is_followed_by_a_later_reported_one(cluster: Restarted, outcome: Outcome) -> None:
    (task,) = cluster.ids(1)
    cluster.returning("old", (task, 1))
    cluster.result("old", task, 1, b"killed by signal 11", outcome)
    cluster.again(task)
    cluster.wait(RECOVERY_SECONDS / 2, alive=["old", "client"])
    cluster.returning("new", (task, 2))
    assert cluster.on("new") == [task]
    cluster.wait(AFTER, alive=["old", "new", "client"])
    assert cluster.runs("old") == cluster.runs("new") == []


def test_run_once_tasks_continue_where_reported_and_are_lost_if_no_report_can_come(cluster: Restarted) -> None:
    here, later, gone = cluster.ids(3)
    cluster.worker("idle")
    cluster.again(here, later, gone, retries=0)
    cluster.returning("w1", (here, 1), once=True)
    (new,) = cluster.submit("client", retries=0)
    cluster.wait(55.0, alive=["w1", "idle", "client"])
    cluster.returning("w2", (later, 1), once=True)
    cluster.wait(6.0, alive=["w1", "w2", "idle", "client"])
    assert [cluster.on(worker) for worker in ("w1", "w2", "idle")] == [[here], [later], [new]]
    ((task, (outcome, text)),) = cluster.outcomes("client").items()
    assert (task, outcome) == (gone, Outcome.WORKER_LOST)
    assert b"may have run; set [scheduler] state_directory" in text


def test_tasks_that_no_client_wants_are_ended_on_their_worker(cluster: Restarted) -> None:
    unclaimed, kept = cluster.ids(2)
    cluster.leave("client")
    cluster.returning("w", (unclaimed, 1), (kept, 1), slots=2)
    cluster.result("w", kept)
    cluster.wait(61.0, alive=["w"])
    assert cluster.recalls("w", kill=True) == [unclaimed]
    assert ReleaseResults([1]) in cluster.sent("w", ReleaseResults)


def test_consumed_inner_value_is_not_recomputed(cluster: Restarted) -> None:
    inner, last = cluster.ids(2)
    cluster.returning("w", (last, 1))
    cluster.worker("idle")
    cluster.again(inner, deliver=False)
    cluster.again(last, references=((inner,),))
    cluster.wait(AFTER, alive=["w", "idle", "client"])
    assert cluster.runs("idle") == []
    cluster.finish("w", last)
    cluster.wait(1.0, alive=["w", "idle", "client"])
    assert cluster.outcome("client", last) is Outcome.SUCCESS
    assert cluster.runs("idle") == []
    assert not cluster.state.rooms.durability.held


def test_inner_value_is_recomputed_when_its_consumer_is_lost(cluster: Restarted) -> None:
    inner, last = cluster.ids(2)
    cluster.returning("w", (last, 1))
    cluster.worker("other")
    cluster.again(inner, deliver=False)
    cluster.again(last, references=((inner,),))
    cluster.wait(AFTER, alive=["w", "other", "client"])
    cluster.leave("w")
    cluster.wait(1.0, alive=["other", "client"])
    assert cluster.on("other") == [inner]
    cluster.finish("other", inner, payload=b"\x80 inner")
    cluster.wait(1.0, alive=["other", "client"])
    ((_, _, inputs),) = [run for run in cluster.runs("other") if run[0] == last]
    assert inputs == (b"\x80 inner",)


def test_results_are_released_once_neither_client_nor_task_needs_them(cluster: Restarted) -> None:
    cluster.client()
    cluster.worker("w", slots=3)
    first, second = cluster.submit("client", 2)
    cluster.finish("w", first)
    cluster.finish("w", second)
    cluster.wait(1.0, alive=["w", "client"])
    assert cluster.sent("w", ReleaseResults) == []
    (third,) = cluster.submit("client", seen=1)
    cluster.wait(1.0, alive=["w", "client"])
    assert cluster.sent("w", ReleaseResults) == [ReleaseResults([1])]
    cluster.finish("w", third)
    cluster.leave("client")
    cluster.wait(1.0, alive=["w"])
    assert cluster.sent("w", ReleaseResults)[1:] == [ReleaseResults([2, 3])]


def test_dropped_client_learns_which_tasks_ended_or_may_have_run(cluster: Restarted) -> None:
    cluster.client()
    cluster.worker("w", slots=2)
    ended, running, queued = cluster.submit("client", 3, retries=0)
    cluster.finish("w", ended)
    cluster.wait(1.0, alive=["w", "client"])
    assert set(cluster.on("w")) == {running, queued}
    (last,) = cluster.submit("client", retries=0)
    cluster.wait(61.0, alive=["w"])
    for task in (running, queued):
        assert task in cluster.recalls("w", kill=True)
    cluster.finish("w", running, queued, outcome=Outcome.CANCELLED)
    cluster.said.clear()
    cluster.client()
    cluster.again(ended, running, queued, last, retries=0)
    cluster.wait(AFTER, alive=["w", "client"])
    outcomes = cluster.outcomes("client")
    assert outcomes[ended] == (Outcome.SUCCESS, VALUE)
    assert outcomes[running][0] is outcomes[queued][0] is Outcome.WORKER_LOST
    assert [task for task, _, _ in cluster.runs("w")] == [last]


@pytest.mark.parametrize("is_given_up", [True, False])
def test_client_unknown_to_the_scheduler_runs_nothing_twice(cluster: Restarted, is_given_up: bool) -> None:
    once, ordinary = cluster.ids(2)
    cluster.leave("client")
    cluster.worker("w")
    cluster.comes_back("client")
    cluster.wait(61.0, alive=["w"] if is_given_up else ["w", "client"])
    if is_given_up:
        cluster.client()
    cluster.again(once, retries=0)
    cluster.again(ordinary)
    assert cluster.outcome("client", once) is Outcome.WORKER_LOST
    cluster.wait(AFTER, alive=["w", "client"])
    assert cluster.on("w") == [ordinary]


def test_resources_of_reported_tasks_are_counted_again() -> None:
    cluster = Restarted()
    (task,) = cluster.ids(1)
    cluster.silent("w", 4, {"gpu": 2.0, "memory": 16e9})
    cluster.say("w", WorkerReport([task], [5], [False], [False], [(1,)]))
    cluster.again(task, needs=(("gpu", 1.0), ("memory", 10e9)))
    assert cluster.on("w") == [task]
    cluster.submit("client", needs=(("gpu", 1.0),))
    (large,) = cluster.submit("client", needs=(("memory", 8e9),))
    (run,) = [group for message in cluster.sent("w", Run) if isinstance(message, Run) for group in message.groups]
    assert run.devices == [(0,)], "the other gpu is in use"
    assert large not in cluster.on("w")
    cluster.finish("w", task)
    assert large in cluster.on("w")
