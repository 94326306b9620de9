"""The backend of the type aws_raw_ecs. Retries an unanswered RunTask with the same client token."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import botocore.session

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager import backend as frame
from scaler.worker_manager.aws import calls
from scaler.worker_manager.aws import package as packages
from scaler.worker_manager.aws.calls import AwsClient, AwsError, Fields
from scaler.worker_manager.aws.prices import FARGATE_MINIMUM_SECONDS, fargate_price
from scaler.worker_manager.aws.resources import check_secrets, secrets_with
from scaler.worker_manager.aws.setup import MANAGED_TAG
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.backend import CONTAINER, WORKER_COMMAND, BackendError, Capacity
from scaler.worker_manager.polled import STOP_REASON, PolledBackend, SeenUnit, Stopped

STOP_SECONDS = 120  # time from SIGTERM to SIGKILL: Fargate's maximum, and a spot task's notice
STOP_GRACE_SECONDS = 110.0  # grace period for running tasks of a stopped worker
SETUP = "`scaler_worker_manager aws_raw_ecs setup`"


def source_of(config: AwsRawEcsConfig) -> tuple[str, list[str]]:
    packages.check_source(config.ecs_task_image, config.s3_bucket, "ecs_task_image", "s3_bucket")
    if config.ecs_task_image is not None:
        return config.ecs_task_image, list(WORKER_COMMAND)
    package, family = packages.package_of(config, config.event_loop), config.ecs_task_definition
    return packages.BASE_IMAGE, packages.install_command(
        package, config.aws_region, config.s3_bucket, family, WORKER_COMMAND[-1]
    )


def wanted_definition(config: AwsRawEcsConfig, current: Mapping[str, Any] | None, extras: Mapping[str, Any]) -> Fields:
    """Return the definition to register, without family and tags. Raises UsageError. current: the newest revision; its
    roles, volumes, variables, and logging are kept. extras: `logConfiguration`, `credential` (its parameter's ARN), and
    more."""
    image, command = source_of(config)
    known = registered(current) if current else {}
    others = {name: value for name, value in extras.items() if name not in ("logConfiguration", "credential")}
    containers = [dict(container) for container in known.get("containerDefinitions", [])]
    container: Fields = frame.worker_container(containers, _named(config)) if containers else {"name": CONTAINER}
    container |= {
        "image": image,
        "command": command,
        "essential": True,
        "stopTimeout": STOP_SECONDS,
        # An init process reaps orphaned processes of tasks.
        "linuxParameters": {**(container.get("linuxParameters") or {}), "initProcessEnabled": True},
    }
    if "logConfiguration" in extras:
        container["logConfiguration"] = extras["logConfiguration"]
    if "credential" in extras:
        container["secrets"] = secrets_with(container.get("secrets") or (), extras["credential"])
    if not container.get("secrets"):
        container.pop("secrets", None)  # ECS omits empty lists
    if known.get("runtimePlatform") or config.ecs_cpu_architecture != "X86_64":
        others = {**others, "runtimePlatform": packages.platform_of(config.ecs_cpu_architecture)}
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
    """Return the fields of a definition that RegisterTaskDefinition accepts, without family and tags."""
    return {name: value for name, value in definition.items() if name in _registered_fields()}


@cache
def _registered_fields() -> set[str]:
    model = botocore.session.get_session().get_service_model("ecs")
    return {*model.operation_model("RegisterTaskDefinition").input_shape.members} - {"family", "tags"}


def _named(config: AwsRawEcsConfig) -> str:
    return f"ecs_task_definition = {config.ecs_task_definition!r}"


def overrides(container: str, config: AwsRawEcsConfig) -> Fields:
    grace = STOP_GRACE_SECONDS
    document = frame.worker_document(config, config.ecs_task_cpu, unit_id_from="ecs", stop_grace_seconds=grace)
    variable = {"name": WORKER_CONFIG_VARIABLE, "value": document}
    return {"containerOverrides": [{"name": container, "environment": [variable]}]}


def started_by(config: AwsRawEcsConfig) -> str:
    return f"scaler/{frame.owner_digest(config, 28)}"


def run_request(config: AwsRawEcsConfig, definition: Mapping[str, Any]) -> Fields:
    tags = calls.owner_tags(config.worker_manager_id, config.worker_scheduler_address)
    network = {
        "subnets": list(config.ecs_subnets),
        "assignPublicIp": "ENABLED" if config.ecs_assign_public_ip else "DISABLED",
    }
    if config.ecs_security_groups:
        network["securityGroups"] = list(config.ecs_security_groups)
    container = frame.worker_container(definition["containerDefinitions"], _named(config))
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


def ensure_definition(config: AwsRawEcsConfig, ecs: AwsClient) -> Fields:
    """Return the newest task definition; if it is missing or outdated, register a new one. Without an image, a
    definition that installs another version of scaler is an error. Raises AwsError and UsageError."""
    family = config.ecs_task_definition
    current = describe_definition(family, ecs)
    wanted = wanted_definition(config, current, {})
    if current is not None and registered(current) == wanted:
        return current
    if config.ecs_task_image is None:
        containers = current["containerDefinitions"] if current is not None else ()
        if source_of(config)[1] not in [container.get("command") for container in containers]:
            raise UsageError(
                f"the task definition {family} does not install this version of scaler with its requirements from "
                f"{config.s3_bucket}: run {SETUP}"
            )
    if current is None:
        _log.info(
            "the task definition %s has no roles: tasks have no logs and cannot use private images (%s)", family, SETUP
        )
    made = register(family, ecs, current, wanted)
    _log.info("registered the task definition %s:%d", family, made["revision"])
    return made


def register(family: str, ecs: AwsClient, current: Fields | None, wanted: Fields) -> Fields:
    tags = [{"key": MANAGED_TAG, "value": "aws_raw_ecs"}] if current is None else current["tags"]
    # ECS rejects an empty list of tags.
    answer = ecs.call("RegisterTaskDefinition", family=family, **wanted, **({"tags": tags} if tags else {}))
    made: Fields = answer["taskDefinition"]
    return made


def describe_definition(family: str, ecs: AwsClient) -> Fields | None:
    answer = ecs.find("DescribeTaskDefinition", "ClientException", taskDefinition=family, include=["TAGS"])
    if answer is None or answer["taskDefinition"].get("status", "ACTIVE") != "ACTIVE":
        return None
    return {
        **answer["taskDefinition"],
        "tags": [tag for tag in answer.get("tags", []) if not tag["key"].startswith("aws:")],
    }


USUAL_STARTUP_SECONDS = 45.0  # time from RunTask until the worker connects, on Fargate
MAX_STARTED = 10
LAUNCHES_AT_ONCE, LAUNCHES_PER_SECOND = 90, 18  # a tenth below the service quotas of Fargate
UNANSWERED_SECONDS = 30.0  # ECS lists the tasks of an unanswered call within this time
MAX_DESCRIBED = 100
_STATES = {
    "RUNNING": UnitState.RUNNING,
    **dict.fromkeys(("DEACTIVATING", "STOPPING", "DEPROVISIONING"), UnitState.STOPPING),
}
"""In all other states except STOPPED, the task is pending."""

_log = logging.getLogger(__name__)


class EcsBackend(PolledBackend):
    """Units are ECS tasks. Raises UsageError for settings that ECS rejects."""

    def __init__(self, config: AwsRawEcsConfig, ecs: AwsClient | None = None) -> None:
        config = calls.with_region(config)
        cpus, memory_gb = config.ecs_task_cpu, config.ecs_task_memory
        price = fargate_price(
            config.aws_region, cpus, memory_gb, config.ecs_cpu_architecture, config.ecs_capacity_provider
        )
        super().__init__(
            service="ECS",
            noun="tasks",
            stop_by_hand=f"stop each with `aws ecs stop-task --region {config.aws_region} "
            f"--cluster {config.ecs_cluster} --task TASK`",
            capacity=Capacity.of_units(
                cpus,
                frame.most_units(config.max_task_concurrency, cpus),
                unit_memory_bytes=memory_gb * 1024**3,
                unit_price=price or 0.0,
                unit_minimum_seconds=FARGATE_MINIMUM_SECONDS,
                usual_startup_seconds=USUAL_STARTUP_SECONDS,
            ),
            heartbeat_seconds=config.heartbeat_interval_seconds,
        )
        packages.check_source(config.ecs_task_image, config.s3_bucket, "ecs_task_image", "s3_bucket")
        self._config = config
        self._ecs = AwsClient(config, "ecs") if ecs is None else ecs
        self._template: Fields | None = None
        self._unanswered: tuple[Fields, float] | None = None
        self._launches = float(LAUNCHES_AT_ONCE)  # launches allowed now; if negative, the next launch waits
        self._launched_at = time.monotonic()
        if config.aws_endpoint_url is None:
            frame.warn_of_loopback("workers on ECS", config.worker_scheduler_address)

    def start_some(self, count: int) -> list[str]:
        return self._run(self._prepared() | {"count": min(count, MAX_STARTED), "clientToken": uuid.uuid4().hex})

    def started_unanswered(self) -> list[str]:
        return [] if self._unanswered is None else self._run(self._unanswered[0])

    def stop_one(self, unit_id: str) -> Stopped:
        try:
            answer = self._ecs.call("StopTask", cluster=self._config.ecs_cluster, task=unit_id, reason=STOP_REASON)
        except AwsError as error:
            if error.code == "InvalidParameterException" and "not found" in error.message:
                return "not found"
            raise
        if answer["task"].get("desiredStatus") != "STOPPED":
            raise AwsError("ECS StopTask did not stop a task, and gave no reason", "broken")
        return "stopping"

    def list_ids(self, *, search: bool) -> list[str]:
        # Tasks that an earlier process is stopping may still be running.
        statuses = ("RUNNING", "STOPPED") if search else ("RUNNING",)
        parameters = {"cluster": self._config.ecs_cluster, "startedBy": started_by(self._config)}
        try:
            arns = [
                arn
                for status in statuses
                for arn in self._ecs.items("ListTasks", "taskArns", **parameters, desiredStatus=status)
            ]
        except AwsError as error:
            raise with_hint(error) from error
        if self._unanswered is not None and time.monotonic() - self._unanswered[1] > UNANSWERED_SECONDS:
            self._unanswered = None
        return [unit_id_of(arn) for arn in arns]

    def describe(self, unit_ids: Sequence[str]) -> dict[str, SeenUnit]:
        now = datetime.now(UTC)
        seen = {}
        for task in described(self._ecs, self._config.ecs_cluster, unit_ids):
            age = calls.seconds_between(task.get("createdAt"), task.get("stoppedAt") or now)
            seen[unit_id_of(task["taskArn"])] = SeenUnit(state_of(task), age, reason_of(task))
        return seen

    def disconnect(self) -> None:
        self._ecs.close()

    def _run(self, request: Fields) -> list[str]:
        count = int(request["count"])
        passed = time.monotonic() - self._launched_at
        self._launched_at += passed
        self._launches = min(LAUNCHES_AT_ONCE, self._launches + passed * LAUNCHES_PER_SECOND) - count
        time.sleep(max(0.0, -self._launches / LAUNCHES_PER_SECOND))
        try:
            answer = self._ecs.call("RunTask", **request)
        except AwsError as error:
            if error.is_uncertain:
                self._unanswered = (request, time.monotonic())
            elif error.kind == "refused":
                self._unanswered = None
            raise with_hint(error) from error
        self._unanswered = None
        unit_ids = [unit_id_of(task["taskArn"]) for task in answer["tasks"]]
        if len(unit_ids) < count:
            texts = ((each.get("reason"), each.get("detail")) for each in answer.get("failures", ()))
            reasons = sorted({calls.steady(": ".join(filter(None, each))) for each in texts})
            raise BackendError(f"ECS did not start all tasks: {'; '.join(reasons) or 'no reason given'}", unit_ids)
        return unit_ids

    def _prepared(self) -> Fields:
        if self._template is None:
            try:
                self._template = run_request(self._config, ensure_definition(self._config, self._ecs))
            except UsageError as error:
                raise BackendError(str(error)) from error  # a user may correct the definition while the manager runs
        return self._template


def described(ecs: AwsClient, cluster: str, tasks: Sequence[str]) -> Iterator[Fields]:
    for at in range(0, len(tasks), MAX_DESCRIBED):
        yield from ecs.call("DescribeTasks", cluster=cluster, tasks=tasks[at : at + MAX_DESCRIBED])["tasks"]


def unit_id_of(arn: str) -> str:
    return arn.rpartition("/")[2]


def state_of(task: Mapping[str, Any]) -> UnitState:
    """Return the state of a task. STOPPED: by Scaler, or exit code 0. FAILED: also if ECS reclaimed the task."""
    status = task.get("lastStatus", "")
    if status != "STOPPED":
        is_stopping = task.get("desiredStatus") == "STOPPED"
        return UnitState.STOPPING if is_stopping else _STATES.get(status, UnitState.PENDING)
    code = task.get("stopCode")
    if code == "UserInitiated" and str(task.get("stoppedReason", "")).startswith(STOP_REASON):
        return UnitState.STOPPED
    exit_codes = {container.get("exitCode") for container in task.get("containers", [])}
    in_order = code == "EssentialContainerExited" and exit_codes == {0}
    return UnitState.STOPPED if in_order else UnitState.FAILED


def reason_of(task: Mapping[str, Any]) -> str:
    reason = ": ".join(part for part in (task.get("stopCode"), calls.steady(task.get("stoppedReason", ""))) if part)
    return packages.end_text(reason.rstrip("."), task.get("containers", ()))


def with_hint(error: AwsError) -> AwsError:
    hint = ""
    if error.code == "ClusterNotFoundException":
        hint = f"run {SETUP} to create the cluster, or change ecs_cluster"
    elif "capacity provider" in error.message:
        hint = f"run {SETUP} to attach ecs_capacity_provider to the cluster"
    return AwsError(f"{error}; {hint}", error.kind, error.code, error.message) if hint else error
