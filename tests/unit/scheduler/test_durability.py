"""A scheduler that ends at any time, and one that continues with what the journal has."""

from __future__ import annotations

import pytest

from scaler.ids import content_id, result_id
from scaler.net.connection import Received, TryAgain
from scaler.net.identity import ANYONE, LOCAL, Identity
from scaler.net.versions import own_hello
from scaler.protocol.messages import (
    UNFINISHED,
    AcknowledgeResults,
    Drain,
    EndSession,
    Explain,
    Explained,
    Finished,
    ForgetObjects,
    ForgetOwner,
    ListSessionTasks,
    Notice,
    Outcome,
    Release,
    Role,
    SessionTasks,
    Spec,
    Submit,
    TaskGroup,
    WorkerReport,
    is_stored,
    stored_reference,
)
from scaler.scheduler.core import submission
from scaler.scheduler.core.changes import Submitted
from scaler.scheduler.core.commands import (
    Command,
    Input,
    JournalChanged,
    SendAnswer,
    SendToStorage,
    StorageConnected,
    WriteJournal,
)
from scaler.scheduler.core.explain import explain
from scaler.scheduler.core.recovery import RECOVERY_SECONDS
from scaler.scheduler.core.state import Ready, Waiting
from scaler.scheduler.journal import Ledger, from_bytes, to_bytes
from tests.unit.scheduler.driver import CODE, FUNCTION, VALUE, Cluster

ALICE = Identity("alice")
AFTER = RECOVERY_SECONDS + 0.25


class JournaledCluster(Cluster):
    """Keeps the records of its journal."""

    is_journaled = True

    def __init__(self) -> None:
        super().__init__()
        self.records: list[bytes] = []

    def step_once(self, *inputs: Input) -> list[Command]:
        commands = super().step_once(*inputs)
        self.records += [to_bytes(each.changes) for each in commands if isinstance(each, WriteJournal)]
        return commands

    def killed(self, *, compacted: bool = False) -> JournaledCluster:
        """Return the next scheduler, which has read this one's journal. compacted: before, into a snapshot."""
        if compacted:
            self.records = [to_bytes(changes) for changes in self.ledger().snapshot()]
        after = JournaledCluster()
        after.records = list(self.records)
        after._factories = self._factories
        ledger = self.ledger()
        after.step(ledger.gone(), *ledger.recovered())
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


def test_tasks_that_had_not_ended_run_although_their_client_is_away(cluster: JournaledCluster, compacted: bool) -> None:
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


def test_tasks_of_many_functions_come_back(cluster: JournaledCluster, compacted: bool) -> None:
    tasks, said = [], []
    for number in range(1_200):
        code = b"\x80 function %d" % number
        tasks.append(cluster.task_id("client"))
        group = TaskGroup(Spec(content_id(code)), tasks[-1:], [b"\x80"])
        said.append(Received(cluster.peer("client"), Submit([(content_id(code), code)], [group])))
    cluster.step(*said)
    after = cluster.killed(compacted=compacted)
    assert all(after.state_of(task) is not None for task in tasks)


def test_a_client_that_comes_back_gets_the_results_that_it_had_not_acknowledged(
    cluster: JournaledCluster, compacted: bool
) -> None:
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


def test_a_value_that_the_client_did_not_want_is_there_for_the_tasks_that_need_it(
    cluster: JournaledCluster, compacted: bool
) -> None:
    (inner,) = cluster.submit("client", deliver=False)
    (outer,) = cluster.submit("client", references=[(inner,)])
    cluster.worker("worker")
    cluster.finish("worker", inner, payload=b"\x80 inner")
    after = cluster.killed(compacted=compacted)
    after.worker("new")
    after.wait(AFTER, alive=["new"])
    assert [(task, inputs) for task, _, inputs in after.runs("new")] == [(outer, (b"\x80 inner",))]
    after.client()
    assert after.outcomes("client") == {inner: (Outcome.SUCCESS, b"")}


def test_a_task_that_comes_later_fails_by_the_input_that_failed_before(
    cluster: JournaledCluster, compacted: bool
) -> None:
    (failed,) = cluster.submit("client", name="first")
    cluster.worker("worker")
    cluster.finish("worker", failed, outcome=Outcome.EXCEPTION, payload=b"\x04 raised")
    after = cluster.killed(compacted=compacted)
    after.client()
    (dependent,) = after.submit("client", references=[(failed,)])
    assert after.outcomes("client")[dependent] == (Outcome.EXCEPTION, b"\x04 raised")
    client = after.state.clients[after.peer("client")]
    assert client.retained[dependent].failed_input == ("first", failed)


def test_a_task_that_may_start_once_runs_when_it_had_not_been_sent_to_a_worker(
    cluster: JournaledCluster, compacted: bool
) -> None:
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


def test_a_task_that_may_start_once_runs_although_its_client_came_after_the_workers(cluster: JournaledCluster) -> None:
    (task,) = cluster.submit("client", retries=0)
    after = cluster.killed()
    after.worker("early")
    after.client()
    after.wait(AFTER, alive=["early", "client"])
    assert after.on("early") == [task]


