"""Clusters with their capacity providers, and validation of RunTask requests. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scaler.testing.aws.ecs.definitions import TaskDefinition, TaskDefinitions
from scaler.testing.aws.ecs.rules import (
    CAPACITY_PROVIDERS,
    MAX_CLIENT_TOKEN_CHARACTERS,
    MAX_DESCRIBED,
    MAX_OVERRIDES_CHARACTERS,
    MAX_RUN_COUNT,
    MAX_SECURITY_GROUPS,
    MAX_SUBNETS,
    STARTED_BY,
    Fields,
    checked_tags,
    client_fault,
    invalid,
    tag_pairs,
)
from scaler.testing.aws.ecs.task import Order
from scaler.testing.aws.faults import ServiceError


@dataclass(slots=True)
class EcsCluster:
    arn: str
    name: str
    providers: list[str]
    strategy: list[Fields]
    settings: list[Fields]
    tags: dict[str, str]
    is_active: bool = True


class EcsClusters:
    def __init__(self, arn_of: Callable[[str], str], count_tasks: Callable[[str], tuple[int, int]]) -> None:
        """count_tasks: returns the numbers of running and pending tasks of a cluster ARN."""
        self._arn_of = arn_of
        self._count_tasks = count_tasks
        self._clusters: dict[str, EcsCluster] = {}

    def create(self, request: Fields) -> Fields:
        name = request.get("clusterName") or "default"
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,255}", name):
            raise invalid("Invalid cluster name.")
        cluster = self._clusters.get(name)
        if cluster is None or not cluster.is_active:
            providers, strategy = _checked_providers(request)
            settings = request.get("settings") or [{"name": "containerInsights", "value": "disabled"}]
            tags = checked_tags(request.get("tags"))
            cluster = EcsCluster(self._arn_of(f"cluster/{name}"), name, providers, strategy, settings, tags)
            self._clusters[name] = cluster
        return {"cluster": self._shown(cluster, ["TAGS", "SETTINGS"])}

    def describe(self, request: Fields) -> Fields:
        names = request.get("clusters") or ["default"]
        if len(names) > MAX_DESCRIBED:
            raise invalid(f"Clusters can not contain more than {MAX_DESCRIBED} items.")
        found = {name: self._clusters.get(_plain(name)) for name in names}
        include = request.get("include") or []
        return {
            "clusters": [self._shown(cluster, include) for cluster in found.values() if cluster is not None],
            "failures": [
                {"arn": self._arn_of(f"cluster/{_plain(name)}"), "reason": "MISSING"}
                for name, cluster in found.items()
                if cluster is None
            ],
        }

    def delete(self, request: Fields) -> Fields:
        cluster = self.find(request.get("cluster"))
        if sum(self._count_tasks(cluster.arn)):
            raise ServiceError("ClusterContainsTasksException", "The Cluster cannot be deleted while Tasks are active.")
        cluster.is_active = False
        return {"cluster": self._shown(cluster, ["SETTINGS"])}

    def put_providers(self, request: Fields) -> Fields:
        cluster = self.find(request.get("cluster"))
        cluster.providers, cluster.strategy = _checked_providers(request)
        return {"cluster": self._shown(cluster, ["SETTINGS"])}

    def find(self, name: str | None) -> EcsCluster:
        cluster = self._clusters.get(_plain(name or "default"))
        if cluster is None:
            raise ServiceError("ClusterNotFoundException", "Cluster not found.")
        if not cluster.is_active:
            raise ServiceError("ClusterNotFoundException", "The referenced cluster was inactive.")
        return cluster

    def _shown(self, cluster: EcsCluster, include: list[str]) -> Fields:
        running, pending = self._count_tasks(cluster.arn)
        return {
            "clusterArn": cluster.arn,
            "clusterName": cluster.name,
            "status": "ACTIVE" if cluster.is_active else "INACTIVE",
            "registeredContainerInstancesCount": 0,
            "runningTasksCount": running,
            "pendingTasksCount": pending,
            "activeServicesCount": 0,
            "statistics": [],
            "tags": tag_pairs(cluster.tags) if "TAGS" in include else [],
            "settings": cluster.settings if "SETTINGS" in include else [],
            "capacityProviders": cluster.providers,
            "defaultCapacityProviderStrategy": cluster.strategy,
        }


def _plain(name: str) -> str:
    return name.rpartition("cluster/")[2]


def _checked_providers(request: Fields) -> tuple[list[str], list[Fields]]:
    providers = list(request.get("capacityProviders") or ())
    for provider in providers:
        if provider not in CAPACITY_PROVIDERS:
            raise invalid(f"The specified capacity provider {provider} was not found. Specify a valid one.")
    strategy = list(request.get("defaultCapacityProviderStrategy") or ())
    check_strategy(strategy, providers)
    return providers, strategy


def check_strategy(strategy: list[Fields], attached: list[str]) -> None:
    for item in strategy:
        if item.get("capacityProvider") not in attached:
            raise invalid(
                "The specified capacity provider strategy cannot contain a capacity provider that is not associated "
                "with the cluster. Associate the capacity provider with the cluster and try again."
            )
    if strategy and not any(item.get("weight", 0) or item.get("base", 0) for item in strategy):
        raise invalid("A capacity provider strategy must contain a capacity provider with a weight above 0.")


def read_run(
    request: Fields, clusters: EcsClusters, definitions: TaskDefinitions
) -> tuple[list[Order], dict[str, str]]:
    cluster = clusters.find(request.get("cluster"))
    definition = _definition(request, definitions)
    count = request.get("count", 1)
    if not 1 <= count <= MAX_RUN_COUNT:
        raise invalid(f"Tasks count must be between 1 and {MAX_RUN_COUNT}.")
    started_by = request.get("startedBy")
    if started_by is not None and not STARTED_BY.fullmatch(started_by):
        raise invalid("startedBy must be up to 128 letters, numbers, hyphens (-), forward slashes (/) and underscores.")
    token = request.get("clientToken")
    if token is not None and not _is_token(token):
        raise invalid(f"clientToken must be 1 to {MAX_CLIENT_TOKEN_CHARACTERS} characters of ASCII 33 to 126.")
    network, overrides = _network(request), _overrides(request, definition)
    tags = checked_tags(request.get("tags"))
    if request.get("propagateTags") == "TASK_DEFINITION":
        tags = {**definition.tags, **tags}
    orders = [
        Order(
            cluster_arn=cluster.arn,
            definition=definition,
            provider=provider,
            network=network,
            overrides=overrides,
            group=request.get("group") or f"family:{definition.body['family']}",
            started_by=started_by,
            platform_version="1.4.0"
            if request.get("platformVersion") in (None, "LATEST")
            else request["platformVersion"],
        )
        for provider in _providers(request, cluster, count)
    ]
    return orders, tags


def container_command(order: Order) -> list[str]:
    container, override = order.definition.container, _override(order.overrides)
    command = override.get("command") or container.get("command") or []
    return [*container.get("entryPoint", []), *command] or ["python"]


def container_environment(order: Order) -> dict[str, str]:
    pairs = [*order.definition.container["environment"], *_override(order.overrides).get("environment", [])]
    return {pair["name"]: pair["value"] for pair in pairs}


def _override(overrides: Fields) -> Fields:
    found: list[Fields] = overrides.get("containerOverrides") or [{}]
    return found[0]


def _is_token(token: str) -> bool:
    return 1 <= len(token) <= MAX_CLIENT_TOKEN_CHARACTERS and all(33 <= ord(character) <= 126 for character in token)


def _definition(request: Fields, definitions: TaskDefinitions) -> TaskDefinition:
    if not request.get("taskDefinition"):
        raise client_fault("TaskDefinition can not be blank.")
    found = definitions.find(request["taskDefinition"])
    if found is None:
        raise client_fault("TaskDefinition not found.")
    if not found.is_active:
        raise client_fault("TaskDefinition is inactive")
    return found


def _network(request: Fields) -> Fields:
    network: Fields | None = (request.get("networkConfiguration") or {}).get("awsvpcConfiguration")
    if network is None:
        raise invalid("Network Configuration must be provided when networkMode 'awsvpc' is specified.")
    for name, least, most in (("subnets", 1, MAX_SUBNETS), ("securityGroups", 0, MAX_SECURITY_GROUPS)):
        if not least <= len(network.get(name) or ()) <= most:
            raise invalid(f"{name} can have {least} to {most} items.")
    if network.get("assignPublicIp", "DISABLED") not in ("ENABLED", "DISABLED"):
        raise invalid("assignPublicIp must be ENABLED or DISABLED.")
    return network


def _overrides(request: Fields, definition: TaskDefinition) -> Fields:
    overrides: Fields = request.get("overrides") or {}
    if len(json.dumps(overrides, separators=(",", ":"), ensure_ascii=False)) > MAX_OVERRIDES_CHARACTERS:
        raise invalid(f"Container Overrides length must be at most {MAX_OVERRIDES_CHARACTERS}")
    for override in overrides.get("containerOverrides") or ():
        if override.get("name") != definition.container["name"]:
            raise invalid(
                f"Override for container named {override.get('name')} is not a container in the TaskDefinition."
            )
    return overrides


def _providers(request: Fields, cluster: EcsCluster, count: int) -> Sequence[str | None]:
    strategy: list[Fields] | None = request.get("capacityProviderStrategy")
    if request.get("launchType") is not None:
        if strategy:
            raise invalid(
                "Specifying both a launch type and capacity provider strategy is not supported. "
                "Remove one and try again."
            )
        if request["launchType"] != "FARGATE":
            raise invalid("No Container Instances were found in your cluster.")
        return [None] * count
    strategy = strategy or cluster.strategy
    if not strategy:
        raise invalid("No Container Instances were found in your cluster.")  # launch type EC2 is the default
    check_strategy(strategy, cluster.providers)
    return _spread(strategy, count)


def _spread(strategy: list[Fields], count: int) -> list[str]:
    spread = [item["capacityProvider"] for item in strategy for _ in range(item.get("base", 0))][:count]
    weighted = {item["capacityProvider"]: item["weight"] for item in strategy if item.get("weight", 0)}
    extra = dict.fromkeys(weighted, 0)
    while weighted and len(spread) < count:
        chosen = min(weighted, key=lambda name: (extra[name] + 1) / weighted[name])
        extra[chosen] += 1
        spread.append(chosen)
    return spread
