"""Stores of hosts: their registration, the scheduler's knowledge of their objects, and fetches between them."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from scaler.extensions.explain.core import explain
from scaler.ids import result_id
from scaler.object_storage.messages import (
    ChunksFetched,
    FetchChunks,
    FetchesFailed,
    ObjectsDropped,
    ObjectsHeld,
    ObjectsUnavailable,
    ObjectsWanted,
    PushObjects,
    SoleCopies,
    StoreReport,
    StoresChanged,
)
from scaler.protocol.chunks import chunk_count
from scaler.protocol.messages import (
    AcknowledgeResults,
    ForgetObjects,
    ForgetOwner,
    HeartbeatEcho,
    Message,
    ObjectsRestored,
    Outcome,
    Release,
    UseStore,
    stored_reference,
)
from scaler.scheduler.core.commands import StorageConnected, StorageSaid
from tests.unit.scheduler.driver import Cluster, host_stores

MB = 1_000_000
SIZE = 4 * MB
"""One run, if a single store fetches it."""

_Kind = TypeVar("_Kind", bound=Message)


class Hosts(Cluster):
    """A cluster of hosts, each with a worker w1, w2, ... and a store s1, s2, ..., and a client."""

    def __init__(self, count: int = 2, **settings: Any) -> None:
        super().__init__(**settings)
        self.client()
        for number in range(1, count + 1):
            self.store(f"s{number}")
            self.worker(f"w{number}")
            self.say(f"w{number}", UseStore(self.peer(f"s{number}")))
        self.said.clear()

    def told(self, name: str, kind: type[_Kind]) -> list[_Kind]:
        return [message for told, message in self.said if told == name and isinstance(message, kind)]

    def fetches(self, name: str) -> list[tuple[bytes, int]]:
        """Return the fetches assigned to a store with their sources, each once."""
        rows = [row for each in self.told(name, FetchChunks) for row in zip(each.ids, each.sources, strict=True)]
        return list(dict.fromkeys(rows))

    def holders(self, identifier: bytes) -> set[int]:
        copies = host_stores(self.state).directory.find(identifier)
        return set() if copies is None else set(copies.holders)

    def storage_says(self, message: Message) -> None:
        self.step(StorageSaid(message))

    def made(self, worker: str, size_bytes: int = SIZE) -> bytes:
        """A task stores its result on a worker's host. Returns the id of the result."""
        [task] = self.submit("client")
        result = result_id(task, 1)
        self.finish(worker, task, payload=stored_reference(result, size_bytes))
        return result

    def has_all(self, name: str, identifier: bytes, size_bytes: int = SIZE) -> None:
        """A store reports that it has fetched an object."""
        self.say(name, ChunksFetched([identifier], [0], [chunk_count(size_bytes)], [size_bytes]))


def hosts_with_result(count: int = 3, **settings: Any) -> tuple[Hosts, bytes]:
    """Return a cluster, and the id of a result of 4 MB that only the store s1 has."""
    cluster = Hosts(1, **settings)
    result = cluster.made("w1")
    for number in range(2, count + 1):
        cluster.store(f"s{number}")
    cluster.said.clear()
    return cluster, result


# -- stores come and go


def test_stores_and_the_object_storage_learn_of_each_other(cluster: Cluster) -> None:
    cluster.store("s1")
    cluster.store("s2")
    told = [(name, message) for name, message in cluster.said if isinstance(message, StoresChanged)]
    assert [(name, [each.number for each in message.stores]) for name, message in told] == [
        ("s1", []),
        ("storage", [1]),
        ("s2", [1]),
        ("storage", [2]),
        ("s1", [2]),
    ]
    [address] = told[2][1].stores
    assert (address.peer, address.address, address.public_key) == (cluster.peer("s1"), "tcp://s1:1", "key of s1")
    cluster.said.clear()
    cluster.leave("s2")
    told = [(name, message) for name, message in cluster.said if isinstance(message, StoresChanged)]
    assert [(name, message.gone) for name, message in told] == [("storage", [2]), ("s1", [2])]


def test_silent_store_is_dropped_after_its_lease() -> None:
    cluster, _ = hosts_with_result(2, worker_timeout_seconds=10)
    cluster.wait(9, alive=["w1", "s2"])
    assert len(cluster.state.rooms.stores.records) == 2
    cluster.wait(2, alive=["w1", "s2"])
    assert list(cluster.state.rooms.stores.records) == [cluster.peer("s2")]
    assert cluster.told("s2", StoresChanged)[0].gone == [1]


