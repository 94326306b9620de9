"""Task definitions: families of numbered revisions, for Fargate. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from scaler.testing.aws.ecs.rules import (
    DEFAULT_STOP_SECONDS,
    FARGATE_MEMORY_MIB,
    MAX_STOP_SECONDS,
    Fields,
    checked_tags,
    client_fault,
    invalid,
    page,
    tag_pairs,
)

_KEPT = (
    "taskRoleArn", "executionRoleArn", "networkMode", "requiresCompatibilities", "cpu", "memory", "pidMode", "ipcMode",
    "runtimePlatform", "ephemeralStorage",
)  # fmt: skip
_CONTAINER_DEFAULTS: Fields = {
    "cpu": 0,
    "portMappings": [],
    "essential": True,
    "environment": [],
    "mountPoints": [],
    "volumesFrom": [],
    "systemControls": [],
}


@dataclass(slots=True)
class TaskDefinition:
    """A revision. `body`: answer of DescribeTaskDefinition, without tags."""

    body: Fields
    tags: dict[str, str]

    @property
    def arn(self) -> str:
        return str(self.body["taskDefinitionArn"])

    @property
    def is_active(self) -> bool:
        return bool(self.body["status"] == "ACTIVE")

    @property
    def container(self) -> Fields:
        container: Fields = self.body["containerDefinitions"][0]
        return container

    @property
    def stop_seconds(self) -> float:
        """From SIGTERM to SIGKILL."""
        return float(self.container.get("stopTimeout", DEFAULT_STOP_SECONDS))


class TaskDefinitions:
    def __init__(self, arn_of: Callable[[str], str]) -> None:
        """arn_of: makes an ARN of `task-definition/family:1`."""
        self._arn_of = arn_of
        self._revisions: dict[str, list[TaskDefinition]] = {}

    def register(self, request: Fields, now: float) -> Fields:
        family = request.get("family") or ""
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,255}", family):
            raise client_fault("Family contains invalid characters.")
        containers = [_checked_container(container) for container in request.get("containerDefinitions") or ()]
        if len(containers) != 1:
            raise client_fault(f"The emulator runs tasks with one container, and {family} has {len(containers)}.")
        _check_fargate(request, containers[0])
        tags = checked_tags(request.get("tags"))
        revisions = self._revisions.setdefault(family, [])
        body = {
            "taskDefinitionArn": self._arn_of(f"task-definition/{family}:{len(revisions) + 1}"),
            "containerDefinitions": containers,
            "family": family,
            "revision": len(revisions) + 1,
            "volumes": [],
            "status": "ACTIVE",
            "requiresAttributes": [],
            "placementConstraints": [],
            "compatibilities": ["EC2", "FARGATE"],
            **{name: request[name] for name in _KEPT if name in request},
            "registeredAt": now,
            "registeredBy": "arn:aws:iam::123456789012:root",
        }
        revisions.append(TaskDefinition(body, tags))
        return {"taskDefinition": body, "tags": tag_pairs(tags)}

    def describe(self, request: Fields) -> Fields:
        found = self.find(request.get("taskDefinition") or "")
        if found is None:
            raise client_fault("Unable to describe task definition.")
        tags = {"tags": tag_pairs(found.tags)} if "TAGS" in (request.get("include") or ()) else {}
        return {"taskDefinition": found.body, **tags}

    def deregister(self, request: Fields, now: float) -> Fields:
        name = request.get("taskDefinition") or ""
        if not re.search(r":\d+$", name):
            raise client_fault("Missing revision")
        found = self.find(name)
        if found is None:
            raise client_fault("The specified task definition does not exist.")
        if not found.is_active:
            raise client_fault("The specified task definition is inactive. You can't deregister it again.")
        found.body = {**found.body, "status": "INACTIVE", "deregisteredAt": now}
        return {"taskDefinition": found.body}

    def list(self, request: Fields) -> Fields:
        family, status = request.get("familyPrefix"), request.get("status") or "ACTIVE"
        if status not in ("ACTIVE", "INACTIVE", "DELETE_IN_PROGRESS"):
            raise invalid(f"Invalid status {status}.")
        arns = [
            definition.arn
            for name in sorted(self._revisions)
            if family in (None, name)
            for definition in self._revisions[name]
            if definition.body["status"] == status
        ]
        if request.get("sort") == "DESC":
            arns.reverse()
        listed, more = page(arns, request)
        return {"taskDefinitionArns": listed, **more}

    def find(self, name: str) -> TaskDefinition | None:
        """Return the revision of an ARN or `family:1`, or the newest active revision of a family."""
        family, _, revision = name.rpartition("task-definition/")[2].partition(":")
        revisions = self._revisions.get(family, [])
        if revision:
            known = revision.isdigit() and 1 <= int(revision) <= len(revisions)
            return revisions[int(revision) - 1] if known else None
        return next((definition for definition in reversed(revisions) if definition.is_active), None)


def _checked_container(container: Fields) -> Fields:
    if not container.get("name") or not container.get("image"):
        raise client_fault("Container.image and Container.name should not be null or empty.")
    for unsupported in ("dependsOn", "repositoryCredentials"):
        if container.get(unsupported):
            raise client_fault(f"The emulator does not support {unsupported} in a container.")
    seconds = container.get("stopTimeout", DEFAULT_STOP_SECONDS)
    if not 0 < seconds <= MAX_STOP_SECONDS:
        raise client_fault(f"stopTimeout must be from 1 to {MAX_STOP_SECONDS} on Fargate, but is {seconds}.")
    return {**_CONTAINER_DEFAULTS, **container}


def _check_fargate(request: Fields, container: Fields) -> None:
    if "FARGATE" not in (request.get("requiresCompatibilities") or ()):
        raise client_fault("The emulator runs tasks on Fargate only: requiresCompatibilities must contain FARGATE.")
    if request.get("networkMode") != "awsvpc":
        raise client_fault("Fargate only supports network mode ‘awsvpc’.")  # noqa: RUF001 (as the service spells it)
    cpu, memory = request.get("cpu") or "", request.get("memory") or ""
    if not cpu.isdigit() or not memory.isdigit():
        raise client_fault("Fargate requires that 'cpu' and 'memory' be defined at the task level.")
    if int(memory) not in FARGATE_MEMORY_MIB.get(int(cpu), ()):
        raise client_fault(f"No Fargate configuration exists for given values: {cpu} CPU, {memory} memory.")
    logs = container.get("logConfiguration", {}).get("logDriver")
    if logs == "awslogs" and not request.get("executionRoleArn"):
        raise client_fault("Fargate requires task definition to have execution role ARN to support log driver awslogs.")
