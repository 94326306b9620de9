"""What `setup` makes, as AWS takes it: roles, the bucket's rules, compute environment and job definition. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaler.worker_manager.aws.install import pip_install, requirements_of
from scaler.worker_manager.aws.setup_tools import Document, Role
from scaler.worker_manager.aws_hpc.requests import MODULE, Fields
from scaler.worker_manager.aws_hpc.settings import AwsHpcConfig
from scaler.worker_manager.aws_hpc.ticket import JOB_MODULE
from scaler.worker_manager.aws_raw_ecs.setup import execution_role

TASKS_SERVICE = "ecs-tasks.amazonaws.com"
HOSTS_SERVICE = "ec2.amazonaws.com"
HOSTS_POLICY = "service-role/AmazonEC2ContainerServiceforEC2Role"
EXPIRY_DAYS = 15
"""Objects that nobody has removed go after so long: longer than a job may run."""
RULE_ID = "scaler-expiry"


@dataclass(frozen=True, slots=True)
class Network:
    """Where jobs run. is_public: the subnets give public addresses, which a job there needs to pull its image."""

    subnets: tuple[str, ...]
    groups: tuple[str, ...]
    is_public: bool


def is_fargate(config: AwsHpcConfig) -> bool:
    """Tell whether jobs run on Fargate."""
    return config.batch_capacity.startswith("FARGATE")


def image_of(config: AwsHpcConfig) -> str:
    """Return the image of the job definition."""
    return config.batch_image or f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"


# -- roles


def pull_role(name: str, config: AwsHpcConfig, log_group_arn: str, partition: str) -> Role:
    """Return the role by which Batch pulls the image and writes the logs of a job."""
    return execution_role(name, image_of(config), log_group_arn, partition)


def job_role(name: str, config: AwsHpcConfig, partition: str) -> Role:
    """Return the role of the jobs themselves. A worker needs none; add what your tasks need."""
    bucket = f"arn:{partition}:s3:::{config.s3_bucket}/{config.s3_prefix}"
    statements: list[Document] = [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{bucket}/*/calls/*"},
        {"Effect": "Allow", "Action": "s3:PutObject", "Resource": f"{bucket}/*/results/*"},
        # A job reads a call that is among its parameters; Batch lets nobody restrict this to single jobs.
        {"Effect": "Allow", "Action": "batch:DescribeJobs", "Resource": "*"},
    ]
    return Role(name, TASKS_SERVICE, "the jobs, to read calls and write results", statements)


def host_role(name: str) -> Role:
    """Return the role of EC2 instances that jobs run on."""
    return Role(name, HOSTS_SERVICE, "the instances that jobs run on", managed_policies=(HOSTS_POLICY,))


# -- the bucket


def lifecycle(prefix: str) -> Fields:
    """Return the rules by which objects expire that nobody has removed."""
    return {
        "Rules": [
            {
                "ID": RULE_ID,
                "Status": "Enabled",
                "Filter": {"Prefix": f"{prefix}/"},
                "Expiration": {"Days": EXPIRY_DAYS},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
            }
        ]
    }


ENCRYPTION: Fields = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
NO_PUBLIC_ACCESS = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}

# -- the compute environment


def max_vcpus(config: AwsHpcConfig) -> int:
    """Return how many CPUs the compute environment may have: as many as the manager can have at work."""
    return config.max_concurrent_jobs * config.batch_cpu


def compute_resources(config: AwsHpcConfig, network: Network, profile_arn: str) -> Fields:
    """Return what CreateComputeEnvironment takes. profile_arn: of the instances, if there are any."""
    resources: Fields = {
        "type": config.batch_capacity,
        "maxvCpus": max_vcpus(config),
        "subnets": list(network.subnets),
        "securityGroupIds": list(network.groups),
    }
    if not is_fargate(config):
        is_spot = config.batch_capacity == "SPOT"
        resources |= {
            # Nothing is paid for while there are no jobs.
            "minvCpus": 0,
            "instanceTypes": ["optimal"],
            "instanceRole": profile_arn,
            "allocationStrategy": "SPOT_PRICE_CAPACITY_OPTIMIZED" if is_spot else "BEST_FIT_PROGRESSIVE",
        }
    return resources


def differences(current: Mapping[str, Any], wanted: Fields) -> Fields:
    """Return what of the compute resources is to be changed; what the service has beyond that stays."""
    return {
        name: value
        for name, value in wanted.items()
        if name in ("maxvCpus", "subnets", "securityGroupIds") and _unordered(current.get(name)) != _unordered(value)
    }


def _unordered(value: object) -> object:
    return sorted(value) if isinstance(value, list) else value


# -- the job definition


def command_of(config: AwsHpcConfig, pinned: Mapping[str, str]) -> list[str]:
    """Return the command, which is told by a parameter which module to run. Raises UsageError."""
    requirements = requirements_of(
        "batch_python_requirements", config.batch_python_requirements, pinned if config.batch_image is None else {}
    )
    if not requirements:
        return ["python", "-m", f"Ref::{MODULE}"]
    return ["sh", "-c", f'{pip_install(requirements)} && exec python -m "$0"', f"Ref::{MODULE}"]


def job_definition(
    config: AwsHpcConfig, pinned: Mapping[str, str], roles: Mapping[str, str], log_group: str, network: Network | None
) -> Fields:
    """Return what RegisterJobDefinition takes, without name and tags.

    pinned: what the default image installs, by name. roles: ARNs of `execution` and `job`. network: where jobs on
    Fargate run.
    """
    fargate = is_fargate(config)
    container: Fields = {
        "image": image_of(config),
        "command": command_of(config, pinned),
        "executionRoleArn": roles["execution"],
        "jobRoleArn": roles["job"],
        "resourceRequirements": [
            {"type": "VCPU", "value": str(config.batch_cpu)},
            {"type": "MEMORY", "value": str(config.batch_memory * 1024)},
        ],
        "logConfiguration": {
            "logDriver": "awslogs",
            "options": {
                "awslogs-group": log_group,
                "awslogs-region": config.aws_region,
                "awslogs-stream-prefix": "scaler",
            },
        },
        # Some process must reap what tasks leave behind, and end at SIGTERM also while pip installs.
        "linuxParameters": {"initProcessEnabled": True},
    }
    if fargate and network is not None:
        container["networkConfiguration"] = {"assignPublicIp": "ENABLED" if network.is_public else "DISABLED"}
    return {
        "type": "container",
        "platformCapabilities": ["FARGATE" if fargate else "EC2"],
        "parameters": {MODULE: JOB_MODULE},
        "containerProperties": container,
        "propagateTags": True,
    }


def changed_parts(current: Mapping[str, Any], wanted: Fields) -> Sequence[str]:
    """Return what of a described definition is not as wanted."""
    changed = []
    for name, value in wanted.items():
        found = current.get(name)
        if name == "containerProperties":
            container = found or {}
            changed += [part for part, wish in value.items() if not _covers(container.get(part), wish)]
        elif not _covers(found, value):
            changed.append(name)
    return sorted(changed)


def _covers(found: object, wanted: object) -> bool:
    """Tell whether what the service shows has all that is wanted; it adds defaults of its own."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_covers(found.get(key), value) for key, value in wanted.items())
    return found == wanted
