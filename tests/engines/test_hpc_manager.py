"""Whole clusters on AWS Batch, with jobs as processes of the emulator and scripted faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerFuture
from scaler.cluster.supervisor import ReservedPorts
from scaler.testing.aws import AwsEmulator, LoseReply, Slow, Throttle
from tests.engines.burst_tasks import nap, wait_at_gate
from tests.engines.hpc_rig import BUCKET, furnish
from tests.integration.settings_rig import Command, command
from tests.waiting import within

CONFIG = Path(__file__).resolve().parents[2] / "config/aws_hpc.toml"
WAIT_SECONDS = 30.0


@pytest.fixture
def aws(aws: AwsEmulator) -> Iterator[AwsEmulator]:
    furnish(aws)
    yield aws
    aws.batch.wait_until(lambda: not aws.batch.alive(), WAIT_SECONDS)
    assert unfinished(aws) == [], "nothing is left that costs money"


def jobs(aws: AwsEmulator) -> list[dict[str, Any]]:
    filters = [{"name": "JOB_NAME", "values": ["*"]}]
    found = aws.batch.call("ListJobs", {"jobQueue": "queue", "filters": filters})
    listed: list[dict[str, Any]] = found["jobSummaryList"]
    return listed


def unfinished(aws: AwsEmulator) -> list[str]:
    return [job["jobId"] for job in jobs(aws) if job["status"] not in ("SUCCEEDED", "FAILED")]


@contextmanager
def scheduler(directory: Path) -> Iterator[str]:
    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=directory) as running:
        yield running.addresses()["scheduler"]


def manager_flags(address: str, aws: AwsEmulator, *flags: str) -> tuple[str, ...]:
    place = ["--job-queue", "queue", "--s3-bucket", BUCKET]
    if "--job-definition" not in flags:
        place += ["--job-definition", "definition"]
    return ("aws_hpc", address, "-wmi", "burst", "--aws-endpoint-url", aws.endpoint_url, *place, "-his", "0.25", *flags)


@contextmanager
def manager(directory: Path, address: str, aws: AwsEmulator, *flags: str) -> Iterator[Command]:
    with command("scaler_worker_manager", *manager_flags(address, aws, *flags), directory=directory) as running:
        running.addresses()
        yield running
        assert running.stop() == 0, running.errors()


@contextmanager
def doomed_manager(directory: Path, address: str, aws: AwsEmulator, *flags: str) -> Iterator[Command]:
    """Start a manager that may end in any way."""
    started = Command("scaler_worker_manager", manager_flags(address, aws, *flags), {}, directory)
    try:
        started.addresses()
        yield started
    finally:
        started.close()


def values(futures: list[ScalerFuture]) -> list[object]:
    return [future.result(WAIT_SECONDS) for future in futures]


def containers(aws: AwsEmulator, count: int) -> None:
    aws.batch.wait_until(lambda: len(aws.batch.alive()) == count, WAIT_SECONDS)


# -- from zero up and down to zero


def test_two_thousand_tasks_scale_jobs_from_zero_and_back(tmp_path: Path, aws: AwsEmulator) -> None:
    ports = ReservedPorts(4)
    address, storage = (f"tcp://127.0.0.1:{ports.first + offset}" for offset in (0, 3))
    told = {
        "SCALER_OBJECT_STORAGE_SERVER_BIND_ADDRESS": storage,
        "SCALER_SCHEDULER_BIND_ADDRESS": address,
        "SCALER_SCHEDULER_POLICY_ENGINE_TYPE": "target_v1",
        "SCALER_SCHEDULER_POLICY_CONTENT": "idle_seconds=2",  # idle units cost nothing here
        "SCALER_WORKER_MANAGER_AWS_ENDPOINT_URL": aws.endpoint_url,
        "SCALER_WORKER_MANAGER_JOB_QUEUE": "queue",
        "SCALER_WORKER_MANAGER_JOB_DEFINITION": "definition",
        "SCALER_WORKER_MANAGER_S3_BUCKET": BUCKET,
        "SCALER_WORKER_MANAGER_MAX_CONCURRENT_JOBS": "3",
    }
    with command("scaler", str(CONFIG), directory=tmp_path, **told) as everything:
        everything.addresses()
        assert jobs(aws) == []
        with Client(address) as client:
            assert client.map(nap, range(2000), [0.0001] * 2000, chunk_size=1000) == list(range(2000))
            assert jobs(aws)
            assert client.submit(len, b"x" * 1_000_000).result(WAIT_SECONDS) == 1_000_000
            assert within(WAIT_SECONDS, lambda: not unfinished(aws)), "no job remains without work"
            assert client.submit(nap, 7).result(WAIT_SECONDS) == 7
        assert everything.stop() == 0
        ports.release()
    assert within(WAIT_SECONDS, lambda: not unfinished(aws))
    assert aws.s3.keys(BUCKET) == []


# -- faults


def test_every_task_has_one_result_whatever_the_api_does(tmp_path: Path, aws: AwsEmulator) -> None:
    aws.batch.times.listing = 0.5
    aws.faults.add("SubmitJob", Throttle(), times=2)
    aws.faults.add("SubmitJob", LoseReply(), times=1)
    for operation in ("DescribeJobs", "ListJobs", "ListObjectsV2", "GetObject"):
        aws.faults.add(operation, Throttle(), times=2)
        aws.faults.add(operation, LoseReply(), times=1)
        aws.faults.add(operation, Slow(0.3), times=1)
    with scheduler(tmp_path) as address, manager(tmp_path, address, aws) as burst, Client(address) as client:
        futures = [client.submit(nap, number) for number in range(3)]
        assert values(futures) == list(range(3))
        children = [int((job.get("arrayProperties") or {}).get("size", 1)) for job in jobs(aws)]
        assert sum(children) == 3, "no task was submitted twice"
        assert "throttled by AWS Batch SubmitJob (TooManyRequestsException)" in burst.output()


def test_restarted_manager_ends_leftover_jobs_and_reruns_their_tasks(tmp_path: Path, aws: AwsEmulator) -> None:
    gate = tmp_path / "gate"
    with scheduler(tmp_path) as address, Client(address) as client:
        with doomed_manager(tmp_path, address, aws) as first:
            futures = [client.submit(wait_at_gate, number, str(gate)) for number in range(2)]
            containers(aws, 2)
            # Including its agent, which would otherwise end its jobs itself.
            agents = first.descendants()
            first.process.kill()
            for agent in agents:
                agent.kill()
            first.process.wait(WAIT_SECONDS)
        assert len(aws.batch.alive()) == 2
        left = set(unfinished(aws))
        with manager(tmp_path, address, aws):
            assert within(WAIT_SECONDS, lambda: left.isdisjoint(unfinished(aws)))
            gate.touch()
            assert values(futures) == [0, 1]
            ended = {job["jobId"]: job.get("statusReason") for job in jobs(aws)}
            assert {ended[job_id] for job_id in left} == {"Stopped by scaler"}
