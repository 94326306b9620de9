"""Whole clusters whose workers are ECS tasks, which the emulator runs as processes with scripted faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerFuture
from scaler.cluster.supervisor import ReservedPorts
from scaler.testing.aws import AwsEmulator, Error, LoseReply, Slow, Throttle
from scaler.worker_manager.aws import AwsSettings
from scaler.worker_manager.aws.calls import AwsClient
from tests.engines.burst_tasks import nap
from tests.integration.settings_rig import Command, command

CONFIG = Path(__file__).resolve().parents[2] / "config/aws_raw_ecs.toml"
WAIT_SECONDS = 30.0
BOTH_ATTEMPTS = 2
"""A call is made twice before its failure counts."""


@pytest.fixture
def aws(aws: AwsEmulator) -> Iterator[AwsEmulator]:
    client = AwsClient(AwsSettings(aws_endpoint_url=aws.endpoint_url), "ecs")
    client.call("CreateCluster", clusterName="scaler-cluster", capacityProviders=["FARGATE", "FARGATE_SPOT"])
    client.close()
    yield aws
    assert aws.ecs.alive() == [], "nothing is left that costs money"


@contextmanager
def scheduler(directory: Path) -> Iterator[str]:
    with command("scaler_scheduler", "tcp://127.0.0.1:0", directory=directory) as running:
        yield running.addresses()["scheduler"]


def manager_flags(address: str, aws: AwsEmulator, slots: int, *flags: str) -> tuple[str, ...]:
    size = ("--ecs-task-cpu", "1", "--ecs-task-memory", "2", "-his", "0.25", "-mtc", str(slots))
    place = ("--ecs-subnets", "subnet-1", "--ecs-task-image", "emulated", "--aws-endpoint-url", aws.endpoint_url)
    return ("aws_raw_ecs", address, "-wmi", "burst", *place, *size, *flags)


@contextmanager
def manager(directory: Path, address: str, aws: AwsEmulator, slots: int, *flags: str) -> Iterator[Command]:
    told = manager_flags(address, aws, slots, *flags)
    with command("scaler_worker_manager", *told, directory=directory) as running:
        running.addresses()
        yield running
        assert running.stop() == 0, running.errors()
    aws.ecs.wait_until(lambda: not aws.ecs.alive(), WAIT_SECONDS)


@contextmanager
def uncertain_manager(directory: Path, address: str, aws: AwsEmulator, slots: int) -> Iterator[Command]:
    """Start a manager that may end in any way."""
    name = "scaler_worker_manager"
    started = Command(name, manager_flags(address, aws, slots), {}, directory)
    try:
        yield started
    finally:
        started.close()


def values(futures: list[ScalerFuture]) -> list[object]:
    return [future.result(WAIT_SECONDS) for future in futures]


def running(aws: AwsEmulator, count: int) -> None:
    aws.ecs.wait_until(lambda: len(aws.ecs.running()) == count, WAIT_SECONDS)


# -- from zero up and down to zero


def test_two_thousand_tasks_scale_ecs_tasks_from_zero_and_back(tmp_path: Path, aws: AwsEmulator) -> None:
    ports = ReservedPorts(4)
    scheduler_address, storage = (f"tcp://127.0.0.1:{ports.first + offset}" for offset in (0, 3))
    told: dict[str, Any] = {
        "SCALER_OBJECT_STORAGE_SERVER_BIND_ADDRESS": storage,
        "SCALER_SCHEDULER_BIND_ADDRESS": scheduler_address,
        "SCALER_SCHEDULER_ADVERTISED_OBJECT_STORAGE_ADDRESS": storage,
        "SCALER_SCHEDULER_POLICY_ENGINE_TYPE": "target_v1",
        "SCALER_SCHEDULER_POLICY_CONTENT": "idle_seconds=2",  # idle units cost nothing here
        "SCALER_WORKER_MANAGER_WORKER_SCHEDULER_ADDRESS": scheduler_address,
        "SCALER_WORKER_MANAGER_AWS_ENDPOINT_URL": aws.endpoint_url,
        "SCALER_WORKER_MANAGER_ECS_TASK_IMAGE": "emulated",
        "SCALER_WORKER_MANAGER_MAX_TASK_CONCURRENCY": "4",
        "SCALER_WORKER_MANAGER_ECS_TASK_CPU": "2",
        "SCALER_WORKER_MANAGER_ECS_TASK_MEMORY": "8",
    }
    with command("scaler", str(CONFIG), directory=tmp_path, **told) as everything:
        everything.addresses()
        assert aws.ecs.tasks() == []
        with Client(scheduler_address) as client:
            assert client.map(nap, range(2000), [0.002] * 2000) == list(range(2000))
            assert len(aws.ecs.tasks()) == 2, "up to the limit, and none twice"
            assert client.submit(len, b"x" * 1_000_000).result(WAIT_SECONDS) == 1_000_000
            aws.ecs.wait_until(lambda: not aws.ecs.alive(), WAIT_SECONDS)
            assert client.submit(nap, 7).result(WAIT_SECONDS) == 7
        assert everything.stop() == 0
        ports.release()
    aws.ecs.wait_until(lambda: not aws.ecs.alive(), WAIT_SECONDS)
    assert aws.containers.running() == []


# -- units that die


def test_spot_notices_to_half_the_fleet_lose_and_charge_no_task(tmp_path: Path, aws: AwsEmulator) -> None:
    spot = ("--ecs-capacity-provider", "FARGATE_SPOT")
    with scheduler(tmp_path) as address, manager(tmp_path, address, aws, 4, *spot), Client(address) as client:
        # All tasks run once, so the effect of a notice shows at once.
        futures = [client.submit_verbose(nap, (number, 0.2), retries=0) for number in range(60)]
        running(aws, 4)
        assert futures[0].result(WAIT_SECONDS) == 0
        for task in aws.ecs.running()[:2]:
            aws.ecs.spot_notice(task)
        assert values(futures) == list(range(60))


# -- managers that come and go


def test_restarted_manager_adopts_its_tasks(tmp_path: Path, aws: AwsEmulator) -> None:
    with scheduler(tmp_path) as address, Client(address) as client:
        with uncertain_manager(tmp_path, address, aws, 2) as first:
            first.addresses()
            futures = [client.submit(nap, number, 0.1) for number in range(60)]
            running(aws, 2)
            first.process.kill()
            first.process.wait(WAIT_SECONDS)
        fleet = aws.ecs.alive()
        with manager(tmp_path, address, aws, 2):
            assert values(futures) == list(range(60))
            assert aws.ecs.tasks() == fleet, "the manager starts no more"


# -- an API that fails


def test_fleet_starts_once_and_every_result_arrives_whatever_the_api_does(tmp_path: Path, aws: AwsEmulator) -> None:
    aws.ecs.times.hidden = 0.5
    aws.faults.add("ListTasks", Throttle(), times=BOTH_ATTEMPTS)
    aws.faults.add("RunTask", Throttle(), times=BOTH_ATTEMPTS)
    aws.faults.add("RunTask", LoseReply(), times=BOTH_ATTEMPTS)
    aws.faults.add("RunTask", Error("ServerException", "Service Unavailable", 503), times=BOTH_ATTEMPTS)
    aws.faults.add("DescribeTasks", LoseReply(), times=BOTH_ATTEMPTS)
    aws.faults.add("DescribeTasks", Slow(0.5), times=4)
    with scheduler(tmp_path) as address, manager(tmp_path, address, aws, 3) as burst, Client(address) as client:
        futures = [client.submit(nap, number) for number in range(100)]
        assert values(futures) == list(range(100))
        assert len(aws.ecs.tasks()) <= 3, "a start without an answer is not repeated"
        assert "throttled by ECS RunTask (ThrottlingException)" in burst.output()
