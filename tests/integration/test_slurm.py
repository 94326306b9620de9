"""Whole clusters whose workers are jobs of a real Slurm, with two nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaler import Client
from tests.integration.burst_tasks import nap
from tests.integration.settings_rig import Command, command
from tests.integration.slurm_rig import SlurmCluster, slurm_cluster
from tests.waiting import until, within

WAIT_SECONDS = 45.0


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@contextmanager
def scheduler(directory: Path) -> Iterator[str]:
    fast = ("-et", "target_v1", "-pc", "idle_seconds=1")
    with command("scaler_scheduler", "tcp://127.0.0.1:0", *fast, directory=directory) as running:
        yield running.addresses()["scheduler"]


def manager_flags(directory: Path, address: str, slots: int, *flags: str) -> tuple[str, ...]:
    place = ("--slurm-log-directory", str(directory / "jobs"), "--slurm-time-minutes", "10")
    return ("slurm", address, "-wmi", "batch", "-mtc", str(slots), "-his", "0.25", *place, *flags)


@contextmanager
def manager(directory: Path, address: str, slots: int, *flags: str) -> Iterator[Command]:
    told = manager_flags(directory, address, slots, *flags)
    with command("scaler_worker_manager", *told, directory=directory) as running:
        running.addresses()
        yield running
        assert running.stop() == 0, running.errors()


def test_work_takes_it_from_no_jobs_up_and_down_to_none(tmp_path: Path, slurm: SlurmCluster) -> None:
    with scheduler(tmp_path) as address, manager(tmp_path, address, 4, "--slurm-cpus", "2") as batch, Client(address) as client:
        assert slurm.jobs() == {}
        try:
            assert client.map(nap, range(100), [0.02] * 100) == list(range(100))
            until(lambda: not slurm.jobs(), WAIT_SECONDS)
        finally:
            print(batch.output(), batch.errors(), slurm.jobs())
            for f in (tmp_path / "jobs").glob("*.out"): print(f, f.read_text())
