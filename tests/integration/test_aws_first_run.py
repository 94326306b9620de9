"""The first run in an AWS account: what is not there yet, or away, is tried again, and the rest goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from scaler.cluster.ports import ReservedPorts
from scaler.testing.aws import AwsEmulator, Error
from scaler.worker_manager.aws_raw_ecs.setup import provision
from tests.integration.clouds_rig import ecs_config
from tests.integration.settings_rig import command
from tests.waiting import within

WAIT_SECONDS = 30.0


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsEmulator]:
    monkeypatch.setattr("scaler.worker_manager.aws.setup.PAUSE_SECONDS", 0.01)
    with AwsEmulator() as emulator:
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        yield emulator


def test_the_first_cluster_of_an_account_waits_for_the_role_of_the_service(aws: AwsEmulator) -> None:
    text = "Unable to assume the service linked role. Please verify that the ECS service linked role exists."
    rule = aws.faults.add("CreateCluster", Error("InvalidParameterException", text), times=2)
    lines: list[str] = []
    assert provision(ecs_config(aws_endpoint_url=aws.endpoint_url), "setup", False, lines.append) == 0
    assert rule.used == 2
    assert [line.split()[0] for line in lines[:2]] == ["waiting", "created"]
    assert text.rstrip(".") in lines[0]
    assert provision(ecs_config(aws_endpoint_url=aws.endpoint_url), "teardown", False, lines.append) == 0


FILE = """
[scheduler]
bind_address = "tcp://127.0.0.1:{port}"

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "here"
max_task_concurrency = 1

[[worker_manager]]
type = "aws_hpc"
worker_manager_id = "there"
mode = "worker"
aws_endpoint_url = "{endpoint_url}"
job_queue = "queue"
job_definition = "definition"
s3_bucket = "bucket"
max_concurrent_jobs = 1
per_worker_capabilities = "cloud=-1"
heartbeat_interval_seconds = 0.5
"""


def test_a_service_that_is_away_at_start_is_a_reason_and_ends_nothing(tmp_path: Path, aws: AwsEmulator) -> None:
    ports = ReservedPorts(4)
    file = tmp_path / "file.toml"
    file.write_text(FILE.format(port=ports.first, endpoint_url=aws.endpoint_url))
    aws.faults.add("DescribeJobDefinitions", Error("InternalFailure", "away", 500), times=None)
    with command("scaler", str(file), directory=tmp_path) as everything:
        everything.addresses()
        with Client(f"tcp://127.0.0.1:{ports.first}") as client:
            assert client.submit(abs, -1).result(WAIT_SECONDS) == 1
            future: Any = client.submit_verbose(abs, (-2,), capabilities={"cloud": -1})
            said = "cannot list units: AWS Batch DescribeJobDefinitions fails at the service's side"
            assert within(WAIT_SECONDS, lambda: said in everything.output() + everything.errors())
            assert not future.done()
            aws.faults.clear()
            aws.batch.furnish(command=["python", "-P", "-m", "Ref::module"])
            assert future.result(WAIT_SECONDS) == 2
        assert everything.stop() == 0
        ports.release()
    aws.batch.wait_until(lambda: not aws.batch.alive(), WAIT_SECONDS)