def test_a_task_that_may_start_once_goes_on_where_it_runs_and_starts_when_it_had_not_arrived_there(
    cluster: JournaledCluster, compacted: bool
) -> None:
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


def test_everything_of_a_client_that_has_left_is_gone(cluster: JournaledCluster, compacted: bool) -> None:
    cluster.submit("client", 2)
    cluster.leave("client")
    after = cluster.killed(compacted=compacted)
    assert not after.state.clients
    # The former scheduler may have ended before the storage heard of it.
    assert SendToStorage(ForgetOwner(after.peer("client"))) in after.commands


def test_a_storage_that_was_restarted_is_told_again_which_clients_have_left(cluster: JournaledCluster) -> None:
    cluster.leave("client")
    cluster.client("other")
    cluster.leave("other")
    cluster.client("other")
    cluster.commands.clear()
    cluster.step(StorageConnected())
    assert [each for each in cluster.commands if isinstance(each, SendToStorage)] == [
        SendToStorage(ForgetOwner(cluster.peer("client")))
    ]


def test_the_objects_of_a_client_that_left_and_came_back_are_kept(cluster: JournaledCluster, compacted: bool) -> None:
    cluster.leave("client")
    cluster.client()
    after = cluster.killed(compacted=compacted)
    assert not [each for each in after.commands if isinstance(each, SendToStorage)]


def test_a_client_that_does_not_come_back_within_its_lease_is_given_up(cluster: JournaledCluster) -> None:
    (task,) = cluster.submit("client")
    after = cluster.killed()
    after.wait(59.0)
    assert isinstance(after.state_of(task), Ready)
    after.wait(3.0)
    assert not after.state.clients
    assert not after.killed().state.clients


def test_another_key_does_not_get_what_the_journal_has_of_a_client(cluster: JournaledCluster) -> None:
    cluster.client("alices", identity=ALICE)
    (task,) = cluster.submit("alices")
    cluster.worker("worker")
    cluster.finish("worker", task)
    after = cluster.killed()
    assert (
        after.refusal("alices", Identity("another"))
        == f"the peer id {after.peer('alices').hex()} is that of another client"
    )
    assert after.refusal("alices", ALICE) == ""
    after.client("alices", identity=Identity("another"))
    assert not after.outcomes("alices")


@pytest.mark.parametrize(("first", "then"), [(LOCAL, ALICE), (ALICE, LOCAL), (LOCAL, ANYONE)])
def test_a_client_that_comes_back_over_its_other_transport_is_not_let_in_and_may_try_again(
    cluster: JournaledCluster, first: Identity, then: Identity
) -> None:
    cluster.client("again", identity=first)
    after = cluster.killed()
    answer = after.core.refusal(after.peer("again"), own_hello(Role.CLIENT), then, after.now)
    assert answer == TryAgain(f"{then.key} does not continue a session of {first.key}")
    assert after.refusal("again", first) == ""


def test_the_object_of_a_stored_result_is_forgotten_when_its_client_releases_it(cluster: JournaledCluster) -> None:
    (task,) = cluster.submit("client")
    cluster.worker("worker")
    stored = stored_reference(result_id(task, 1), 100_000)
    cluster.finish("worker", task, payload=stored)
    after = cluster.killed()
    after.client()
    assert is_stored(after.outcomes("client")[task][1])
    after.say("client", AcknowledgeResults(1))
    commands = after.say("client", Release([result_id(task, 1)]))
    told = [each.message for each in commands if isinstance(each, SendToStorage)]
    assert told == [ForgetObjects([result_id(task, 1)])]


def test_new_tasks_are_refused_while_the_journal_cannot_take_them_and_results_still_come(
    cluster: JournaledCluster,
) -> None:
    (before,) = cluster.submit("client")
    cluster.worker("worker")
    cluster.step(JournalChanged("state_directory: cannot write to /x: No space left on device"))
    (refused,) = cluster.submit("client", name="another")
    assert cluster.outcomes("client")[refused] == (
        Outcome.REJECTED,
        b"state_directory: cannot write to /x: No space left on device",
    )
    cluster.finish("worker", before)
    assert cluster.outcomes("client")[before] == (Outcome.SUCCESS, VALUE)
    cluster.step(JournalChanged(""))
    (later,) = cluster.submit("client")
    after = cluster.killed()
    assert after.state.living_task(later)
    assert not after.state.living_task(refused)


def test_a_refusal_needs_no_record_and_no_acknowledgement(cluster: JournaledCluster) -> None:
    cluster.submit("client")  # its function is announced
    cluster.step(JournalChanged("full"))
    records, client = len(cluster.records), cluster.state.clients[cluster.peer("client")]
    cluster.submit("client", 2)
    (refusal,) = [each for each in cluster.commands if isinstance(each, SendAnswer)]
    assert isinstance(refusal.message, Finished)
    assert (refusal.message.number, refusal.message.payloads) == (0, [b"full", b"full"])
    assert not client.unacknowledged
    assert not client.retained
    assert cluster.records[records:] == [to_bytes([Submitted(client.id, Submit([(FUNCTION, CODE)], []))])]