def test_store_report_is_answered_and_extends_its_lease() -> None:
    cluster = Hosts(1, worker_timeout_seconds=10)
    cluster.wait(8, alive=["w1"])
    cluster.say("s1", StoreReport(7.5, 1, 2, 3, 4, 5))
    assert [each.sent_at for each in cluster.told("s1", HeartbeatEcho)] == [7.5]
    cluster.wait(8, alive=["w1"])
    assert cluster.peer("s1") in cluster.state.rooms.stores.records


# -- locations


def test_last_holder_learns_that_it_has_the_only_copy() -> None:
    cluster, result = hosts_with_result(3)
    cluster.say("s2", ObjectsHeld([result], [SIZE]))
    cluster.say("s3", ObjectsHeld([result], [SIZE]))
    cluster.say("s1", ObjectsDropped([result]))
    assert not cluster.told("s2", SoleCopies)
    cluster.leave("s3")
    assert [each.ids for each in cluster.told("s2", SoleCopies)] == [[result]]


def test_released_object_is_dropped_by_all_holders_and_fetchers() -> None:
    cluster, result = hosts_with_result(4)
    cluster.say("s2", ObjectsHeld([result], [SIZE]))
    cluster.say("s3", ObjectsWanted([result]))
    cluster.say("client", AcknowledgeResults(1))
    cluster.say("client", Release([result]))
    named = {name: each.ids for name, each in cluster.said if isinstance(each, ForgetObjects)}
    assert named == {"storage": [result], "s1": [result], "s2": [result], "s3": [result]}
    assert not len(host_stores(cluster.state).directory)


def test_all_stores_drop_objects_of_a_departed_client() -> None:
    cluster, _ = hosts_with_result(2)
    cluster.leave("client")
    named = {name: each.owner for name, each in cluster.said if isinstance(each, ForgetOwner)}
    assert named == dict.fromkeys(("storage", "s1", "s2"), cluster.peer("client"))
    cluster.said.clear()
    cluster.store("s3", is_back=True)
    assert [each.owner for each in cluster.told("s3", ForgetOwner)] == [cluster.peer("client")]


# -- fetches


def test_store_fetches_a_whole_object_from_its_holder() -> None:
    cluster, result = hosts_with_result(2)
    cluster.say("s2", ObjectsWanted([result]))
    [message] = cluster.told("s2", FetchChunks)
    assert (message.ids, message.sizes, message.sources) == ([result], [SIZE], [1])
    cluster.has_all("s2", result)
    assert cluster.holders(result) == {1, 2}


def test_measures_the_rate_of_a_store() -> None:
    cluster, result = hosts_with_result(2)
    moved = host_stores(cluster.state).tracker.moved
    usual = moved.rate_into(2)
    cluster.say("s2", ObjectsWanted([result]))
    cluster.wait(0.5, alive=["s1", "s2"])
    cluster.has_all("s2", result)
    assert moved.rate_into(2) == moved.rate(2, 1) == pytest.approx(SIZE / 0.5)
    assert moved.rate_into(1) == usual
    assert moved.rate(1, 2) == usual


def test_object_storage_fetches_what_a_client_requests() -> None:
    cluster, result = hosts_with_result(1)
    cluster.storage_says(ObjectsWanted([result]))
    assert cluster.fetches("storage") == [(result, 1)]
    cluster.storage_says(ChunksFetched([result], [0], [chunk_count(SIZE)], [SIZE]))
    assert cluster.holders(result) == {0, 1}


def test_failed_run_is_fetched_from_another_holder_then_gives_up() -> None:
    cluster, result = hosts_with_result(3)
    cluster.say("s3", ObjectsHeld([result], [SIZE]))
    cluster.say("s2", ObjectsWanted([result]))
    [(_, first)] = cluster.fetches("s2")
    cluster.say("s2", FetchesFailed([result], [0], [first], [False]))
    other = 4 - first
    assert cluster.fetches("s2") == [(result, first), (result, other)]
    assert not cluster.told("s2", ObjectsUnavailable)
    cluster.say("s2", FetchesFailed([result], [0], [other], [False]))
    cluster.say("s2", FetchesFailed([result], [0], [0], [False]))
    assert [each.ids for each in cluster.told("s2", ObjectsUnavailable)] == [[result]]


