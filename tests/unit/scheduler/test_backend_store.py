"""A backend of the object storage: sources for hosts, and behaviour when it is unreachable."""

from __future__ import annotations

from scaler.extensions.explain.core import explain
from scaler.object_storage.messages import (
    CopyObjects,
    FetchChunks,
    FetchesFailed,
    ObjectsDropped,
    ObjectsHeld,
    ObjectsUnavailable,
    ObjectsUnwanted,
    ObjectsWanted,
    SoleCopies,
    StoresChanged,
    UseBackend,
)
from scaler.protocol.messages import AcknowledgeResults, ForgetObjects, Release
from scaler.scheduler.core.commands import StorageConnected
from tests.unit.scheduler.driver import host_stores
from tests.unit.scheduler.test_stores import SIZE, Hosts

URL, KEY = "s3://bucket/run-1", b"key"
BACKEND = 3
"""Its number: the next one."""


def cluster_with_backend(*, is_in_backend: bool = True) -> tuple[Hosts, bytes]:
    """Return a cluster of two hosts, and the id of an object in its object storage and the backend."""
    cluster = Hosts(2)
    cluster.storage_says(UseBackend(URL, KEY))
    uploaded = cluster.object_id("client")
    cluster.storage_says(ObjectsHeld([uploaded], [SIZE]))
    if is_in_backend:
        cluster.storage_says(ObjectsHeld([uploaded], [SIZE], in_backend=True))
    return cluster, uploaded


def out_of_memory(cluster: Hosts, identifier: bytes) -> None:
    cluster.storage_says(ObjectsDropped([identifier]))


def test_stores_learn_the_backend_and_its_key() -> None:
    cluster, _ = cluster_with_backend()
    cluster.store("s3")
    for name in ("s1", "s2", "s3", "storage"):
        [listed] = [each for told in cluster.told(name, StoresChanged) for each in told.stores if each.backend_key]
        assert (listed.number, listed.address, listed.public_key, listed.backend_key) == (BACKEND, URL, "", KEY)


def test_hosts_read_from_the_backend_rather_than_the_object_storage() -> None:
    cluster, uploaded = cluster_with_backend()
    cluster.say("s1", ObjectsWanted([uploaded]))
    assert cluster.fetches("s1") == [(uploaded, BACKEND)]


def test_object_storage_serves_objects_not_yet_in_the_backend() -> None:
    cluster, uploaded = cluster_with_backend(is_in_backend=False)
    cluster.say("s1", ObjectsWanted([uploaded]))
    assert cluster.fetches("s1") == [(uploaded, 0)]


def test_host_without_backend_access_reads_from_the_object_storage() -> None:
    cluster, uploaded = cluster_with_backend()
    cluster.say("s1", ObjectsWanted([uploaded]))
    cluster.say("s1", FetchesFailed([uploaded], [0], [BACKEND], [True]))
    assert cluster.fetches("s1") == [(uploaded, BACKEND), (uploaded, 0)]


def test_object_storage_relays_backend_objects_to_hosts_without_access() -> None:
    cluster, uploaded = cluster_with_backend()
    out_of_memory(cluster, uploaded)
    [task] = cluster.submit("client", references=[(uploaded,)])
    cluster.say("s1", ObjectsWanted([uploaded]))
    cluster.say("s1", FetchesFailed([uploaded], [0], [BACKEND], [True]))
    assert cluster.told("storage", CopyObjects) == [CopyObjects([uploaded], [SIZE])]
    assert "because it cannot reach the backend of the object storage" in explain(cluster.state, task, cluster.now)
    cluster.storage_says(ObjectsWanted([uploaded]))
    assert cluster.fetches("storage") == [(uploaded, BACKEND)]
    cluster.storage_says(ObjectsHeld([uploaded], [SIZE]))
    assert cluster.fetches("s1") == [(uploaded, BACKEND), (uploaded, 0)]


def test_unreachable_object_is_unavailable_and_the_task_does_not_wait() -> None:
    cluster, uploaded = cluster_with_backend()
    out_of_memory(cluster, uploaded)
    cluster.say("s1", ObjectsWanted([uploaded]))
    cluster.say("s1", FetchesFailed([uploaded], [0], [BACKEND], [True]))
    cluster.storage_says(ObjectsWanted([uploaded]))
    for run in cluster.told("storage", FetchChunks):
        cluster.storage_says(FetchesFailed(run.ids, run.firsts, run.sources, [True] * len(run.ids)))
    for name in ("storage", "s1"):
        assert [each.ids for each in cluster.told(name, ObjectsUnavailable)] == [[uploaded]]


def test_object_without_room_in_the_storage_is_unavailable_to_remote_hosts() -> None:
    cluster, uploaded = cluster_with_backend()
    out_of_memory(cluster, uploaded)
    cluster.say("s1", ObjectsWanted([uploaded]))
    cluster.say("s1", FetchesFailed([uploaded], [0], [BACKEND], [True]))
    cluster.storage_says(ObjectsWanted([uploaded]))
    cluster.storage_says(ObjectsUnwanted([uploaded]))
    assert [each.ids for each in cluster.told("s1", ObjectsUnavailable)] == [[uploaded]]


def test_object_lost_by_the_backend_stays_in_the_object_storage() -> None:
    cluster, uploaded = cluster_with_backend()
    cluster.say("s1", ObjectsWanted([uploaded]))
    cluster.say("s1", FetchesFailed([uploaded], [0], [BACKEND], [False]))
    assert [each.ids for each in cluster.told("storage", SoleCopies)] == [[uploaded]]
    assert cluster.fetches("s1")[-1] == (uploaded, 0)


def test_object_storage_learns_what_a_store_wrote_without_pins() -> None:
    cluster, _ = cluster_with_backend()
    result = cluster.made("w1")
    cluster.say("s1", ObjectsHeld([result], [SIZE], in_backend=True))
    cluster.leave("s1")
    assert cluster.told("storage", ObjectsHeld) == [ObjectsHeld([result], [SIZE], in_backend=True)]
    assert not cluster.told("storage", SoleCopies)
    cluster.say("s2", ObjectsWanted([result]))
    assert cluster.fetches("s2") == [(result, BACKEND)]


def test_object_storage_is_told_once_about_a_released_object() -> None:
    cluster, _ = cluster_with_backend()
    result = cluster.made("w1")
    cluster.say("s1", ObjectsHeld([result], [SIZE], in_backend=True))
    cluster.say("client", AcknowledgeResults(1))
    cluster.say("client", Release([result]))
    told = [each.ids for each in cluster.told("storage", ForgetObjects) if result in each.ids]
    assert told == [[result]]


def test_restarted_object_storage_has_a_new_empty_backend() -> None:
    cluster, uploaded = cluster_with_backend()
    cluster.said.clear()
    cluster.step(StorageConnected())
    assert [each.gone for each in cluster.told("s1", StoresChanged)] == [[BACKEND]]
    assert host_stores(cluster.state).directory.find(uploaded) is None
    cluster.storage_says(UseBackend("s3://bucket/run-2", KEY))
    [_, listed] = cluster.told("s1", StoresChanged)
    assert [(each.number, each.address) for each in listed.stores] == [(BACKEND + 1, "s3://bucket/run-2")]
