"""Results that should outlive their hosts: when the object storage must fetch a first or further copy."""

from __future__ import annotations

import pytest

from scaler.ids import result_id
from scaler.object_storage.messages import CopyObjects, ObjectsHeld, ObjectsUnwanted
from scaler.protocol.messages import AcknowledgeResults, PersistResults, Release, stored_reference
from scaler.scheduler.core.commands import StorageConnected
from tests.extensions.durability.test_durability import JournaledCluster
from tests.unit.scheduler.driver import host_stores
from tests.unit.scheduler.test_stores import SIZE, Hosts


class Copied(Hosts):
    """A cluster of hosts that records copy requests to stores."""

    def asked(self) -> list[str]:
        """Return the stores with new copy requests since the last call."""
        found = [name for name, message in self.said if isinstance(message, CopyObjects)]
        self.said.clear()
        return found


def test_persisted_result_is_copied_to_the_object_storage() -> None:
    cluster = Copied(2)
    result = cluster.made("w1")
    cluster.say("client", PersistResults([result]))
    assert cluster.asked() == ["storage"]
    cluster.storage_says(ObjectsHeld([result], [SIZE]))
    cluster.leave("s1")
    assert cluster.asked() == []
    assert cluster.holders(result) == {0}


def test_restarted_object_storage_is_asked_again_for_persisted_results() -> None:
    cluster = Copied(2)
    result = cluster.made("w1")
    cluster.say("client", PersistResults([result]))
    cluster.storage_says(ObjectsHeld([result], [SIZE]))
    cluster.asked()
    cluster.step(StorageConnected())
    assert cluster.asked() == ["storage"]


def test_client_may_copy_only_its_own_results() -> None:
    cluster = Copied(2)
    result = cluster.made("w1")
    cluster.client("other")
    cluster.say("other", PersistResults([result]))
    assert cluster.asked() == []


def test_full_object_storage_is_retried_with_backoff() -> None:
    cluster = Copied(1)
    result = cluster.made("w1")
    cluster.say("client", PersistResults([result]))
    assert cluster.asked() == ["storage"]
    times = 0
    for _ in range(100):
        cluster.storage_says(ObjectsUnwanted([result]))
        cluster.wait(1.0, alive=["s1", "w1"])
        times += len(cluster.asked())
    assert 4 <= times <= 7


def test_released_result_is_no_longer_copied() -> None:
    cluster = Copied(1)
    result = cluster.made("w1")
    cluster.say("client", PersistResults([result]))
    cluster.say("client", AcknowledgeResults(1))
    cluster.say("client", Release([result]))
    cluster.asked()
    cluster.step(StorageConnected())
    assert cluster.asked() == []
    assert not host_stores(cluster.state).tracker.persisted


@pytest.mark.parametrize("stores_first", [True, False])
def test_restarted_scheduler_copies_named_results_once_a_store_has_them(stores_first: bool) -> None:
    cluster = Copied(0)
    result = result_id(cluster.task_id("client"), 1)
    wanted = "client", PersistResults([result])
    if not stores_first:
        cluster.say(*wanted)
    for name in ("s1", "s2"):
        cluster.store(name, is_back=True)
    cluster.say("s1", ObjectsHeld([result], [SIZE]))
    if stores_first:
        cluster.say(*wanted)
    assert cluster.asked() == ["storage"]
    cluster.say("client", Release([result]))
    assert not host_stores(cluster.state).tracker.persisted


# -- durable sessions, and a scheduler with a journal


def test_durable_session_results_are_copied_to_the_object_storage() -> None:
    cluster = Copied(1)
    cluster.client(session="nightly")
    result = cluster.made("w1")
    assert cluster.asked() == ["storage"]
    cluster.storage_says(ObjectsHeld([result], [SIZE]))
    cluster.leave("client")
    cluster.leave("s1")
    assert cluster.holders(result) == {0}


def test_restarted_scheduler_copies_results_of_an_absent_programs_session() -> None:
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


def test_scheduler_with_a_journal_copies_all_results_to_the_object_storage() -> None:
    cluster = Copied(1, state_directory="/state")
    cluster.made("w1")
    assert cluster.asked() == ["storage"]
