"""A scheduler that ends at any time, and a successor that continues from the journal."""

from __future__ import annotations

from typing import Any, TypeGuard

import pytest

from scaler.extensions.durability.ledger import JournalChanged, Ledger, from_bytes, to_bytes
from scaler.extensions.explain.core import explain
from scaler.monitor.messages import UNFINISHED, Explain, Explained, ListSessionTasks, SessionTasks
from scaler.net.connection import ANYONE, LOCAL, Identity, Received, TryAgain
from scaler.net.versions import own_hello
from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    AcknowledgeResults,
    Cancel,
    Drain,
    Finished,
    ForgetOwner,
    Notice,
    Outcome,
    Role,
    Spec,
    Submit,
    TaskGroup,
    WorkerReport,
)
from scaler.scheduler.core.commands import Command, DurabilitySaid, Input, Perform, SendAnswer, SendToStorage
from scaler.scheduler.core.durability import RECOVERY_SECONDS
from scaler.scheduler.core.state import Waiting
from scaler.scheduler.core.tasks import MAX_CANCELLED
from tests.extensions.durability.journaled import Journaled
from tests.unit.scheduler.driver import CODE, FUNCTION, VALUE, Cluster

ALICE = Identity("alice")
AFTER = RECOVERY_SECONDS + 0.25


def is_record(command: Command) -> TypeGuard[Perform]:
    return isinstance(command, Perform) and command.extension == "durability"


def journal_changed(*change: Any, **changes: Any) -> DurabilitySaid:
    return DurabilitySaid(JournalChanged(*change, **changes))


class JournaledCluster(Cluster):
    """Retains its journal records. Each record is the last command of its step, even after timer commands."""

    parts = (*Cluster.parts, Journaled)
    extensions = ("explain", "resources", "scaling", "data_plane")
    next_at = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.records: list[bytes] = []

    def step_once(self, *inputs: Input) -> list[Command]:
        commands = super().step_once(*inputs)
        assert not any(is_record(each) for each in commands[:-1])
        self.records += [to_bytes(each.work) for each in commands if is_record(each)]
        return commands

    def on_time(self, _now: object) -> list[Command]:
        return [Perform("rows", [])]

    def killed(self, *, compacted: bool = False) -> JournaledCluster:
        """Return the next scheduler, which has read this one's journal. compacted: before, into a snapshot."""
        if compacted:
            self.records = [to_bytes(changes) for changes in self.ledger().snapshot()]
        after = type(self)()
        after.records = list(self.records)
        after._factories = self._factories  # noqa: SLF001
        ledger = self.ledger()
        after.step(*map(DurabilitySaid, [ledger.gone(), *ledger.recovered()]))
        return after

    def ledger(self) -> Ledger:
        ledger = Ledger()
        for record in self.records:
            for change in from_bytes(record):
                ledger.apply(change)
        return ledger

    def state_of(self, task: bytes) -> object:
        found = self.state.living_task(task)
        return None if found is None else found.state


