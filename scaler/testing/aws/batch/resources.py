"""Compute environments and job queues of the emulated Batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scaler.testing.aws.batch import values
from scaler.testing.aws.batch.values import JSON, Invalid, page

STATES = ("ENABLED", "DISABLED")
MAX_ENVIRONMENTS_OF_A_QUEUE = 3
PAGE = 100


@dataclass(slots=True, eq=False)
class BatchResource:
    """Common base of compute environments and queues. `status` changes to VALID, or the resource is removed."""

    serial: int
    name: str
    arn: str
    state: str
    tags: dict[str, str]
    status: str = "CREATING"

    @property
    def open(self) -> bool:
        return self.state == "ENABLED" and self.status in ("VALID", "UPDATING")

    def check_change(self, verb: str) -> None:
        if self.status != "VALID":
            raise Invalid(f"Cannot {verb}, resource is being modified")

    def check_delete(self) -> None:
        if self.state != "DISABLED":
            raise Invalid("Cannot delete, state must be DISABLED")
        self.check_change("delete")


@dataclass(slots=True, eq=False)
class ComputeEnvironment(BatchResource):
    """Hosts for jobs. used_vcpus: in use now."""

    type: str = "MANAGED"
    service_role: str | None = None
    resources: JSON = field(default_factory=dict)
    uuid: str = ""
    used_vcpus: float = 0.0

    @property
    def max_vcpus(self) -> float:
        return float(self.resources.get("maxvCpus", 0))

    def describe(self) -> JSON:
        shown: JSON = {
            "computeEnvironmentName": self.name,
            "computeEnvironmentArn": self.arn,
            "ecsClusterArn": f"{self.arn.replace(':batch:', ':ecs:').partition(':compute-')[0]}:cluster/{self.name}",
            "tags": self.tags,
            "type": self.type,
            "state": self.state,
            "status": self.status,
            "statusReason": "ComputeEnvironment Healthy" if self.status == "VALID" else "",
            "computeResources": self.resources,
            "containerOrchestrationType": "ECS",
            "uuid": self.uuid,
        }
        if self.service_role:
            shown["serviceRole"] = self.service_role
        return shown


@dataclass(slots=True, eq=False)
class JobQueue(BatchResource):
    """A queue. `JobRunner` contains its waiting jobs."""

    priority: int = 1
    environments: list[ComputeEnvironment] = field(default_factory=list)
    actions: list[JSON] = field(default_factory=list)
    stuck: str = ""
    """Injected reason why nothing is placed. Empty: jobs are placed."""

    def describe(self) -> JSON:
        fargate = any(each.resources.get("type") in values.FARGATE for each in self.environments)
        return {
            "jobQueueName": self.name,
            "jobQueueArn": self.arn,
            "state": self.state,
            "status": self.status,
            "statusReason": "JobQueue Healthy" if self.status == "VALID" else "",
            "priority": self.priority,
            "computeEnvironmentOrder": [
                {"order": order, "computeEnvironment": each.arn} for order, each in enumerate(self.environments, 1)
            ],
            "serviceEnvironmentOrder": [],
            "jobQueueType": "ECS_FARGATE" if fargate else "ECS",
            "tags": self.tags,
            "jobStateTimeLimitActions": self.actions,
        }


class BatchResources:
    """All compute environments and queues of an account. A deleted resource stays until `settle`."""

    def __init__(self, arn_prefix: str, new_id: Callable[[], str]) -> None:
        self._arn_prefix = arn_prefix
        self._new_id = new_id
        self._serial = 0
        self.environments: dict[str, ComputeEnvironment] = {}
        self.queues: dict[str, JobQueue] = {}

    def create_environment(self, request: Mapping[str, Any]) -> ComputeEnvironment:
        name = values.checked_name(request, "computeEnvironmentName")
        values.refuse_members(request, ("eksConfiguration", "unmanagedvCpus"))
        kind = values.one_of(request, "type", ("MANAGED", "UNMANAGED"), "")
        resources = dict(request.get("computeResources") or {})
        if kind == "MANAGED":
            values.check_compute_resources(resources)
        elif resources:
            raise Invalid("computeResources are for MANAGED compute environments only")
        if name in self.environments:
            raise Invalid("Object already exists")
        state = values.one_of(request, "state", STATES, "ENABLED")
        arn, tags = f"{self._arn_prefix}compute-environment/{name}", values.tags(request.get("tags"))
        environment = ComputeEnvironment(self._next(), name, arn, state, tags)
        environment.type, environment.resources = kind, resources
        environment.service_role = request.get("serviceRole")
        environment.uuid = self._new_id()
        self.environments[name] = environment
        return environment

    def update_environment(self, request: Mapping[str, Any]) -> ComputeEnvironment:
        environment = self.environment(values.need(request, "computeEnvironment"))
        values.refuse_members(request, ("eksConfiguration", "unmanagedvCpus"))
        environment.check_change("update")
        resources = {**environment.resources, **(request.get("computeResources") or {})}
        if environment.type == "MANAGED":
            values.check_compute_resources(resources)
        environment.state = values.one_of(request, "state", STATES, environment.state)
        environment.resources = resources
        environment.service_role = request.get("serviceRole", environment.service_role)
        environment.status = "UPDATING"
        return environment

    def delete_environment(self, request: Mapping[str, Any]) -> ComputeEnvironment | None:
        try:
            environment = self.environment(values.need(request, "computeEnvironment"))
        except Invalid:
            return None
        environment.check_delete()
        if any(environment in queue.environments for queue in self.queues.values()):
            raise Invalid("Cannot delete, found existing JobQueue relationship")
        environment.status = "DELETING"
        return environment

    def create_queue(self, request: Mapping[str, Any]) -> JobQueue:
        name = values.checked_name(request, "jobQueueName")
        values.refuse_members(request, ("schedulingPolicyArn", "serviceEnvironmentOrder"))
        if name in self.queues:
            raise Invalid("Object already exists")
        values.need(request, "priority")
        environments = self._ordered(values.need(request, "computeEnvironmentOrder"))
        state = values.one_of(request, "state", STATES, "ENABLED")
        arn, tags = f"{self._arn_prefix}job-queue/{name}", values.tags(request.get("tags"))
        queue = JobQueue(self._next(), name, arn, state, tags)
        queue.priority, queue.environments = request["priority"], environments
        queue.actions = values.time_limit_actions(request)
        self.queues[name] = queue
        return queue

    def update_queue(self, request: Mapping[str, Any]) -> JobQueue:
        queue = self.queue(values.need(request, "jobQueue"))
        values.refuse_members(request, ("schedulingPolicyArn", "serviceEnvironmentOrder"))
        queue.check_change("update")
        if request.get("computeEnvironmentOrder"):
            queue.environments = self._ordered(request["computeEnvironmentOrder"])
        queue.state = values.one_of(request, "state", STATES, queue.state)
        queue.priority = request.get("priority", queue.priority)
        if "jobStateTimeLimitActions" in request:
            queue.actions = values.time_limit_actions(request)
        queue.status = "UPDATING"
        return queue

    def delete_queue(self, request: Mapping[str, Any]) -> JobQueue | None:
        try:
            queue = self.queue(values.need(request, "jobQueue"))
        except Invalid:
            return None
        queue.check_delete()
        queue.status = "DELETING"
        return queue

    def describe(self, member: str, request: Mapping[str, Any]) -> JSON:
        places = self.queues if member == "jobQueues" else self.environments
        wanted = set(request.get(member) or ())
        found = [each for each in places.values() if not wanted or {each.name, each.arn} & wanted]
        shown, token = page(found, lambda each: each.serial, request, PAGE)
        return {member: [each.describe() for each in shown], **token}

    def settle(self, place: BatchResource) -> None:
        if place.status != "DELETING":
            place.status = "VALID"
        elif isinstance(place, JobQueue):
            del self.queues[place.name]
        else:
            del self.environments[place.name]

    def environment(self, wanted: str) -> ComputeEnvironment:
        name = wanted.removeprefix(f"{self._arn_prefix}compute-environment/")
        if name not in self.environments:
            raise Invalid(f"ComputeEnvironment {wanted} does not exist")
        return self.environments[name]

    def queue(self, wanted: str) -> JobQueue:
        name = wanted.removeprefix(f"{self._arn_prefix}job-queue/")
        if name not in self.queues:
            raise Invalid(f"JobQueue {wanted} not found")
        return self.queues[name]

    def tags_of(self, arn: str) -> dict[str, str] | None:
        for place in (*self.environments.values(), *self.queues.values()):
            if place.arn == arn:
                return place.tags
        return None

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _ordered(self, order: list[JSON]) -> list[ComputeEnvironment]:
        if len(order) > MAX_ENVIRONMENTS_OF_A_QUEUE:
            raise Invalid(f"a queue has at most {MAX_ENVIRONMENTS_OF_A_QUEUE} compute environments, got {len(order)}")
        ordered = sorted(order, key=lambda each: int(each["order"]))
        found = [self.environment(each["computeEnvironment"]) for each in ordered]
        for environment in found:
            if environment.status not in ("VALID", "UPDATING"):
                raise Invalid(f"{environment.arn} is not valid")
        if len({each.resources.get("type") in values.FARGATE for each in found}) > 1:
            raise Invalid("EC2 and Fargate compute environments cannot be mixed in a queue")
        return found
