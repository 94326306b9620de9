"""Counts of clients' calls, as reported to monitors."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.extensions.calls.core import Calls
from scaler.protocol.messages import CallReport, CallsReported, Outcome
from tests.unit.scheduler.driver import Cluster, Remembering
from tests.unit.scheduler.test_status import document


class ClusterWithCalls(Cluster):
    parts = (Remembering, Calls)


@pytest.fixture
def cluster() -> Cluster:
    return ClusterWithCalls()


def rows(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(cluster)["calls"]
    return found


def counts(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in ("queued", "running", "ended", "failed", "cancelled"))


def test_each_call_has_a_row_and_single_submits_of_one_function_share_one(cluster: Cluster) -> None:
    client, worker = cluster.client("alice"), cluster.worker("w", slots=1, queue_size=0)
    cluster.submit(client, 1, name="work")
    (first, *_) = cluster.submit(client, 3, name="work", call=7)
    cluster.submit(client, 2, name="work")
    cluster.submit(client, 4, name="work", call=8)
    assert sorted(counts(row)[:2] for row in rows(cluster)) == [(2, 1), (3, 0), (4, 0)]
    assert {row["client"] for row in rows(cluster)} == {"alice"}
    assert sorted(row["call"] for row in rows(cluster)) == ["call", "call", "submit"]
    cluster.say(client, CallsReported([CallReport(7, "get", "3 keys", is_over=True)]))
    (told,) = [row for row in rows(cluster) if row["call"] == "get"]
    assert (told["name"], counts(told)) == ("3 keys", (3, 0, 0, 0, 0))
    cluster.cancel(client, first)
    (told,) = [row for row in rows(cluster) if row["call"] == "get"]
    assert counts(told) == (2, 0, 1, 0, 1)
    assert worker


def test_tasks_count_for_each_of_their_tags_and_their_call(cluster: Cluster) -> None:
    client, worker = cluster.client("alice"), cluster.worker("w", slots=9, queue_size=0)
    first, second = cluster.submit(client, 2, name="work", tags=("night", "sweep"))
    (third,) = cluster.submit(client, 1, name="other", tags=("night",))
    (stranger,) = cluster.submit(cluster.client("bob"), 1, tags=("night",))
    cluster.submit(client, 1, name="night")
    tagged = {(row["client"], row["name"]): counts(row) for row in rows(cluster) if row["call"] == "tag"}
    assert tagged == {
        ("alice", "night"): (0, 3, 0, 0, 0),
        ("alice", "sweep"): (0, 2, 0, 0, 0),
        ("bob", "night"): (0, 1, 0, 0, 0),
    }
    assert len({row["id"] for row in rows(cluster)}) == len(rows(cluster)) == 7  # three of functions, one of bob's
    cluster.finish(worker, first)
    cluster.finish(worker, third, outcome=Outcome.EXCEPTION, payload=b"no")
    cluster.cancel(client, second)
    cluster.finish(worker, second, outcome=Outcome.CANCELLED)
    tagged = {(row["client"], row["name"]): counts(row) for row in rows(cluster) if row["call"] == "tag"}
    assert tagged["alice", "night"] == (0, 0, 3, 1, 1)
    assert tagged["alice", "sweep"] == (0, 0, 2, 0, 1)
    cluster.finish(worker, stranger)
    assert all(
        row["queued"] + row["running"] == 0 for row in rows(cluster) if row["name"] == "night" and row["call"] == "tag"
    )


def test_retried_lost_failed_and_cancelled_tasks_count_once(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=4, queue_size=0)
    retried, failed, cancelled, done = cluster.submit(client, 4, call=1)
    cluster.finish(worker, retried, outcome=Outcome.EXCEPTION_TO_RETRY, payload=b"again")
    cluster.finish(worker, failed, outcome=Outcome.EXCEPTION, payload=b"no")
    cluster.finish(worker, done)
    (row,) = rows(cluster)
    assert sum(counts(row)[:3]) == 4
    assert counts(row)[2:] == (2, 1, 0)
    cluster.leave(worker)
    cluster.cancel(client, cancelled)
    (row,) = rows(cluster)
    assert sum(counts(row)[:3]) == 4
    assert counts(row)[2:] == (3, 1, 1)


def test_map_counts_its_items_including_unsent_ones(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=1, queue_size=0)
    first, second = cluster.submit(client, 2, call=5, calls=(10, 10))
    cluster.say(client, CallsReported([CallReport(5, "map", "work", 100, True, 20)]))
    (row,) = rows(cluster)
    assert counts(row) == (99, 1, 0, 0, 0)  # one item of the running chunk is running
    cluster.finish(worker, first, outcome=Outcome.EXCEPTION, calls=(10, 3))
    (row,) = rows(cluster)
    assert counts(row) == (89, 1, 10, 3, 0)
    cluster.finish(worker, second, calls=(10, 0))
    cluster.say(client, CallsReported([CallReport(5, "map", "work", 20, True, 20, 20, 3, True)]))
    (row,) = rows(cluster)
    assert counts(row) == (0, 0, 20, 3, 0)


def test_items_of_an_aborted_map_are_cancelled_not_done(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=1, queue_size=0)
    first, second = cluster.submit(client, 2, call=5, calls=(10, 10))
    cluster.finish(worker, first, calls=(10, 0))
    cluster.cancel(client, second)
    cluster.finish(worker, second, outcome=Outcome.CANCELLED)
    cluster.say(client, CallsReported([CallReport(5, "map", "work", 100, True, 20, 20, 10, is_over=True)]))
    (row,) = rows(cluster)
    assert counts(row) == (0, 0, 100, 0, 90)
