"""config/burst.toml: a laptop's cores first, and the cloud for work that they cannot finish soon."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.testing.aws import AwsEmulator
from tests.engines.clouds_rig import provision
from tests.integration.settings_rig import command

CONFIG = Path(__file__).resolve().parents[2] / "config/burst.toml"
WAIT_SECONDS = 30.0


@pytest.fixture
def aws(aws: AwsEmulator) -> Iterator[AwsEmulator]:
    yield aws
    aws.batch.wait_until(lambda: not aws.batch.alive(), WAIT_SECONDS)


def where(seconds: float) -> str:
    time.sleep(seconds)  # the policy uses the cloud based on durations
    return "cloud" if "AWS_BATCH_JOB_ID" in os.environ else "laptop"


def configured(directory: Path, aws: AwsEmulator, ports: ReservedPorts, *changes: tuple[str, str]) -> Path:
    """Write config/burst.toml for the emulator, with these replacements."""
    text = CONFIG.read_text()
    for old, new in (
        ("tcp://127.0.0.1:8616", f"tcp://127.0.0.1:{ports.first}"),
        ("tcp://127.0.0.1:8617", f"tcp://127.0.0.1:{ports.first + 3}"),
        ("job_queue = ", f'aws_endpoint_url = "{aws.endpoint_url}"\njob_queue = '),
        ("max_concurrent_jobs = 100", "max_concurrent_jobs = 8"),
        # Installation in jobs is tested where an index exists: tests/engines/test_aws_first_run.py.
        ("worker_requirements = []", 'batch_image = "emulated"'),
        *changes,
    ):
        assert old in text
        text = text.replace(old, new)
    file = directory / "burst.toml"
    file.write_text(text)
    return file


@pytest.mark.timeout(120)
def test_work_too_slow_for_the_laptop_runs_in_the_cloud(tmp_path: Path, aws: AwsEmulator) -> None:
    ports = ReservedPorts(4)
    laptop = 'worker_manager_id = "laptop"'
    file = configured(tmp_path, aws, ports, (laptop, f"{laptop}\nmax_task_concurrency = 1"))
    provision("aws_hpc", file, "setup")
    assert not [line for line in provision("aws_hpc", file, "setup") if line.startswith("created")]
    with command("scaler", str(file), directory=tmp_path) as everything:
        everything.addresses()
        with Client(f"tcp://127.0.0.1:{ports.first}") as client:
            assert client.submit(where, 0.0).result(WAIT_SECONDS) == "laptop"
            assert not aws.batch.alive(), "one small task does not need the cloud"
            # A job is expected to start after 45 s. Once a task is measured, the laptop alone would take 92 s.
            futures = [client.submit(where, 4.0) for _ in range(24)]
            aws.batch.wait_until(lambda: bool(aws.batch.alive()), WAIT_SECONDS)
            assert {future.result(WAIT_SECONDS) for future in futures} == {"laptop", "cloud"}
        assert everything.stop() == 0
        ports.release()
    provision("aws_hpc", file, "teardown")
    assert aws.batch.call("DescribeJobQueues", {})["jobQueues"] == []
