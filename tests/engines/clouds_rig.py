"""Configurations of worker managers for the AWS emulator and the fake Symphony, and an account with resources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scaler.config.commands import Provision, parse_worker_manager
from scaler.config.load import model_of
from scaler.testing.aws import AwsEmulator
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.aws_ec2 import AwsEc2Config
from scaler.worker_manager.aws_ec2.setup import provision as provision_ec2
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs import backend as definition
from scaler.worker_manager.kubernetes import KubernetesConfig
from scaler.worker_manager.main import provisioner_of
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.symphony import SymphonyConfig
from tests.engines.hpc_rig import BUCKET, furnish

IMAGE = "ami-12c6146b"
"""A machine image that moto provides."""
MANAGED: dict[str, Any] = {"scheduler_address": "tcp://127.0.0.1:1", "worker_manager_id": "burst"}


@contextmanager
def ecs_client(aws: AwsEmulator) -> Iterator[AwsClient]:
    client = AwsClient(ecs_config(aws_endpoint_url=aws.endpoint_url), "ecs")
    yield client
    client.close()


def provision(kind: str, file: Path, *verb: str) -> list[str]:
    """Run the equivalent of `scaler_worker_manager KIND VERB -c FILE`, and return its output lines."""
    request = parse_worker_manager("scaler_worker_manager", [kind, *verb, "-c", str(file)], {})
    assert isinstance(request, Provision)
    lines: list[str] = []
    assert provisioner_of(kind)(request.config, request.verb, request.dry_run, lines.append) == 0
    return lines


def ecs_config(**values: Any) -> AwsRawEcsConfig:
    return model_of(AwsRawEcsConfig, {**MANAGED, "ecs_subnets": ("subnet-1",), "ecs_task_image": "emulated", **values})


def ec2_config(**values: Any) -> AwsEc2Config:
    place = {"ec2_image": IMAGE, "ec2_instance_types": ("m5.large",), "ec2_python": "python3"}
    return model_of(AwsEc2Config, {**MANAGED, **place, **values})


def hpc_config(**values: Any) -> AwsHpcConfig:
    place = {"job_queue": "queue", "job_definition": "definition", "s3_bucket": BUCKET}
    return model_of(AwsHpcConfig, {**MANAGED, **place, **values})


def slurm_config(directory: Path, **values: Any) -> SlurmConfig:
    """Return a configuration with jobs that wait in a fake PBS queue."""
    place = {"slurm_system": "pbs", "slurm_time_minutes": 9, "slurm_options": ("held",)}
    return model_of(SlurmConfig, {**MANAGED, **place, "slurm_log_directory": str(directory), **values})


def symphony_config(**values: Any) -> SymphonyConfig:
    return model_of(SymphonyConfig, {**MANAGED, "service_name": "app", **values})


def kubernetes_config(**values: Any) -> KubernetesConfig:
    return model_of(KubernetesConfig, {**MANAGED, "k8s_image": "emulated", **values})


def furnish_account(aws: AwsEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a cluster, a queue, a job definition, and a bucket, none of which does anything."""
    monkeypatch.setattr(definition, "WORKER_COMMAND", ("sleep", "60"))
    furnish(aws, command=["sh", "-c", "exec sleep 60"])
    with ecs_client(aws) as client:
        client.call("CreateCluster", clusterName="scaler-cluster", capacityProviders=["FARGATE", "FARGATE_SPOT"])


def furnish_machines(aws: AwsEmulator) -> None:
    """Create the instances' launch template."""
    provision_ec2(ec2_config(aws_endpoint_url=aws.endpoint_url), "setup", False, lambda _: None)
