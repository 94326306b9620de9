"""A cluster whose object storage has a backend: objects written, read, and deleted there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from scaler import Client
from scaler.config.worker import WorkerConfig
from scaler.extensions.data_plane.host import place
from tests.integration.settings_rig import command
from tests.integration.storage_rig import StorageProcess, storage_process
from tests.waiting import until

SIZE = 500_000
"""Numbers of an array: 4 MB."""


def make(seed: int, size: int = SIZE) -> np.ndarray:
    return np.full(size, float(seed))


def total(*arrays: np.ndarray) -> float:
    return float(sum(array[0] * array.size for array in arrays))


def is_uniform(array: np.ndarray) -> bool:
    return bool((array == array[0]).all())


@dataclass
class Site:
    """A cluster whose workers have a host name, and so a separate store on this machine."""

    root: Path
    storage: StorageProcess
    address: str

    def stored(self) -> list[Path]:
        return [path for path in self.root.glob("run-*/*") if len(path.name) == 32]

    def store(self) -> place.RunningStore | None:
        config = WorkerConfig(scheduler_address=self.address, worker_manager_id="", unit_id="", host_name="alpha")
        return place.find(place.file_name(config))


@contextmanager
def started(root: Path, *flags: str) -> Iterator[Site]:
    with (
        storage_process("tcp://127.0.0.1:0", "--backend", (root / "backend").as_uri(), *flags) as storage,
        command("scheduler", "tcp://127.0.0.1:0", "-osa", storage.address, directory=root) as scheduler,
    ):
        address = scheduler.addresses()["scheduler"]
        with command("cluster", address, "-n", "1", "--host-name", "alpha", directory=root) as workers:
            workers.addresses()
            yield Site(root / "backend", storage, address)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with started(tmp_path) as site:
        yield site


def test_storage_memory_is_freed_and_values_return_from_the_backend(tmp_path: Path) -> None:
    with started(tmp_path, "--memory-limit-bytes", "14_000_000") as site, Client(site.address) as client:
        sent = [client.send_object(make(seed), str(seed)) for seed in range(8)]
        until(lambda: len(site.stored()) == 8)
        assert [client.submit(total, each).result() for each in sent] == [float(seed * SIZE) for seed in range(8)]


def test_released_objects_are_deleted_and_a_finished_run_removes_its_folder(site: Site) -> None:
    with Client(site.address) as client:
        sent, small = client.send_object(make(3), "sent"), client.send_object(make(4, 1000), "small")
        [stored] = until(site.stored)
        assert stored.stat().st_size > 8 * SIZE
        assert client.submit(total, sent, small).result() == 3.0 * SIZE + 4000
        assert len(site.stored()) == 1
        client.clear()
        until(lambda: not site.stored())
        kept = client.send_object(make(5), "kept")
        assert client.submit(total, kept).result() == 5.0 * SIZE
        site.storage.process.terminate()
        assert site.storage.process.wait(10) == 0
        assert list(site.root.iterdir()) == []


@pytest.mark.full
def test_damaged_object_is_never_returned_as_a_value(site: Site) -> None:
    with Client(site.address) as client:
        first = client.submit(make, 1)
        assert client.submit(total, first).result() == SIZE
        assert site.stored() == []
        store = site.store()
        assert store is not None
        os.kill(store.pid, signal.SIGTERM)
        [stored] = until(site.stored)
        content = bytearray(stored.read_bytes())
        content[SIZE] ^= 255  # in the middle of the array
        stored.write_bytes(content)
        until(lambda: site.store() not in {store, None})
        assert is_uniform(first.result())  # recomputed


def test_value_survives_a_killed_storage_which_then_uses_a_new_folder(site: Site) -> None:
    with Client(site.address) as client:
        sent = client.send_object(make(3), "sent")
        until(site.stored)
        site.storage.kill()
        with storage_process(site.storage.address, "--backend", site.root.as_uri()):
            assert client.submit(total, sent).result() == 3.0 * SIZE
            until(lambda: len(site.stored()) == 2)
            assert len(list(site.root.iterdir())) == 2
