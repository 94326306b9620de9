"""The store shared by the workers of a host: its transfers, and the effects of its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.client.future import ScalerFuture
from scaler.config.worker import WorkerConfig
from scaler.errors import UsageError
from scaler.extensions.data_plane.host import place
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.data_rows import StoreRow
from scaler.monitor.model import Model
from tests.waiting import until

SIZE = 500_000
"""Numbers of an array: 4 MB."""
LIMIT = 12_000_000
"""Memory of a store that fills up soon: three arrays."""


def make(seed: int, size: int = SIZE) -> np.ndarray:
    return np.full(size, float(seed))


def total(*arrays: np.ndarray) -> float:
    return float(sum(array[0] * array.size for array in arrays))


def store_of(combo: SchedulerClusterCombo) -> place.RunningStore | None:
    address = combo.get_address()
    config = WorkerConfig(scheduler_address=address, worker_manager_id="", unit_id="", host_name="alpha")
    return place.find(place.file_name(config))


def monitored(combo: SchedulerClusterCombo) -> Model:
    """Return the state of a newly connected monitor."""

    async def look() -> Model:
        monitor = MonitorConnection(combo.get_monitor_address())
        try:
            await monitor.ready()
            return monitor.model
        finally:
            monitor.close()

    return asyncio.run(look())


def store_row(combo: SchedulerClusterCombo) -> StoreRow:
    return next(row for row in monitored(combo).status.stores if row.host == "alpha")


@pytest.fixture
def combo() -> Iterator[SchedulerClusterCombo]:
    """Yield a cluster whose workers have a host name, and so a separate store on this machine."""
    with SchedulerClusterCombo(n_workers=2, host_name="alpha") as combo:
        yield combo
        pids = [store.pid] if (store := store_of(combo)) is not None else []
    until(lambda: not [pid for pid in pids if psutil.pid_exists(pid)])


def test_task_values_stay_in_their_hosts_store_until_requested(combo: SchedulerClusterCombo) -> None:
    with Client(combo.get_address()) as client:
        sent = client.send_object(make(3), "sent")
        first = client.submit(make, 1)
        assert [client.submit(total, first, sent).result() for _ in range(3)] == [4.0 * SIZE] * 3
        assert store_of(combo) is not None
        assert [(each.host, each.size_bytes > 8 * SIZE) for each in client.who_has(first)] == [("alpha", True)]
        until(lambda: {each.host for each in client.who_has(sent)} == {"object storage", "alpha"})
        made, uploaded = sorted(client.objects(limit=5), key=lambda each: not each.function)
        assert (made.function, made.task_id, made.hosts) == ("make", first.task_id.hex(), ("alpha",))
        assert (uploaded.function, uploaded.task_id, len(uploaded.hosts)) == ("", "", 2)
        tasks = [task for task in monitored(combo).tasks() if task.function == "total"]
        assert max(task.inputs_bytes for task in tasks) > 8 * SIZE
        assert all(0 < task.inputs_us <= task.duration_us for task in tasks if task.inputs_bytes)
        assert all(not task.inputs_us for task in monitored(combo).tasks() if task.function == "make")
        with pytest.raises(UsageError, match="limit is 0"):
            client.objects(limit=0)
        with pytest.raises(UsageError, match="is neither a future"):
            client.who_has(7)  # type: ignore[arg-type]
        assert first.result()[0] == 1.0
        for size in (5_000, 75_000, 130_000, SIZE):  # frames, small in several parts, the smallest shared ones, large
            value = client.submit(make, 2, size).result()  # no other task uses it, so it arrives alone
            assert value.tolist() == [2.0] * size


def test_killed_store_is_replaced_and_its_objects_are_recomputed(combo: SchedulerClusterCombo) -> None:
    with Client(combo.get_address()) as client:
        first = client.submit(make, 1)
        second = client.submit(np.negative, first)
        assert client.submit(total, second).result() == -SIZE
        store = store_of(combo)
        assert store is not None
        os.kill(store.pid, signal.SIGKILL)
        assert client.submit(total, first, second).result() == 0.0
        assert second.result()[0] == -1.0
        found = until(lambda: store_of(combo))
        assert found.pid != store.pid


def test_sole_unneeded_objects_of_a_store_move_to_the_object_storage() -> None:
    with SchedulerClusterCombo(n_workers=1, host_name="alpha") as combo, Client(combo.get_address()) as client:
        first = client.submit(make, 1)
        used: ScalerFuture = client.submit(total, first)
        assert used.result() == SIZE
        store = store_of(combo)
        assert store is not None
        os.kill(store.pid, signal.SIGTERM)
        until(lambda: not psutil.pid_exists(store.pid))
        assert first.result()[0] == 1.0
        assert client.submit(total, first).result() == SIZE


def test_sole_results_in_a_full_store_are_spilled_and_read_back(tmp_path: Path) -> None:
    with (
        SchedulerClusterCombo(
            n_workers=1, host_name="alpha", store_memory_limit_bytes=LIMIT, store_spill_directory=str(tmp_path)
        ) as combo,
        Client(combo.get_address()) as client,
    ):
        arrays = [client.submit(make, seed) for seed in range(6)]
        sums = [client.submit(total, array) for array in arrays]
        assert [each.result() for each in sums] == [float(seed * SIZE) for seed in range(6)]
        until(lambda: store_row(combo).spilled_bytes >= 6 * 8 * SIZE - LIMIT)
        assert store_row(combo).bytes <= store_row(combo).limit_bytes == LIMIT
        assert client.submit(total, *arrays).result() == 15.0 * SIZE
        assert [each.result()[-1] for each in arrays] == [float(seed) for seed in range(6)]
        assert list(tmp_path.iterdir()) == [], "the store's files have no names, so a crash leaves none"
