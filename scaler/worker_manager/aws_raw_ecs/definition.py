"""The task definition of the workers, and the overrides in RunTask."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.errors import UsageError
from scaler.worker_manager.aws.calls import AwsClient, Fields, owner_tags
from scaler.worker_manager.aws.containers import MAX_OVERRIDES_CHARACTERS, check_source, platform_of
from scaler.worker_manager.aws.credential import check_secrets, secrets_with
from scaler.worker_manager.aws.package import BASE_IMAGE, install_command, package_of
from scaler.worker_manager.aws.setup import MANAGED_TAG
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.backend import owner_digest
from scaler.worker_manager.containers import CONTAINER, WORKER_COMMAND, worker_container, worker_document

STOP_SECONDS = 120  # from SIGTERM to SIGKILL: Fargate's maximum, and the notice of a spot task
STOP_GRACE_SECONDS = 110.0  # for running tasks of a stopped worker
SETUP = "`scaler_worker_manager aws_raw_ecs setup`"

_REGISTERED = (
    "containerDefinitions",
    "cpu",
    "enableFaultInjection",
    "ephemeralStorage",
    "executionRoleArn",
    "ipcMode",
    "memory",
    "networkMode",
    "pidMode",
    "placementConstraints",
    "proxyConfiguration",
    "requiresCompatibilities",
    "runtimePlatform",
    "taskRoleArn",
    "volumes",
)


def source_of(config: AwsRawEcsConfig) -> tuple[str, list[str]]:
    check_source(config.ecs_task_image, config.s3_bucket, "ecs_task_image", "s3_bucket")
    if config.ecs_task_image is not None:
        return config.ecs_task_image, list(WORKER_COMMAND)
    package, family = package_of(config, config.event_loop), config.ecs_task_definition
    return BASE_IMAGE, install_command(package, config.aws_region, config.s3_bucket, family, WORKER_COMMAND[-1])


def wanted_definition(config: AwsRawEcsConfig, current: Mapping[str, Any] | None, extras: Mapping[str, Any]) -> Fields:
    """Return the definition to register, without family and tags. Raises UsageError. current: the newest revision,
    whose roles, volumes, variables, and logging are kept. extras: `logConfiguration`, `credential` (ARN of the
    parameter), other fields."""
    image, command = source_of(config)
    known = registered(current) if current else {}
    others = {name: value for name, value in extras.items() if name not in ("logConfiguration", "credential")}
    containers = [dict(container) for container in known.get("containerDefinitions", [])]
    container: Fields = worker_container(containers, _named(config)) if containers else {"name": CONTAINER}
    container |= {
        "image": image,
        "command": command,
        "essential": True,
        "stopTimeout": STOP_SECONDS,
        # The init process reaps orphans of tasks.
        "linuxParameters": {**(container.get("linuxParameters") or {}), "initProcessEnabled": True},
    }
    if "logConfiguration" in extras:
        container["logConfiguration"] = extras["logConfiguration"]
    if "credential" in extras:
        container["secrets"] = secrets_with(container.get("secrets") or (), extras["credential"])
    if not container.get("secrets"):
        container.pop("secrets", None)  # ECS omits empty lists
    if known.get("runtimePlatform") or config.ecs_cpu_architecture != "X86_64":
        others = {**others, "runtimePlatform": platform_of(config.ecs_cpu_architecture)}
    return {
        **known,
        **others,
        "networkMode": "awsvpc",
        "requiresCompatibilities": ["FARGATE"],
        "cpu": str(config.ecs_task_cpu * 1024),
        "memory": str(config.ecs_task_memory * 1024),
        "containerDefinitions": containers or [container],
    }


def registered(definition: Mapping[str, Any]) -> Fields:
    return {name: definition[name] for name in _REGISTERED if name in definition}


def _named(config: AwsRawEcsConfig) -> str:
    return f"ecs_task_definition = {config.ecs_task_definition!r}"


def overrides(container: str, config: AwsRawEcsConfig) -> Fields:
    grace = STOP_GRACE_SECONDS
    document = worker_document(config, config.ecs_task_cpu, unit_id_from="ecs", stop_grace_seconds=grace)
    variable = {"name": WORKER_CONFIG_VARIABLE, "value": document}
    found: Fields = {"containerOverrides": [{"name": container, "environment": [variable]}]}
    length = len(json.dumps(found))
    if length > MAX_OVERRIDES_CHARACTERS:
        raise UsageError(
            f"the workers' configuration takes {length} characters, and ECS allows {MAX_OVERRIDES_CHARACTERS}: "
            "shorten per_worker_capabilities or preload"
        )
    return found


def started_by(config: AwsRawEcsConfig) -> str:
    return f"scaler/{owner_digest(config, 28)}"


def check(config: AwsRawEcsConfig) -> None:
    check_source(config.ecs_task_image, config.s3_bucket, "ecs_task_image", "s3_bucket")
    overrides(CONTAINER, config)


def run_request(config: AwsRawEcsConfig, definition: Mapping[str, Any]) -> Fields:
    tags = owner_tags(config.worker_manager_id, config.worker_scheduler_address)
    network = {
        "subnets": list(config.ecs_subnets),
        "assignPublicIp": "ENABLED" if config.ecs_assign_public_ip else "DISABLED",
    }
    if config.ecs_security_groups:
        network["securityGroups"] = list(config.ecs_security_groups)
    container = worker_container(definition["containerDefinitions"], _named(config))
    check_secrets(config, config.ecs_task_definition, container.get("secrets") or (), SETUP)
    return {
        "cluster": config.ecs_cluster,
        "taskDefinition": definition["taskDefinitionArn"],
        "capacityProviderStrategy": [{"capacityProvider": config.ecs_capacity_provider, "weight": 1}],
        "networkConfiguration": {"awsvpcConfiguration": network},
        "overrides": overrides(container["name"], config),
        "startedBy": started_by(config),
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }


def ensure_definition(
    config: AwsRawEcsConfig, ecs: AwsClient, extras: Fields, say: Callable[[str], None], *, dry_run: bool = False
) -> tuple[Fields, bool]:
    """Register a task definition if it is missing or differs. Return the newest, and whether it is new. Without extras
    and an image, a definition that installs another version of scaler is an error. Raises AwsError and UsageError."""
    family = config.ecs_task_definition
    current = describe_definition(family, ecs)
    wanted = wanted_definition(config, current, extras)
    if current is not None and registered(current) == wanted:
        return current, False
    if dry_run:
        return wanted, True
    if not extras and config.ecs_task_image is None:
        _check_package(config, current)
    if current is None and "executionRoleArn" not in wanted:
        say(f"the task definition {family} is made without roles: there are no logs, and no private images ({SETUP})")
    tags = [{"key": MANAGED_TAG, "value": "aws_raw_ecs"}] if current is None else current["tags"]
    # ECS rejects an empty list of tags.
    answer = ecs.call("RegisterTaskDefinition", family=family, **wanted, **({"tags": tags} if tags else {}))
    made: Fields = answer["taskDefinition"]
    say(f"registered the task definition {family}:{made['revision']}")
    return made, True


def _check_package(config: AwsRawEcsConfig, current: Fields | None) -> None:
    command = source_of(config)[1]
    if current is None or command not in [container.get("command") for container in current["containerDefinitions"]]:
        raise UsageError(
            f"the task definition {config.ecs_task_definition} does not install this version of scaler with these "
            f"requirements from {config.s3_bucket}: {SETUP} puts it there"
        )


def describe_definition(family: str, ecs: AwsClient) -> Fields | None:
    answer = ecs.find("DescribeTaskDefinition", "ClientException", taskDefinition=family, include=["TAGS"])
    if answer is None or answer["taskDefinition"].get("status", "ACTIVE") != "ACTIVE":
        return None
    return {
        **answer["taskDefinition"],
        "tags": [tag for tag in answer.get("tags", []) if not tag["key"].startswith("aws:")],
    }
