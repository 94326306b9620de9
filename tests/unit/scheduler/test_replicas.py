"""Results that are to have several copies: which stores are told to get one, and when another one is."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.ids import result_id
from scaler.protocol.messages import (
    AcknowledgeResults,
    CopyObjects,
    ForgetObjects,
    ObjectsHeld,
    ObjectsUnwanted,
    ObjectsWanted,
    Release,
    ReplicateResults,
    UseStore,
    stored_reference,
)
from scaler.scheduler.core.commands import StorageConnected
from tests.unit.scheduler.test_durability import JournaledCluster
from tests.unit.scheduler.test_stores import SIZE, Hosts

STORED = 0
"""In ReplicateResults: a copy in the object storage."""


class Copied(Hosts):
    """A cluster of hosts that says which stores were told to copy what."""

    def made_with(self, worker: str = "w1", size_bytes: int = SIZE, **options: Any) -> bytes:
        """A task stores its result on a worker's host. options: fields of its Spec. Returns the id of the result."""
        [task] = self.submit("client", needs=((worker, 0.0),), **options)
        result = result_id(task, 1)
        self.finish(worker, task, payload=stored_reference(result, size_bytes))
        return result

    def asked(self, *names: str) -> list[str]:
        """Return the stores that were told to copy anything since the last call."""
        found = [name for name, message in self.said if isinstance(message, CopyObjects)]
        self.said.clear()
        return found


def hosts(count: int, **settings: Any) -> Copied:
    cluster = Copied(0, **settings)
    for number in range(1, count + 1):
        cluster.store(f"s{number}")
        cluster.worker(f"w{number}", {f"w{number}": None})
        cluster.say(f"w{number}", UseStore(cluster.peer(f"s{number}")))
    cluster.said.clear()
    return cluster


# -- replicas of a task


def test_a_result_with_replicas_is_copied_to_the_store_of_another_host() -> None:
    cluster = hosts(2)
    result = cluster.made_with(replicas=2)
    [message] = cluster.told("s2", CopyObjects)
    assert (message.ids, message.sizes) == ([result], [SIZE])
    assert cluster.asked() == ["s2"]
    cluster.say("s2", ObjectsWanted([result]))
    assert cluster.fetches("s2") == [(result, 1)]
    cluster.has_all("s2", result)
    assert cluster.holders(result) == {1, 2}
    assert cluster.asked() == []


def test_where_there_is_no_other_host_the_object_storage_gets_the_second_copy() -> None:
    cluster = hosts(1)
    cluster.made_with(replicas=2)
    assert cluster.asked() == ["storage"]


def test_copies_go_to_different_stores_and_the_last_one_waits_for_a_store_to_come() -> None:
    cluster = hosts(2)
    result = cluster.made_with(replicas=4)
    assert sorted(cluster.asked()) == ["s2", "storage"]
    cluster.store("s3")
    assert cluster.asked() == ["s3"]
    for name in ("s2", "s3"):
        cluster.has_all(name, result)
    cluster.store("s4")
    assert cluster.asked() == []


def test_another_copy_is_made_when_a_holder_is_lost() -> None:
    cluster = hosts(3)
    result = cluster.made_with(replicas=2)
    [second] = cluster.asked()
    cluster.say(second, ObjectsHeld([result], [SIZE]))
    assert cluster.asked() == []
    cluster.leave("s1")
    [third] = cluster.asked()
    assert {second, third} == {"s2", "s3"}
    cluster.say(third, ObjectsHeld([result], [SIZE]))
    cluster.leave(second)
    assert cluster.asked() == ["storage"]


def test_a_store_without_room_is_asked_again_later_and_less_and_less_often() -> None:
    cluster = hosts(2)
    result = cluster.made_with(replicas=2)
    assert cluster.asked() == ["s2"]
    times = 0
    for _ in range(100):
        cluster.say("s2", ObjectsUnwanted([result]))
        cluster.wait(1.0, alive=["s1", "s2", "w1", "w2"])
        times += len(cluster.asked())
    assert 4 <= times <= 7


def test_a_forgotten_result_is_copied_no_more() -> None:
    cluster = hosts(2)
    result = cluster.made_with(replicas=2)
    assert cluster.asked() == ["s2"]
    cluster.say("client", AcknowledgeResults(1))
    cluster.say("client", Release([result]))
    assert [each.ids for each in cluster.told("s2", ForgetObjects)] == [[result]]
    cluster.leave("s1")
    assert cluster.asked() == []
    assert not cluster.state.data.tracker.replicas


# -- persisted results


def test_a_persisted_result_is_copied_to_the_object_storage() -> None:
    cluster = hosts(2)
    result = cluster.made_with()
    cluster.say("client", ReplicateResults([result], [STORED]))
    assert cluster.asked() == ["storage"]
    cluster.storage_says(ObjectsHeld([result], [SIZE]))
    cluster.leave("s1")
    assert cluster.asked() == []
    assert cluster.holders(result) == {0}


def test_a_restarted_object_storage_is_asked_for_persisted_results_again() -> None:
    cluster = hosts(2)
    result = cluster.made_with()
    cluster.say("client", ReplicateResults([result], [STORED]))
    cluster.storage_says(ObjectsHeld([result], [SIZE]))
    cluster.asked()
    cluster.step(StorageConnected())
    assert cluster.asked() == ["storage"]


def test_a_client_has_only_results_of_its_own_copied() -> None:
    cluster = hosts(2)
    result = cluster.made_with()
    cluster.client("other")
    cluster.say("other", ReplicateResults([result], [STORED]))
    assert cluster.asked() == []


@pytest.mark.parametrize("stores_first", [True, False])
def test_a_restarted_scheduler_has_what_clients_name_copied_when_a_store_names_it(stores_first: bool) -> None:
    cluster = Copied(0)
    result = result_id(cluster.task_id("client"), 1)
    wanted = "client", ReplicateResults([result], [2])
    if not stores_first:
        cluster.say(*wanted)
    for name in ("s1", "s2"):
        cluster.store(name, is_back=True)
    cluster.say("s1", ObjectsHeld([result], [SIZE]))
    if stores_first:
        cluster.say(*wanted)
    assert cluster.asked() == ["s2"]
    cluster.say("client", Release([result]))
    assert not cluster.state.data.tracker.replicas


# -- durable sessions, and a scheduler with a journal


def test_results_of_a_durable_session_are_copied_to_the_object_storage() -> None:
    cluster = hosts(1)
    cluster.client(session="nightly")
    result = cluster.made_with()
    assert cluster.asked() == ["storage"]
    cluster.storage_says(ObjectsHeld([result], [SIZE]))
    cluster.leave("client")
    cluster.leave("s1")
    assert cluster.holders(result) == {0}


def test_a_restarted_scheduler_has_results_of_a_durable_session_copied_whose_program_is_gone() -> None:
    before = JournaledCluster()
    before.client(session="nightly")
    before.worker("w1")
    [task] = before.submit("client")
    result = result_id(task, 1)
    before.finish("w1", task, payload=stored_reference(result, SIZE))
    before.leave("client")
    after = before.killed()
    after.store("s1", is_back=True)
    after.say("s1", ObjectsHeld([result], [SIZE]))
    assert [message.ids for name, message in after.said if isinstance(message, CopyObjects)] == [[result]]


def test_a_scheduler_with_a_journal_has_all_results_copied_to_the_object_storage() -> None:
    cluster = hosts(1, state_directory="/state")
    cluster.made_with()
    assert cluster.asked() == ["storage"]