@pytest.fixture(params=[False, True], ids=["journal", "snapshot"])
def compacted(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def cluster() -> JournaledCluster:
    found = JournaledCluster()
    found.client()
    return found


def test_unfinished_tasks_run_while_their_client_is_disconnected(cluster: JournaledCluster, compacted: bool) -> None:
    waiting, running = cluster.submit("client", 2)
    cluster.worker("worker")
    (dependent,) = cluster.submit("client", references=[(waiting,)])
    after = cluster.killed(compacted=compacted)
    assert isinstance(after.state_of(dependent), Waiting)
    after.worker("new")
    after.wait(AFTER, alive=["new"])
    after.finish("new", waiting, running)
    after.finish("new", dependent)
    assert after.client() == "client"
    assert {task: outcome for task, (outcome, _) in after.outcomes("client").items()} == {
        waiting: Outcome.SUCCESS,
        running: Outcome.SUCCESS,
        dependent: Outcome.SUCCESS,
    }


def test_cancelled_task_does_not_run_again_when_scheduler_and_worker_are_lost(
    cluster: JournaledCluster, compacted: bool
) -> None:
    (running,) = cluster.submit("client", 1)
    cluster.worker("worker")
    cluster.cancel("client", running)
    assert cluster.recalls("worker", kill=True) == [running]
    after = cluster.killed(compacted=compacted)
    after.wait(AFTER)
    after.worker("new")
    assert not after.runs("new")
    assert after.client() == "client"
    assert after.outcomes("client")[running][0] is Outcome.CANCELLED


def test_cancelled_tasks_do_not_run_if_scheduler_is_lost_before_all_have_ended(cluster: JournaledCluster) -> None:
    tasks = cluster.submit("client", MAX_CANCELLED + 1)
    cluster.step_once(Received(cluster.peer("client"), Cancel(tasks)))
    assert cluster.state.clients[cluster.peer("client")].tasks, "one is still waiting"
    after = cluster.killed()
    after.wait(AFTER)
    after.worker("worker")
    assert not after.runs("worker")


def test_task_that_depends_on_one_of_a_later_group_is_kept(cluster: JournaledCluster, compacted: bool) -> None:
    first, last, middle = (cluster.task_id("client") for _ in range(3))
    ends = TaskGroup(Spec(FUNCTION, name="ends"), [first, last], [bytes(SPLIT_BATCH_BYTES)] * 2, [(), (middle,)])
    between = TaskGroup(Spec(FUNCTION, name="between"), [middle], [b"\x80 arguments"], [(first,)])
    cluster.say("client", Submit([(FUNCTION, CODE)], [ends, between]))
    after = cluster.killed(compacted=compacted)
    after.worker("w")
    for task in (first, middle, last):
        after.wait(AFTER, alive=["w", "client"])
        after.finish("w", task)
    assert after.client() == "client"
    assert {outcome for outcome, _ in after.outcomes("client").values()} == {Outcome.SUCCESS}


def test_reconnecting_client_gets_unacknowledged_results(cluster: JournaledCluster, compacted: bool) -> None:
    acknowledged, told, failed = cluster.submit("client", 3)
    cluster.worker("worker")
    cluster.finish("worker", acknowledged)
    cluster.say("client", AcknowledgeResults(1))
    cluster.finish("worker", told, payload=b"\x80 told")
    cluster.finish("worker", failed, outcome=Outcome.EXCEPTION, payload=b"\x04 raised")
    after = cluster.killed(compacted=compacted)
    after.client()
    after.submit("client", ids=[told, failed])
    assert after.outcomes("client") == {
        told: (Outcome.SUCCESS, b"\x80 told"),
        failed: (Outcome.EXCEPTION, b"\x04 raised"),
    }
    numbers = [message.number for _, message in after.said if isinstance(message, Finished)]
    after.say("client", AcknowledgeResults(max(numbers)))
    assert not after.state.clients[after.peer("client")].retained
    assert not after.killed(compacted=compacted).state.clients[after.peer("client")].retained


def test_start_once_task_runs_if_it_had_not_been_sent(cluster: JournaledCluster, compacted: bool) -> None:
    started, given_back, queued = cluster.submit("client", 3, retries=0)
    cluster.worker("worker", slots=2)
    cluster.say("worker", Drain("a spot notice"))
    cluster.give_back("worker", given_back)
    after = cluster.killed(compacted=compacted)
    after.client()
    after.worker("new", slots=2)
    after.wait(AFTER, alive=["new", "client"])
    assert [task for task, *_ in after.runs("new")] == [given_back, queued]
    after.wait(60.0, alive=["new", "client"])
    outcomes = after.outcomes("client")
    assert outcomes[started][0] is Outcome.WORKER_LOST
    assert b"may have run" in outcomes[started][1]


def test_start_once_task_continues_or_starts_if_it_had_not_arrived(cluster: JournaledCluster, compacted: bool) -> None:
    running, not_arrived = cluster.submit("client", 2, retries=0)
    cluster.worker("worker", slots=2)
    attempts = {task: attempt for task, attempt, _ in cluster.runs("worker")}
    after = cluster.killed(compacted=compacted)
    after.client()
    after.wait(AFTER, alive=["client"])
    assert after.state_of(not_arrived) is not None
    after.worker("worker", slots=2)
    after.say("worker", WorkerReport([running], [attempts[running]], [False], [True]))
    after.wait(AFTER, alive=["worker", "client"])
    assert sorted(after.on("worker")) == sorted([running, not_arrived])
    assert [task for task, *_ in after.runs("worker")] == [not_arrived]


def test_all_data_of_a_departed_client_is_removed(cluster: JournaledCluster, compacted: bool) -> None:
    cluster.submit("client", 2)
    cluster.leave("client")
    after = cluster.killed(compacted=compacted)
    assert not after.state.clients
    # The former scheduler may have ended before notifying the storage.
    assert SendToStorage(ForgetOwner(after.peer("client"))) in after.commands


def test_journaled_data_of_a_client_is_hidden_from_other_keys(cluster: JournaledCluster) -> None:
    cluster.client("alices", identity=ALICE)
    (task,) = cluster.submit("alices")
    cluster.worker("worker")
    cluster.finish("worker", task)
    after = cluster.killed()
    assert (
        after.refusal("alices", Identity("another"))
        == f"the peer id {after.peer('alices').hex()} belongs to another client"
    )
    assert after.refusal("alices", ALICE) == ""
    after.client("alices", identity=Identity("another"))
    assert not after.outcomes("alices")


@pytest.mark.parametrize(("first", "then"), [(LOCAL, ALICE), (ALICE, LOCAL), (LOCAL, ANYONE)])
def test_client_reconnecting_over_another_transport_may_retry(
    cluster: JournaledCluster, first: Identity, then: Identity
) -> None:
    cluster.client("again", identity=first)
    after = cluster.killed()
    answer = after.core.refusal(after.peer("again"), own_hello(Role.CLIENT), then, after.now)
    assert answer == TryAgain(f"{then.key} cannot continue a session of {first.key}")
    assert after.refusal("again", first) == ""


def test_new_tasks_are_refused_while_the_journal_fails_but_results_arrive(cluster: JournaledCluster) -> None:
    (before,) = cluster.submit("client")
    cluster.worker("worker")
    cluster.step(journal_changed("state_directory: cannot write to /x: No space left on device"))
    (refused,) = cluster.submit("client", name="another")
    assert cluster.outcomes("client")[refused] == (
        Outcome.REJECTED,
        b"state_directory: cannot write to /x: No space left on device",
    )
    cluster.finish("worker", before)
    assert cluster.outcomes("client")[before] == (Outcome.SUCCESS, VALUE)
    cluster.step(journal_changed(""))
    (later,) = cluster.submit("client")
    after = cluster.killed()
    assert after.state.living_task(later)
    assert not after.state.living_task(refused)


def test_dependent_of_a_refused_task_fails_even_after_room_returns(cluster: JournaledCluster) -> None:
    cluster.step(journal_changed("full"))
    (refused,) = cluster.submit("client", name="load")
    cluster.step(journal_changed(""))
    (needs,) = cluster.submit("client", references=[(refused,)])
    (needs_that,) = cluster.submit("client", references=[(needs,)])
    assert cluster.outcomes("client") == dict.fromkeys((refused, needs, needs_that), (Outcome.REJECTED, b"full"))
    assert explain(cluster.state, refused, cluster.now) == "it was refused: full"
    for task in (needs, needs_that):
        text = f"did not run because its input load ({refused.hex()}) failed: full"
        assert text in explain(cluster.state, task, cluster.now)


def test_clients_learn_once_that_all_work_waits_for_the_disk(cluster: JournaledCluster) -> None:
    (task,) = cluster.submit("client")

    def explanation() -> str:
        (answer,) = [each for each in cluster.say("client", Explain(task)) if isinstance(each, SendAnswer)]
        assert isinstance(answer.message, Explained)
        return answer.message.text

    cluster.step(journal_changed("full"))
    assert "full" not in explanation()
    for _ in range(2):
        cluster.step(journal_changed("full: all work waits", is_stuck=True))
    assert [each for each in cluster.said if isinstance(each[1], Notice)] == [
        ("client", Notice("full: all work waits"))
    ]
    assert explanation().endswith("; full: all work waits")
    cluster.step(journal_changed(""))
    assert "full" not in explanation()


def test_durable_session_restores_its_tasks_results_keys_and_names(cluster: JournaledCluster, compacted: bool) -> None:
    cluster.client("s", session="nightly")
    ended, queued = cluster.submit("s", 2, name="f", labels=[(), (b"key", b"tag")])
    cluster.worker("worker")
    cluster.finish("worker", ended)
    cluster.say("s", AcknowledgeResults(1))
    cluster.leave("s")
    after = cluster.killed(compacted=compacted)
    session = after.peer("s")
    assert after.state.clients[session].is_absent
    after.client("other")
    after.say("other", ListSessionTasks(session))
    (tasks,) = [message for name, message in after.said if name == "other" and isinstance(message, SessionTasks)]
    assert (tasks.ids, tasks.outcomes) == ([ended, queued], [Outcome.SUCCESS, UNFINISHED])
    assert (tasks.names, tasks.keys, tasks.tags) == ([b"f", b"f"], [b"", b"key"], [b"", b"tag"])
    after.worker("new")
    after.wait(AFTER, alive=["new"])
    after.finish("new", queued)
    after.client("s", session="nightly")
    after.submit("s", ids=[ended, queued], name="f")
    assert after.outcomes("s") == {ended: (Outcome.SUCCESS, VALUE), queued: (Outcome.SUCCESS, VALUE)}
    assert [task for task, _, _ in after.runs("new")] == [queued]


def test_failed_task_of_a_session_reruns_under_a_later_attempt(cluster: JournaledCluster, compacted: bool) -> None:
    cluster.client("s", session="nightly")
    (task,) = cluster.submit("s", labels=[(b"key", b"")])
    cluster.worker("worker")
    cluster.finish("worker", task, outcome=Outcome.EXCEPTION)
    after = cluster.killed(compacted=compacted)
    after.worker("new")
    after.client("s", session="nightly")
    after.submit("s", ids=[task], labels=[(b"key", b"")])
    ((_, attempt, _),) = after.runs("new")
    assert attempt > 1
