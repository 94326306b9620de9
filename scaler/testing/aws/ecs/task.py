"""The lifecycle of a task, and how the task is shown. Pure: returns commands for its container.

PROVISIONING > PENDING > RUNNING > DEACTIVATING > STOPPING > DEPROVISIONING > STOPPED. A task that is stopped before
its container has started skips to DEPROVISIONING.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaler.testing.aws.ecs.definitions import TaskDefinition
from scaler.testing.aws.ecs.rules import EcsTimes, Fields, tag_pairs


@dataclass(frozen=True, slots=True)
class StartTask:
    arn: str


@dataclass(frozen=True, slots=True)
class TerminateTask:
    arn: str


@dataclass(frozen=True, slots=True)
class KillTask:
    arn: str


Command = StartTask | TerminateTask | KillTask
"""Commands for the task's container. Terminate sends SIGTERM, kill sends SIGKILL."""


@dataclass(frozen=True, slots=True)
class Provisioning:
    until: float


@dataclass(frozen=True, slots=True)
class Pending:
    until: float


@dataclass(frozen=True, slots=True)
class Starting:
    """The container was asked to start. Shown as PENDING."""


@dataclass(frozen=True, slots=True)
class Running:
    pass


@dataclass(frozen=True, slots=True)
class Deactivating:
    until: float
    kill_at: float | None = None
    """Set if SIGTERM was already sent."""


@dataclass(frozen=True, slots=True)
class Stopping:
    kill_at: float
    """Infinite: already killed."""


@dataclass(frozen=True, slots=True)
class Deprovisioning:
    until: float


@dataclass(frozen=True, slots=True)
class Stopped:
    at: float


Phase = Provisioning | Pending | Starting | Running | Deactivating | Stopping | Deprovisioning | Stopped


