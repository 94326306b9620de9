"""Objects that clients and monitors find, with their origins and hosts."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from scaler.extensions.data_plane.directory import Directory
from scaler.ids import result_id, show
from scaler.monitor.messages import FindObjects, ObjectsFound
from scaler.net.connection import Identity
from scaler.object_storage.messages import ObjectsHeld
from scaler.protocol.messages import stored_reference
from scaler.scheduler.core.commands import StorageConnected, StorageSaid
from scaler.testing.store_invariants import check_directory
from tests.extensions.durability.test_recovery import Restarted
from tests.unit.scheduler.driver import Cluster
from tests.unit.scheduler.test_stores import MB, SIZE, Hosts, hosts_with_result


def asked(cluster: Cluster, client: str, *named: bytes, most: int = 10) -> list[list[Any]]:
    cluster.said.clear()
    cluster.say(client, FindObjects(list(named), most))
    [found] = [message for name, message in cluster.said if name == client and isinstance(message, ObjectsFound)]
    rows = json.loads(found.json)
    assert isinstance(rows, list)
    return rows


def test_finds_a_large_result_by_task_with_size_function_and_holders() -> None:
    cluster, result = hosts_with_result(2)
    [task] = [each for client in cluster.state.clients.values() for each in client.retained]
    cluster.has_all("s2", result)
    cluster.say("s2", ObjectsHeld([result], [SIZE]))
    [row] = asked(cluster, "client", task)
    assert row == [show(result), SIZE, "function", show(task), "client", ["host-of-s1", "host-of-s2"]]
    assert asked(cluster, "client", result) == [row]
    assert asked(cluster, "client") == [row]


def test_without_host_stores_large_results_and_uploads_use_the_object_storage(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w")
    first, second = cluster.submit(client, 2)
    cluster.finish(worker, first, payload=stored_reference(result_id(first, 1), 2 * MB))
    cluster.finish(worker, second, payload=stored_reference(result_id(second, 1), 40_000))
    upload = cluster.peer(client) + b"\xff\xff" + bytes(6)
    cluster.step(StorageSaid(ObjectsHeld([upload], [5 * MB])))
    rows = asked(cluster, client)
    assert [(row[1], row[2], row[5]) for row in rows] == [
        (5 * MB, "", ["object storage"]),
        (2 * MB, "function", ["object storage"]),
    ]
    [small] = asked(cluster, client, second)
    assert (small[1], small[5]) == (40_000, ["object storage"]), "a small one has no entry, and is found by its task"
    cluster.step(StorageConnected())
    assert asked(cluster, client) == [], "a reconnected storage reports its objects"


def test_released_or_never_stored_objects_are_not_found() -> None:
    cluster = Hosts(1)
    [task] = cluster.submit("client")
    assert asked(cluster, "client", task) == []
    cluster.finish("w1", task)
    assert asked(cluster, "client", task) == []
    assert asked(cluster, "client", b"?" * 16) == []
    made = cluster.made("w1")
    assert len(asked(cluster, "client")) == 1
    cluster.leave("s1")
    assert asked(cluster, "client") == []
    assert asked(cluster, "client", made) == []


def test_key_sees_only_its_own_objects_and_admins_see_all(cluster: Cluster) -> None:
    worker = cluster.worker("w")
    results = {}
    for key in ("alice", "bob"):
        cluster.client(key, identity=Identity(key))
        [task] = cluster.submit(key)
        results[key] = result_id(task, 1)
        cluster.finish(worker, task, payload=stored_reference(results[key], SIZE))
    assert [row[0] for row in asked(cluster, "alice")] == [show(results["alice"])]
    assert asked(cluster, "alice", results["bob"]) == []
    cluster.client("root", identity=Identity("root", is_admin=True))
    assert len(asked(cluster, "root")) == 2


def test_largest_of_many_are_found_immediately_in_order() -> None:
    directory, order = Directory(), random.Random(5)
    sizes = [order.randrange(MB, 2**36) for _ in range(2_000)]
    for number, size_bytes in enumerate(sizes):
        directory.add(number.to_bytes(16, "big"), size_bytes, number % 3)
    for number in range(0, len(sizes), 2):
        directory.forget(number.to_bytes(16, "big"))
    found = [copies.size_bytes for _, copies in directory.largest(100)]
    assert found == sorted(sizes[1::2], reverse=True)[:100]
    check_directory(directory, {0, 1, 2})


def test_many_objects_of_one_size_block_the_scheduler_under_ten_ms() -> None:
    directory = Directory()
    for number in range(20_000):
        directory.add(number.to_bytes(16, "big"), SIZE, 0)
    times = []
    for _ in range(3):
        began_at = time.thread_time()
        found = directory.largest(1_000)
        times.append(time.thread_time() - began_at)
        assert len(found) == 1_000
    assert min(times) < 0.010


def test_restarted_scheduler_assumes_no_result_in_the_object_storage() -> None:
    cluster = Restarted()
    client, worker = cluster.client(), cluster.worker("w")
    (task,) = cluster.submit(client)
    result = result_id(task, 1)
    cluster.finish(worker, task, payload=stored_reference(result, 40_000))
    assert [row[5] for row in asked(cluster, client, result)] == [["object storage"]]
    cluster.silent("returns")
    assert asked(cluster, client, result) == [], "stores on hosts may not have reconnected yet"
