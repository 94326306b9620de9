"""Reports to monitors about stores and the transfers between them."""

from __future__ import annotations

from typing import Any

from scaler.object_storage.messages import FetchesFailed, ObjectsWanted, StoreReport
from tests.unit.scheduler.test_status import document
from tests.unit.scheduler.test_stores import SIZE, Hosts, hosts_with_result


def row(rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
    [found] = [each for each in rows if each["id"] == key]
    return found


def test_every_store_including_the_object_storage_has_a_row() -> None:
    cluster = Hosts(2)
    cluster.say("s2", StoreReport(1.0, 3, 4096, 512, 7, 2))
    told = document(cluster)
    assert told["totals"]["stores"] == 3
    assert [each["host"] for each in told["stores"]] == ["object storage", "host-of-s2", "host-of-s1"]
    second = row(told["stores"], "2")
    assert [second[name] for name in ("objects", "bytes", "spilled_bytes", "hits", "misses")] == [3, 4096, 512, 7, 2]
    assert second["limit_bytes"] == 0, "the second store has no limit"


def test_bytes_are_counted_per_store_source_and_pair() -> None:
    cluster, result = hosts_with_result(3)
    cluster.say("s2", ObjectsWanted([result]))
    cluster.has_all("s2", result)
    told = document(cluster)
    assert (row(told["stores"], "2")["received_bytes"], row(told["stores"], "1")["sent_bytes"]) == (SIZE, SIZE)
    assert told["totals"]["moved_bytes"] == SIZE
    [pair] = told["pairs"]
    assert (pair["source"], pair["target"], pair["bytes"], pair["unreachable"]) == (
        "host-of-s1",
        "host-of-s2",
        SIZE,
        False,
    )
    cluster.leave("s1")
    assert document(cluster)["pairs"] == []
    assert document(cluster)["totals"]["moved_bytes"] == SIZE


def test_stores_without_a_route_are_reported_until_they_may_retry() -> None:
    cluster, result = hosts_with_result(2)
    cluster.say("s2", ObjectsWanted([result]))
    cluster.say("s2", FetchesFailed([result], [0], [1], [True]))
    told = document(cluster)
    assert told["totals"]["unreachable"] == 1
    assert [(each["source"], each["target"], each["unreachable"]) for each in told["pairs"]] == [
        ("host-of-s1", "host-of-s2", True)
    ]
    cluster.wait(61, alive=["w1", "s1", "s2"])
    assert document(cluster)["totals"]["unreachable"] == 0
