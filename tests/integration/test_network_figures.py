"""A real cluster measures its round trips and the bytes of its connections."""

from __future__ import annotations

import asyncio

from scaler import Client, SchedulerClusterCombo
from scaler.monitor.cluster_rows import Status
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.data_rows import LinkRow
from tests.integration.settings_rig import WAIT_SECONDS

SIZE = 100_000


async def measured(address: str) -> Status:
    """Return the first state in which worker, client, and object storage have a round trip."""
    changed = asyncio.Event()
    connection = MonitorConnection(address, changed.set)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                status = connection.model.status
                known = {link.kind for link in status.links if link.latency_seconds}
                if {"worker", "client"} <= known and status.storage.latency_seconds:
                    return status
                await changed.wait()
                changed.clear()
    finally:
        connection.close()


def of_kind(status: Status, kind: str) -> LinkRow:
    [link] = [link for link in status.links if link.kind == kind]
    return link


def test_measures_round_trips_and_bytes_of_every_peer() -> None:
    with (
        SchedulerClusterCombo(n_workers=1, client_timeout_seconds=2) as cluster,
        Client(cluster.get_address(), name="desk") as client,
    ):
        assert client.submit(len, b"x" * SIZE).result() == SIZE
        status = asyncio.run(measured(cluster.get_monitor_address()))
        assert of_kind(status, "client").name == "desk"
        assert of_kind(status, "manager").latency_seconds == 0.0
        worker = of_kind(status, "worker")
        assert worker.host == status.scheduler.host
        assert worker.received_bytes > 0
        assert 0 < status.totals.links == len(status.links)
