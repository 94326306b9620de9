"""Tasks as DescribeTasks and the metadata endpoint show them. Pure."""

from __future__ import annotations

from scaler.testing.aws.ecs.rules import Fields, tag_pairs
from scaler.testing.aws.ecs.task import Deprovisioning, EcsTask, Exit, Pending, Provisioning, Starting, Stopped

_NETWORK_STATUS: dict[type, str] = {Provisioning: "PRECREATED", Deprovisioning: "DETACHING", Stopped: "DELETED"}


def shown_task(task: EcsTask, *, with_tags: bool) -> Fields:
    """Return a task as ECS shows it."""
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
    """Return what the metadata endpoint, version 4, tells a container about its task or about itself."""
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