@dataclass(frozen=True, slots=True)
class StopCause:
    code: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended. Without a code, the container never ran."""

    code: int | None
    reason: str = ""


@dataclass(slots=True)
class Order:
    """Parameters of a RunTask request, shared by the tasks of one call."""

    cluster_arn: str
    definition: TaskDefinition
    provider: str | None
    network: dict[str, object]
    overrides: dict[str, object]
    group: str
    started_by: str | None
    platform_version: str


class EcsTask:
    """One task. Invariants: `stop` is set once the desired status is STOPPED. `exit` is set once the container has
    ended or will never start.
    """

    def __init__(self, arn: str, order: Order, tags: dict[str, str], now: float, times: EcsTimes) -> None:
        self.arn = arn
        self.order = order
        self.tags = tags
        self.created_at = now
        self.phase: Phase = Provisioning(now + times.provisioning)
        self.stop: StopCause | None = None
        self.exit: Exit | None = None
        self.pull_started_at: float | None = None
        self.started_at: float | None = None
        self.exited_at: float | None = None
        self.version = 1

    @property
    def last_status(self) -> str:
        match self.phase:
            case Starting():
                return "PENDING"
            case phase:
                return type(phase).__name__.upper()

    @property
    def due(self) -> float:
        """Time of the next timed state change. Infinite: none."""
        match self.phase:
            case Provisioning(until) | Pending(until) | Deprovisioning(until):
                return until
            case Deactivating(until, kill_at):
                return until if kill_at is None else min(until, kill_at)
            case Stopping(kill_at):
                return -math.inf if self.exit is not None else kill_at
            case Starting() | Running() | Stopped():
                return math.inf

    def ask_to_stop(self, code: str, reason: str, now: float, times: EcsTimes) -> None:
        """Set the desired status to STOPPED. The first reason is kept."""
        if self.stop is not None:
            return
        self.stop = StopCause(code, reason, now)
        match self.phase:
            case Provisioning() | Pending():
                self.exit = Exit(None)
                self._enter(Deprovisioning(now + times.deprovisioning))
            case Running():
                self._enter(Deactivating(now + times.deactivating))
            case _:
                pass  # Starting: `started` checks for a stop

    def give_notice(self, now: float, times: EcsTimes) -> list[Command]:
        """Reclaim spot capacity: SIGTERM at once, SIGKILL after the notice."""
        if self.stop is not None:
            return []
        running = isinstance(self.phase, Running)
        self.ask_to_stop("SpotInterruption", "Your Spot Task was interrupted.", now, times)
        if not running:
            return []
        self._enter(Deactivating(now + times.deactivating, now + times.spot_notice))
        return [TerminateTask(self.arn)]

    def started(self, now: float, times: EcsTimes) -> None:
        self.started_at = now
        self._enter(Running() if self.stop is None else Deactivating(now + times.deactivating))

    def failed_to_start(self, reason: str, now: float, times: EcsTimes) -> None:
        if self.stop is None:
            self.stop = StopCause("TaskFailedToStart", reason, now)
        self.exit = Exit(None, reason)
        self._enter(Deprovisioning(now + times.deprovisioning))

    def exited(self, code: int, reason: str, now: float, times: EcsTimes) -> None:
        self.exit = Exit(code, reason)
        self.exited_at = now
        if self.stop is None:
            self.ask_to_stop("EssentialContainerExited", "Essential container in task exited", now, times)

    def advance(self, now: float, times: EcsTimes) -> list[Command]:
        match self.phase:
            case Provisioning():
                self.pull_started_at = now
                self._enter(Pending(now + times.pending))
            case Pending():
                self._enter(Starting())
                return [StartTask(self.arn)]
            case Deactivating(until, None) if self.exit is None:
                self._enter(Stopping(until + self.order.definition.stop_seconds))
                return [TerminateTask(self.arn)]
            case Deactivating(_, kill_at):
                self._enter(Stopping(now if kill_at is None else kill_at))
            case Stopping() if self.exit is not None:
                self._enter(Deprovisioning(now + times.deprovisioning))
            case Stopping():
                self._enter(Stopping(math.inf))
                return [KillTask(self.arn)]
            case Deprovisioning():
                self._enter(Stopped(now))
            case Starting() | Running() | Stopped():
                pass
        return []

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.version += 1


_NETWORK_STATUS: dict[type, str] = {Provisioning: "PRECREATED", Deprovisioning: "DETACHING", Stopped: "DELETED"}


def shown_task(task: EcsTask, *, with_tags: bool) -> Fields:
    order = task.order
    body = order.definition.body
    shown: Fields = {
        "attachments": [_network(task)],
        "attributes": [{"name": "ecs.cpu-architecture", "value": "x86_64"}],
        "availabilityZone": f"{task.arn.split(':')[3]}a",
        "capacityProviderName": order.provider,
        "clusterArn": order.cluster_arn,
        "connectivity": None if task.pull_started_at is None else "CONNECTED",
        "connectivityAt": task.pull_started_at,
        "containers": [_container(task)],
        "cpu": body["cpu"],
        "createdAt": task.created_at,
        "desiredStatus": "RUNNING" if task.stop is None else "STOPPED",
        "enableExecuteCommand": False,
        "ephemeralStorage": body.get("ephemeralStorage", {"sizeInGiB": 20}),
        "executionStoppedAt": task.exited_at,
        "group": order.group,
        "healthStatus": "UNKNOWN",
        "lastStatus": task.last_status,
        "launchType": "FARGATE",
        "memory": body["memory"],
        "overrides": {"containerOverrides": [], "inferenceAcceleratorOverrides": [], **order.overrides},
        "platformFamily": "Linux",
        "platformVersion": order.platform_version,
        "pullStartedAt": task.pull_started_at,
        "pullStoppedAt": task.started_at,
        "startedAt": task.started_at,
        "startedBy": order.started_by,
        "tags": tag_pairs(task.tags) if with_tags else [],
        "taskArn": task.arn,
        "taskDefinitionArn": order.definition.arn,
        "version": task.version,
    }
    if task.stop is not None:
        shown |= {"stopCode": task.stop.code, "stoppedReason": task.stop.reason, "stoppingAt": task.stop.at}
    if isinstance(task.phase, Stopped):
        shown["stoppedAt"] = task.phase.at
    return {name: value for name, value in shown.items() if value is not None}


def metadata(task: EcsTask, *, of_task: bool) -> Fields:
    body = task.order.definition.body
    container = task.order.definition.container
    own: Fields = {
        "DockerId": f"{task.arn.rpartition('/')[2]}-1",
        "Name": container["name"],
        "Image": container["image"],
        "Labels": {"com.amazonaws.ecs.cluster": task.order.cluster_arn, "com.amazonaws.ecs.task-arn": task.arn},
        "DesiredStatus": "RUNNING" if task.stop is None else "STOPPED",
        "KnownStatus": "RUNNING" if task.exit is None else "STOPPED",
        "Limits": {"CPU": container["cpu"]},
        "Type": "NORMAL",
    }
    if not of_task:
        return own
    return {
        "Cluster": task.order.cluster_arn,
        "TaskARN": task.arn,
        "Family": body["family"],
        "Revision": str(body["revision"]),
        "DesiredStatus": own["DesiredStatus"],
        "KnownStatus": task.last_status,
        "Limits": {"CPU": int(body["cpu"]) / 1024, "Memory": int(body["memory"])},
        "AvailabilityZone": f"{task.arn.split(':')[3]}a",
        "LaunchType": "FARGATE",
        "Containers": [own],
    }


def _network(task: EcsTask) -> Fields:
    subnets = task.order.network["subnets"]
    subnet = subnets[0] if isinstance(subnets, list) else ""
    return {
        "id": f"{task.arn.rpartition('/')[2][:8]}-eni",
        "type": "ElasticNetworkInterface",
        "status": _NETWORK_STATUS.get(type(task.phase), "ATTACHED"),
        "details": [{"name": "subnetId", "value": subnet}],
    }


def _container(task: EcsTask) -> Fields:
    container = task.order.definition.container
    shown: Fields = {
        "containerArn": f"{task.arn.replace(':task/', ':container/')}/1",
        "taskArn": task.arn,
        "name": container["name"],
        "image": container["image"],
        "lastStatus": _container_status(task),
        "networkInterfaces": [],
        "healthStatus": "UNKNOWN",
        "cpu": str(container["cpu"]),
    }
    shown |= {name: str(container[name]) for name in ("memory", "memoryReservation") if name in container}
    match task.exit:
        case Exit(code, reason):
            shown |= {"exitCode": code} if code is not None else {}
            shown |= {"reason": reason} if reason else {}
        case None if task.started_at is not None:
            shown["runtimeId"] = f"{task.arn.rpartition('/')[2]}-1"
        case None:
            pass
    return shown


def _container_status(task: EcsTask) -> str:
    if task.exit is not None:
        return "STOPPED"
    return "PENDING" if isinstance(task.phase, Provisioning | Pending | Starting) else "RUNNING"
