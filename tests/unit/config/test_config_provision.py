"""`scaler_worker_manager TYPE setup|show|teardown`: its arguments and its dispatch."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.config.commands import Provision, parse_worker_manager
from scaler.errors import ConfigError, UsageError
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.main import provisioner_of

FILE = """
[scheduler]
bind_address = "tcp://0.0.0.0:8516"

[[worker_manager]]
type = "aws_raw_ecs"
worker_manager_id = "small"
ecs_cluster = "small-cluster"
ecs_subnets = ["subnet-1"]

[[worker_manager]]
type = "aws_raw_ecs"
worker_manager_id = "large"
ecs_cluster = "large-cluster"
ecs_subnets = ["subnet-1"]
"""


def told(*arguments: str, **environment: str) -> Provision:
    found = parse_worker_manager("scaler_worker_manager", arguments, environment)
    assert isinstance(found, Provision)
    return found


def test_provisioning_needs_neither_a_scheduler_nor_subnets() -> None:
    found = told("aws_raw_ecs", "setup", "--ecs-cluster", "mine", "--aws-region", "eu-west-1")
    assert isinstance(found.config, AwsRawEcsConfig)
    assert (found.verb, found.dry_run) == ("setup", False)
    assert (found.config.ecs_cluster, found.config.aws_region) == ("mine", "eu-west-1")


def test_provisioning_accepts_the_managers_flags_variables_and_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    found = told("aws_raw_ecs", "teardown", "-c", str(path), "-wmi", "large", "--dry-run")
    assert isinstance(found.config, AwsRawEcsConfig)
    assert (found.verb, found.dry_run, found.config.ecs_cluster) == ("teardown", True, "large-cluster")
    with pytest.raises(ConfigError, match="several worker managers of the type aws_raw_ecs: 'small', 'large'"):
        told("aws_raw_ecs", "show", "-c", str(path))
    named = told(
        "aws_hpc", "show", "--job-queue", "q", "--job-definition", "d", SCALER_WORKER_MANAGER_S3_BUCKET="bucket"
    )
    assert isinstance(named.config, AwsHpcConfig)
    assert named.config.s3_bucket == "bucket"


def test_provisioning_verbs_and_their_flag_are_validated() -> None:
    with pytest.raises(UsageError, match="did you mean '--dry-run'"):
        told("aws_raw_ecs", "setup", "--dryrun")
    with pytest.raises(UsageError, match="unknown flag --dry-run"):
        parse_worker_manager("scaler_worker_manager", ["aws_raw_ecs", "tcp://h:1", "--dry-run"], {})
    with pytest.raises(UsageError, match="address 'set-up'"):
        parse_worker_manager("scaler_worker_manager", ["aws_raw_ecs", "set-up", "--ecs-subnets", "s"], {})


def test_type_without_cloud_resources_has_nothing_to_set_up() -> None:
    with pytest.raises(UsageError, match="a worker manager of the type baremetal_native needs no cloud resources"):
        provisioner_of("baremetal_native")
