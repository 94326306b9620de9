"""Whether tasks wait for the network or the cluster: each cause has its figures, and none is below its limit."""

from __future__ import annotations

import pytest

from scaler.extensions.health.core import link_rows
from scaler.monitor.cluster_rows import SchedulerRow, Status, StorageRow, WorkerRow
from scaler.monitor.data_rows import LinkRow
from scaler.monitor.findings import LATE_SECONDS, MANY_BYTES, SLOW_SECONDS, SLOW_STORAGE_SECONDS, network
from scaler.net.connection import LinkFigures
from tests.unit.scheduler.driver import Cluster

NEAR = 0.0004


def cluster(
    *round_trips: float, lag: float = 0.001, storage: float = 0.0006, links: tuple[LinkRow, ...] = ()
) -> Status:
    """Return a state with a host for each round trip; the first host is the scheduler's."""
    workers = tuple(
        WorkerRow(id=str(place), host=f"rack-{place}", latency_seconds=seconds)
        for place, seconds in enumerate(round_trips)
    )
    return Status(
        scheduler=SchedulerRow(host="rack-0", lag_seconds_max=lag),
        storage=StorageRow(latency_seconds=storage),
        workers=workers,
        links=links,
    )


FULL = LinkRow("a", "cloud-3", "worker", "rack-9", outbox_bytes=MANY_BYTES, sent_per_second=3e6)


@pytest.mark.parametrize(
    ("status", "cause", "text"),
    [
        (
            cluster(NEAR, NEAR),
            "none",
            "Neither the network nor the scheduler is slow: round trips take 0.4 ms, at most",
        ),
        (cluster(), "none", "the scheduler's loop was at most 1 ms late, the object storage answers after 0.6 ms"),
        (cluster(NEAR, lag=LATE_SECONDS), "scheduler", "its loop was 50 ms late"),
        (cluster(NEAR, lag=LATE_SECONDS * 0.99), "none", ""),
        (cluster(NEAR, storage=SLOW_STORAGE_SECONDS), "storage", "after 100 ms"),
        (cluster(NEAR, storage=SLOW_STORAGE_SECONDS * 0.99), "none", ""),
        (
            cluster(NEAR, links=(FULL,)),
            "network",
            "worker cloud-3 on rack-9 is saturated: 8 MB are queued, and it carries 3.0",
        ),
        (cluster(NEAR, links=(FULL._replace(outbox_bytes=MANY_BYTES - 1),)), "none", ""),
        (
            cluster(NEAR, NEAR, 0.08),
            "network",
            "The network to rack-2 is slow: a round trip takes up to 80 ms, compared with 0.4",
        ),
        (cluster(NEAR, NEAR, SLOW_SECONDS * 0.99), "none", "at most 19.8 ms to rack-2"),
        (cluster(0.03, 0.03), "machine", "agents on rack-0, which need no network, have a round trip of 30 ms"),
        (cluster(0.0, 0.08, 0.09, 0.1), "distance", "the median round trip is 90 ms over 3 hosts"),
    ],
)
def test_each_cause_of_a_slow_connection_is_shown_with_its_figures(status: Status, cause: str, text: str) -> None:
    found = network(status)
    assert found.cause == cause
    assert text in found.text


def test_slowest_connections_are_listed_with_stalled_ones_first() -> None:
    rig = Cluster()
    workers = [rig.worker(f"w{number}") for number in range(3)]
    figures = {
        rig.peer(workers[0]): LinkFigures(10, 20, 0, 0.5),
        rig.peer(workers[1]): LinkFigures(1, 2, MANY_BYTES, 0.001),
        rig.peer(rig.client()): LinkFigures(3, 4, 0, 0.7),
    }
    rows = link_rows(rig.state, lambda peer: figures.get(peer, LinkFigures()), 3)
    ids = [rig.peer(name).hex() for name in ("w1", "client", "w0")]
    assert [(row.id, row.kind) for row in rows] == list(zip(ids, ("worker", "client", "worker"), strict=True))
    assert (rows[2].sent_bytes, rows[2].received_bytes, rows[2].latency_seconds) == (10, 20, 0.5)
