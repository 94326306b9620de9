"""Limits set by the accounts of a real Slurm, with slurmdbd and its database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from tests.engines.slurm_accounts_rig import limit_jobs, slurm_with_accounts
from tests.engines.slurm_rig import SlurmCluster
from tests.engines.test_slurm import QUICK, WAIT_SECONDS, eventually, manager, once_only, values
from tests.integration.settings_rig import command
from tests.waiting import until


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_with_accounts(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def test_with_an_account_limit_of_two_jobs_the_rest_waits_with_the_reason(tmp_path: Path, slurm: SlurmCluster) -> None:
    gate = tmp_path / "gate"
    limit_jobs(slurm, 2)
    reason = "job submit limit"
    clusters = ("--slurm-options=--clusters=tests",)
    with command("scaler_scheduler", "tcp://127.0.0.1:0", *QUICK, directory=tmp_path) as running:
        address = running.addresses()["scheduler"]
        with manager(tmp_path, address, 6, *clusters) as batch, Client(address) as client:
            futures = once_only(client, gate, 6)
            eventually(lambda: len(slurm.running()) == 2)
            until(lambda: reason in client.explain(futures[-1]), WAIT_SECONDS)
            assert reason in batch.output()
            gate.touch()
            assert values(futures) == list(range(6))
        eventually(lambda: not slurm.jobs())
