"""config/burst.toml: a laptop's own cores first, and the cloud for what they cannot do soon."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from scaler.cluster.ports import ReservedPorts
from scaler.testing.aws import AwsEmulator
from tests.integration.hpc_rig import BUCKET, furnish
from tests.integration.settings_rig import command

CONFIG = Path(__file__).resolve().parents[2] / "config/burst.toml"
WAIT_SECONDS = 30.0


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsEmulator]:
    with AwsEmulator() as emulator:
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        furnish(emulator)
        yield emulator
        emulator.batch.wait_until(lambda: not emulator.batch.alive(), WAIT_SECONDS)


def where(seconds: float) -> str:
    time.sleep(seconds)
    return "cloud" if "AWS_BATCH_JOB_ID" in os.environ else "laptop"


def at_once() -> str:
    return where(0.0)


def test_what_the_laptop_cannot_do_soon_is_done_in_the_cloud(tmp_path: Path, aws: AwsEmulator) -> None:
    ports = ReservedPorts(4)
    text = CONFIG.read_text()
    for old, new in (
        ("tcp://127.0.0.1:8616", f"tcp://127.0.0.1:{ports.first}"),
        ("tcp://127.0.0.1:8617", f"tcp://127.0.0.1:{ports.first + 3}"),
        ('worker_manager_id = "laptop"', 'worker_manager_id = "laptop"\nmax_task_concurrency = 1'),
        ('"us-east-1"', f'"us-east-1"\naws_endpoint_url = "{aws.endpoint_url}"'),
        ('"scaler-queue"', '"queue"'),
        ('"scaler-job"', '"definition"'),
        ('"scaler-calls-and-results"', f'"{BUCKET}"'),
        ("max_concurrent_jobs = 100", "max_concurrent_jobs = 8"),
    ):
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "burst.toml"
    file.write_text(text)
    with command("scaler", str(file), directory=tmp_path) as everything:
        everything.addresses()
        with Client(f"tcp://127.0.0.1:{ports.first}") as client:
            assert client.submit(at_once).result(WAIT_SECONDS) == "laptop"
            assert not aws.batch.alive(), "one small task is no reason to go to the cloud"
            futures = [client.submit(where, 1.0) for _ in range(16)]
            assert {future.result(WAIT_SECONDS) for future in futures} == {"laptop", "cloud"}
        assert everything.stop() == 0
        ports.release()