def test_a_task_that_needs_a_refused_one_ends_for_its_reason_also_when_the_disk_has_room_again(
    cluster: JournaledCluster,
) -> None:
    cluster.step(JournalChanged("full"))
    (refused,) = cluster.submit("client", name="load")
    cluster.step(JournalChanged(""))
    (needs,) = cluster.submit("client", references=[(refused,)])
    (needs_that,) = cluster.submit("client", references=[(needs,)])
    assert cluster.outcomes("client") == dict.fromkeys((refused, needs, needs_that), (Outcome.REJECTED, b"full"))
    assert explain(cluster.state, refused, cluster.now) == "it was refused: full"
    for task in (needs, needs_that):
        text = f"did not run because its input load ({refused.hex()}) failed: full"
        assert text in explain(cluster.state, task, cluster.now)


def test_the_scheduler_remembers_a_limited_number_of_refusals(
    cluster: JournaledCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MAX_REFUSED_KEPT", 10)
    cluster.step(JournalChanged("full"))
    *_, last = cluster.submit("client", 100)
    assert len(cluster.state.refused) == 10
    assert last in cluster.state.refused


def test_tasks_of_tasks_are_not_refused_because_nothing_of_them_is_journaled(cluster: JournaledCluster) -> None:
    (outer,) = cluster.submit("client")
    cluster.nested("inner", cluster.worker("worker", slots=2), outer)
    cluster.step(JournalChanged("full"))
    (task,) = cluster.submit("inner", parent=outer)
    assert task in cluster.on("worker")


def test_clients_are_told_once_when_all_work_waits_for_the_disk_and_explanations_say_it(
    cluster: JournaledCluster,
) -> None:
    (task,) = cluster.submit("client")

    def explanation() -> str:
        (answer,) = [each for each in cluster.say("client", Explain(task)) if isinstance(each, SendAnswer)]
        assert isinstance(answer.message, Explained)
        return answer.message.text

    cluster.step(JournalChanged("full"))
    assert "full" not in explanation()
    for _ in range(2):
        cluster.step(JournalChanged("full: all work waits", is_stuck=True))
    assert [each for each in cluster.said if isinstance(each[1], Notice)] == [
        ("client", Notice("full: all work waits"))
    ]
    assert explanation().endswith("; full: all work waits")
    cluster.step(JournalChanged(""))
    assert "full" not in explanation()


def test_a_failed_task_of_a_session_stays_while_the_disk_takes_no_new_ones(cluster: JournaledCluster) -> None:
    cluster.client("s", session="nightly")
    (task,) = cluster.submit("s", labels=[(b"key", b"")])
    cluster.worker("worker")
    cluster.finish("worker", task, outcome=Outcome.EXCEPTION)
    cluster.step(JournalChanged("full"))
    cluster.submit("s", ids=[task], labels=[(b"key", b"")])
    assert task in cluster.state.clients[cluster.peer("s")].retained
    cluster.step(JournalChanged(""))
    cluster.submit("s", ids=[task], labels=[(b"key", b"")])
    assert task in cluster.on("worker")


def test_a_function_that_came_while_tasks_were_refused_is_there_for_later_ones(cluster: JournaledCluster) -> None:
    cluster.step(JournalChanged("full"))
    cluster.say("client", Submit([(FUNCTION, CODE)], []))
    cluster.step(JournalChanged(""))
    (task,) = cluster.submit("client")
    after = cluster.killed()
    after.worker("new")
    after.wait(AFTER, alive=["new"])
    assert [found for found, *_ in after.runs("new")] == [task]


def test_a_durable_session_comes_back_with_its_tasks_results_keys_and_names(
    cluster: JournaledCluster, compacted: bool
) -> None:
    cluster.client("s", session="nightly")
    ended, queued = cluster.submit("s", 2, name="f", labels=[(), (b"key", b"tag")])
    cluster.worker("worker")
    cluster.finish("worker", ended)
    cluster.say("s", AcknowledgeResults(1))
    cluster.leave("s")
    after = cluster.killed(compacted=compacted)
    session = after.peer("s")
    assert after.state.clients[session].is_detached
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


def test_a_removed_session_does_not_come_back(cluster: JournaledCluster, compacted: bool) -> None:
    cluster.client("s", session="nightly")
    (task,) = cluster.submit("s")
    cluster.leave("s")
    cluster.client("s", session="nightly")
    cluster.say("s", EndSession(cluster.peer("s"), remove=True))
    after = cluster.killed(compacted=compacted)
    assert after.peer("s") not in after.state.clients
    assert after.state_of(task) is None


def test_a_failed_task_of_a_session_that_runs_again_has_no_result_until_it_ends(
    cluster: JournaledCluster, compacted: bool
) -> None:
    cluster.client("s", session="nightly")
    (task,) = cluster.submit("s")
    cluster.worker("worker")
    cluster.finish("worker", task, outcome=Outcome.EXCEPTION)
    cluster.submit("s", ids=[task], labels=[(b"key", b"")])
    after = cluster.killed(compacted=compacted)
    assert isinstance(after.state_of(task), Waiting)
