"""`setup --check` reports problems before anything is created, and `show` lists running resources and costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scaler.config.commands import Provision, parse_worker_manager
from scaler.errors import UsageError
from scaler.testing.aws import AwsEmulator, Error
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.aws_raw_ecs.backend import EcsBackend
from scaler.worker_manager.aws_raw_ecs.setup import provision
from tests.engines.clouds_rig import ecs_config, open_subnets

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/worker:1"


def do(verb: Any, **settings: Any) -> tuple[int, list[str]]:
    lines: list[str] = []
    sizes = {"ecs_task_cpu": 1, "ecs_task_memory": 2, "max_task_concurrency": 8}
    return provision(ecs_config(**sizes, **settings), verb, False, lines.append), lines


def problems(**settings: Any) -> list[str]:
    code, lines = do("check", **settings)
    found = [line[14:] for line in lines if line.startswith("problem")]
    assert code == (1 if found else 0)
    return found


def test_finds_an_insufficient_quota(aws: AwsEmulator) -> None:
    subnets = {"ecs_subnets": tuple(open_subnets()), "ecs_assign_public_ip": True}
    [text] = problems(**subnets)
    assert text == (
        "max_task_concurrency is up to 8 vCPUs, and the quota Fargate On-Demand vCPU resource count (L-3032A538) of "
        "us-east-1 is 6 vCPUs: ask for more in Service Quotas, or lower max_task_concurrency"
    )
    aws.quotas.values["L-36FBB829"] = 8
    assert problems(ecs_capacity_provider="FARGATE_SPOT", **subnets) == []
    aws.faults.add("GetServiceQuota", Error("AccessDeniedException", "no", 400))
    code, lines = do("check", **subnets)
    assert code == 0
    assert lines[0].startswith("unknown       quota Fargate On-Demand vCPU resource count (not allowed to call ")


def test_finds_missing_subnets_and_those_without_internet_access(aws: AwsEmulator) -> None:
    aws.quotas.values["L-3032A538"] = 100
    [text] = problems(ecs_subnets=("subnet-0123456789abcdef0",))
    assert "does not exist" in text
    ec2 = AwsClient(ecs_config(), "ec2")
    subnet = ec2.call("DescribeSubnets")["Subnets"][0]["SubnetId"]
    ec2.close()
    [text] = problems(ecs_subnets=(subnet,))
    assert f"subnet {subnet} has no route to the internet" in text
    open_subnets()
    [text] = problems(ecs_subnets=(subnet,))
    assert text.endswith("units there cannot reach the internet without a public address: set ecs_assign_public_ip")
    assert problems(ecs_subnets=(subnet,), ecs_assign_public_ip=True) == []


def test_finds_an_image_missing_from_its_registry(aws: AwsEmulator) -> None:
    aws.quotas.values["L-3032A538"] = 100
    settings = {"ecs_subnets": tuple(open_subnets()), "ecs_assign_public_ip": True, "ecs_task_image": IMAGE}
    [text] = problems(**settings)
    assert text.startswith(f"image {IMAGE}: The repository with name 'worker' does not exist")
    assert text.endswith(": correct the setting, or push it")
    ecr = AwsClient(ecs_config(), "ecr")
    ecr.call("CreateRepository", repositoryName="worker")
    manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []})
    ecr.call("PutImage", repositoryName="worker", imageTag="1", imageManifest=manifest)
    ecr.close()
    assert problems(**settings) == []


def test_reports_a_bucket_owned_by_another_account(aws: AwsEmulator) -> None:
    aws.faults.add("HeadBucket", Error("AccessDenied", "no", 403))
    with pytest.raises(UsageError, match="the bucket 'taken' belongs to another account"):
        do("setup", s3_bucket="taken")


def test_show_lists_prices_and_what_setup_would_do(aws: AwsEmulator) -> None:
    code, lines = do("check")
    assert "missing       cluster scaler-cluster (setup creates it)" in lines
    assert do("setup")[0] == 0
    assert "runs          no tasks" in do("show")[1]
    backend = EcsBackend(ecs_config(ecs_task_cpu=2, ecs_task_memory=4, max_task_concurrency=8))
    backend.start(3)
    expected = 3 * backend.capacity.unit_price
    [line] = [line for line in do("show")[1] if line.startswith("runs")]
    assert line.startswith(f"runs          3 tasks: 6 vCPUs, 12 GB, about {expected:.2f} USD an hour (prices of 20")
    code, lines = do("check", ecs_task_image="another")
    assert "differs       task definition scaler-task-definition: cpu, image, memory (setup changes it)" in lines
    assert "ok            cluster scaler-cluster" in lines
    assert code == 1
    backend.stop([unit.unit_id for unit in backend.list()])
    backend.close()


def test_only_setup_has_the_check_flag() -> None:
    found = parse_worker_manager("scaler_worker_manager", ["aws_raw_ecs", "setup", "--check", "--ecs-subnets", "a"], {})
    assert isinstance(found, Provision)
    assert found.verb == "check"
    with pytest.raises(ValueError, match="--check"):
        parse_worker_manager("scaler_worker_manager", ["aws_raw_ecs", "show", "--check", "--ecs-subnets", "a"], {})
