"""What a worker's task is made of: its task definition, its start command, and what each start adds. Pure."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.errors import UsageError
from scaler.worker_manager.aws.install import pip_install, requirements_of
from scaler.worker_manager.aws.session import tag_value
from scaler.worker_manager.aws_raw_ecs.settings import AwsRawEcsConfig

CONTAINER = "worker"
STOP_SECONDS = 120
"""From SIGTERM to SIGKILL: the most that Fargate allows, and as long as the notice of a spot task."""
STOP_GRACE_SECONDS = 110.0
"""How long running tasks of a worker that is stopped may take."""
MAX_OVERRIDES_CHARACTERS = 8192
"""Of all container overrides together. Source: RunTask in the API reference."""
WORKER_COMMAND = ("python", "-m", "scaler.worker")
MANAGER_TAG = "scaler:manager"
CLUSTER_TAG = "scaler:cluster"

Fields = dict[str, Any]

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
"""What DescribeTaskDefinition shows and RegisterTaskDefinition takes."""


def image_of(config: AwsRawEcsConfig) -> str:
    """Return the image of the worker's container."""
    return config.ecs_task_image or f"python:{config.ecs_python_version}-slim"


def start_command(config: AwsRawEcsConfig, versions: Mapping[str, str]) -> list[str]:
    """Return the container's command.

    versions: what the default image gets with pip, by name, unless the configuration asks for these packages itself.
    Raises UsageError when the requirements cannot be read.
    """
    pinned = versions if config.ecs_task_image is None else {}
    requirements = requirements_of("ecs_python_requirements", config.ecs_python_requirements, pinned)
    if not requirements:
        return list(WORKER_COMMAND)
    return ["sh", "-c", f"{pip_install(requirements)} && exec {shlex.join(WORKER_COMMAND)}"]


def wanted_definition(
    config: AwsRawEcsConfig, current: Mapping[str, Any] | None, versions: Mapping[str, str], extras: Mapping[str, Any]
) -> Fields:
    """Return what to register, without family and tags.

    current: the newest revision. What it has beyond the manager's own settings (roles, volumes, variables, logging)
    stays. extras: what else is to be so: roles, and under `logConfiguration` that of the container.
    Raises UsageError when it has several containers and none is called `worker`.
    """
    known = registered(current) if current else {}
    others = {name: value for name, value in extras.items() if name != "logConfiguration"}
    containers = [dict(container) for container in known.get("containerDefinitions", [])]
    container: Fields = _worker_container(containers, config.ecs_task_definition) if containers else {"name": CONTAINER}
    container |= {
        "image": image_of(config),
        "command": start_command(config, versions),
        "essential": True,
        "stopTimeout": STOP_SECONDS,
        # Some process must reap what tasks leave behind, and end at SIGTERM also while pip installs.
        "linuxParameters": {**(container.get("linuxParameters") or {}), "initProcessEnabled": True},
    }
    if "logConfiguration" in extras:
        container["logConfiguration"] = extras["logConfiguration"]
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
    """Return of a described definition what was registered."""
    return {name: definition[name] for name in _REGISTERED if name in definition}


def worker_container(definition: Mapping[str, Any], family: str) -> str:
    """Return the name of the container that the worker runs in. Raises UsageError."""
    return str(_worker_container(definition["containerDefinitions"], family)["name"])


def _worker_container(containers: Sequence[Fields], family: str) -> Fields:
    named = [container for container in containers if container.get("name") == CONTAINER]
    if not named and len(containers) > 1:
        names = ", ".join(str(container.get("name")) for container in containers)
        raise UsageError(
            f"ecs_task_definition = {family!r} has the containers {names}: call the one for the worker {CONTAINER!r}"
        )
    return (named or list(containers))[0]


def worker_document(config: AwsRawEcsConfig) -> str:
    """Return what every worker is told. Log files of the manager's machine are none of its container's."""
    worker = config.worker_config("", config.ecs_task_cpu, unit_id_from="ecs", stop_grace_seconds=STOP_GRACE_SECONDS)
    return replace(worker, logging_paths=("/dev/stdout",), logging_config_file=None).to_json()


def overrides(container: str, document: str) -> Fields:
    """Return the overrides of a start. Raises UsageError when they are longer than ECS allows."""
    variable = {"name": WORKER_CONFIG_VARIABLE, "value": document}
    found: Fields = {"containerOverrides": [{"name": container, "environment": [variable]}]}
    length = len(json.dumps(found))
    if length > MAX_OVERRIDES_CHARACTERS:
        raise UsageError(
            f"what the workers are told takes {length} characters, and ECS allows {MAX_OVERRIDES_CHARACTERS}: "
            "shorten per_worker_capabilities or preload"
        )
    return found


def started_by(config: AwsRawEcsConfig) -> str:
    """Return the mark of all tasks of this manager for this scheduler; ListTasks finds them by it."""
    whole = f"{config.worker_manager_id}\0{config.worker_scheduler_address}"
    return f"scaler/{hashlib.sha256(whole.encode()).hexdigest()[:28]}"


def run_request(config: AwsRawEcsConfig, definition_arn: str, task_overrides: Fields) -> Fields:
    """Return the parameters of RunTask that all starts share: all but count and clientToken."""
    network = {
        "subnets": list(config.ecs_subnets),
        "assignPublicIp": "ENABLED" if config.ecs_assign_public_ip else "DISABLED",
    }
    if config.ecs_security_groups:
        network["securityGroups"] = list(config.ecs_security_groups)
    return {
        "cluster": config.ecs_cluster,
        "taskDefinition": definition_arn,
        "capacityProviderStrategy": [{"capacityProvider": config.ecs_capacity_provider, "weight": 1}],
        "networkConfiguration": {"awsvpcConfiguration": network},
        "overrides": task_overrides,
        "startedBy": started_by(config),
        "tags": [
            {"key": MANAGER_TAG, "value": tag_value(config.worker_manager_id)},
            {"key": CLUSTER_TAG, "value": tag_value(config.worker_scheduler_address)},
        ],
    }
