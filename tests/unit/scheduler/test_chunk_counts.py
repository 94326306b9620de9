"""Monitors count calls, however many of them a task has: a map sends its items in chunks."""

from __future__ import annotations

import pytest

from scaler.extensions.history.minutes import FunctionTimes
from scaler.protocol.messages import Outcome
from scaler.scheduler.core.changes import Action
from scaler.scheduler.core.core import EXPIRY_SECONDS
from tests.unit.scheduler.driver import Cluster
from tests.unit.scheduler.test_status import document

COUNTS = ("queued", "running", "ended", "failed", "cancelled")


def counts(cluster: Cluster, table: str = "functions") -> tuple[int, ...]:
    (row,) = document(cluster)[table]
    return tuple(row[name] for name in COUNTS)


def test_functions_clients_and_totals_count_the_calls_of_chunks(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=1, queue_size=0)
    first, second, _ = cluster.submit(client, 3, calls=(40, 40, 20))
    assert counts(cluster) == counts(cluster, "clients") == (99, 1, 0, 0, 0)
    assert document(cluster)["waiting"][0]["tasks"] == 67  # two of three chunks, including a smaller one
    cluster.finish(worker, first, calls=(40, 0), seconds=0.04)
    cluster.finish(worker, second, outcome=Outcome.EXCEPTION, payload=b"no", calls=(40, 3), seconds=0.04)
    assert counts(cluster) == counts(cluster, "clients") == (19, 1, 80, 3, 0)
    told = document(cluster)
    ended = {name: count for name, count in told["tasks"]["ended"].items() if count}
    assert ended == {"done": 77, "exception": 3}
    (row,) = told["functions"]
    assert row["seconds_total"] == pytest.approx(0.08)


def test_variation_between_calls_of_a_chunk_is_unknown(cluster: Cluster, client: str, worker: str) -> None:
    (chunk,) = cluster.submit(client, 1, calls=(40,))
    times = FunctionTimes(0.0, cluster.state)
    cluster.finish(worker, chunk, calls=(40, 0), seconds=0.04)
    (row,) = document(cluster)["functions"]
    assert (row["has_chunks"], row["p50_seconds"], row["p95_seconds"], row["max_seconds"]) == (True, 0.0, 0.0, 0.0)
    (past,) = times.present(1.0)
    assert (past.ended, past.p50_seconds, past.p95_seconds) == (40, 0.0, 0.0)


@pytest.mark.parametrize(
    ("outcome", "calls", "expected"),
    [
        pytest.param(Outcome.SUCCESS, (30, 0), (0, 0, 30, 0, 0), id="left ten to its client, which sends them again"),
        pytest.param(Outcome.EXCEPTION, (0, 0), (0, 0, 0, 0, 0), id="its arguments could not be loaded"),
        pytest.param(Outcome.TIMED_OUT, (0, 0), (0, 0, 0, 0, 0), id="sent again, item by item"),
        pytest.param(Outcome.REJECTED, (0, 0), (0, 0, 40, 40, 0), id="never ran"),
        pytest.param(Outcome.SUCCESS, (40, 5), (0, 0, 40, 5, 0), id="failures in a large result"),
    ],
)
def test_each_call_is_counted_once_however_its_chunk_ends(
    outcome: Outcome, calls: tuple[int, int], expected: tuple[int, ...]
) -> None:
    cluster = Cluster()
    client, worker = cluster.client(), cluster.worker("w")
    (chunk,) = cluster.submit(client, 1, calls=(40,))
    cluster.finish(worker, chunk, outcome=outcome, payload=b"no", calls=calls)
    assert counts(cluster) == counts(cluster, "clients") == expected
    assert sum(document(cluster)["tasks"]["ended"].values()) == expected[2]


def test_cancelled_calls_are_not_counted_as_done_failed_or_timed(cluster: Cluster) -> None:
    client, worker = cluster.client(), cluster.worker("w", slots=1, queue_size=0)
    first, second = cluster.submit(client, 2, calls=(40, 40))
    cluster.cancel(client, second)
    assert counts(cluster) == (39, 1, 40, 0, 40)
    cluster.finish(worker, first, calls=(40, 0))
    (row,) = document(cluster)["functions"]
    assert (row["ended"], row["cancelled"], row["untimed"]) == (80, 40, 40)


def test_audit_log_and_history_count_the_calls_of_chunks(cluster: Cluster, client: str) -> None:
    cluster.submit(client, 2, calls=(40, 20), name="work")
    cluster.wait(EXPIRY_SECONDS)
    assert [each.count for each in cluster.take_facts() if isinstance(each, Action)] == [60]
    assert cluster.state.living_tasks + cluster.state.counts.more == 60