def test_host_of_a_lost_object_is_named_until_it_is_back() -> None:
    cluster, result = hosts_with_result(2)
    cluster.leave("s1")
    cluster.say("s2", ObjectsWanted([result]))
    cluster.say("s2", FetchesFailed([result], [0], [0], [False]))
    assert [each.host for each in cluster.told("s2", ObjectsUnavailable)] == ["host-of-s1"]
    cluster.said.clear()
    cluster.say("s2", ObjectsHeld([result], [SIZE]))
    cluster.say("s2", ObjectsDropped([result]))
    cluster.say("s2", ObjectsWanted([result]))
    cluster.say("s2", FetchesFailed([result], [0], [0], [False]))
    assert [each.host for each in cluster.told("s2", ObjectsUnavailable)] == [""]


def test_task_whose_input_was_lost_names_the_lost_host() -> None:
    cluster, result = hosts_with_result(1)
    [task] = cluster.submit("client", references=[(result,)])
    cluster.leave("s1")
    cluster.finish("w1", task, outcome=Outcome.INPUT_MISSING, payload=result + b" is missing")
    cluster.say("client", ObjectsRestored([], [result], "it has retries=0"))
    text = f"object {result.hex()} is lost with host host-of-s1, which had the only copy: it has retries=0"
    assert cluster.outcomes("client")[task] == (Outcome.OBJECT_LOST, text.encode())


def test_store_without_a_route_fetches_through_the_object_storage() -> None:
    cluster, result = hosts_with_result(2)
    cluster.say("s2", ObjectsWanted([result]))
    cluster.say("s2", FetchesFailed([result], [0], [1], [True]))
    assert [each.ids for each in cluster.told("s1", PushObjects)] == [[result]]
    assert not cluster.told("s2", ObjectsUnavailable)
    cluster.storage_says(ObjectsHeld([result], [SIZE]))
    assert cluster.fetches("s2") == [(result, 1), (result, 0)]


def test_fetch_waits_for_a_store_named_by_a_worker() -> None:
    cluster = Hosts(1)
    cluster.break_connection("w1")
    cluster.worker("w2")
    cluster.say("w2", UseStore(cluster.peer("s2")))
    result = cluster.made("w2")
    cluster.say("s1", ObjectsWanted([result]))
    assert not cluster.fetches("s1")
    cluster.store("s2")
    assert cluster.fetches("s1") == [(result, 2)]


def test_after_a_scheduler_restart_stores_first_report_their_objects(cluster: Cluster) -> None:
    cluster.client()
    result = result_id(cluster.task_id("client"), 1)
    cluster.store("s1", is_back=True)
    cluster.say("s1", ObjectsWanted([result]))
    assert not [each for _, each in cluster.said if isinstance(each, FetchChunks)]
    cluster.store("s2", is_back=True)
    cluster.say("s2", ObjectsHeld([result], [SIZE]))
    [message] = [each for name, each in cluster.said if isinstance(each, FetchChunks)]
    assert message.sources == [2]


def test_restarted_object_storage_is_empty_and_learns_the_stores() -> None:
    cluster, result = hosts_with_result(2)
    cluster.storage_says(ObjectsHeld([result], [SIZE]))
    cluster.storage_says(ObjectsWanted([cluster.object_id("client")]))
    cluster.said.clear()
    cluster.step(StorageConnected())
    [message] = cluster.told("storage", StoresChanged)
    assert [each.number for each in message.stores] == [1, 2]
    assert cluster.holders(result) == {1}
    assert [each.ids for each in cluster.told("s1", SoleCopies)] == [[result]]


# -- reasons for waiting


def task_with_input(size_bytes: int) -> tuple[Hosts, bytes, bytes]:
    """Return a cluster whose worker w2 has a task, that task, and its input, which the store s1 has."""
    cluster = Hosts(1)
    result = cluster.made("w1", size_bytes)
    [made] = cluster.outcomes("client")
    cluster.leave("w1")
    cluster.store("s2")
    cluster.worker("w2")
    cluster.say("w2", UseStore(cluster.peer("s2")))
    [task] = cluster.submit("client", references=[(made,)])
    cluster.said.clear()
    return cluster, task, result


def test_task_fetching_an_input_shows_source_and_progress() -> None:
    cluster, task, result = task_with_input(80 * MB)
    cluster.say("s2", ObjectsWanted([result]))
    cluster.say("s2", ChunksFetched([result], [0], [3], [80 * MB]))
    text = explain(cluster.state, task, cluster.now)
    assert text.endswith("whose host waits for 80 MB of input from host host-of-s1, 2 % received")
    for first in range(3, chunk_count(80 * MB)):
        cluster.say("s2", ChunksFetched([result], [first], [1], [80 * MB]))
    assert explain(cluster.state, task, cluster.now) == "it runs on worker manager-2 (host, pid 1)"
