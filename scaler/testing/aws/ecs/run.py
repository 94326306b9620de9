"""What a RunTask asks for, checked as the service checks it. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from scaler.testing.aws.ecs.clusters import EcsCluster, EcsClusters, check_strategy
from scaler.testing.aws.ecs.definitions import TaskDefinition, TaskDefinitions
from scaler.testing.aws.ecs.rules import (
    MAX_CLIENT_TOKEN_CHARACTERS,
    MAX_OVERRIDES_CHARACTERS,
    MAX_RUN_COUNT,
    MAX_SECURITY_GROUPS,
    MAX_SUBNETS,
    STARTED_BY,
    Fields,
    checked_tags,
    client_fault,
    invalid,
)
from scaler.testing.aws.ecs.task import Order


def read_run(
    request: Fields, clusters: EcsClusters, definitions: TaskDefinitions
) -> tuple[list[Order], dict[str, str]]:
    """Return an order for each task that a RunTask asks for, and their tags. Raises Refusal."""
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
    """Return the environment that a task's definition and overrides give to its container."""
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
    """Return the capacity provider of each task. None: the launch type says enough."""
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
    """Fill the base of each provider first, and then follow the weights."""
    spread = [item["capacityProvider"] for item in strategy for _ in range(item.get("base", 0))][:count]
    weighted = {item["capacityProvider"]: item["weight"] for item in strategy if item.get("weight", 0)}
    extra = dict.fromkeys(weighted, 0)
    while weighted and len(spread) < count:
        chosen = min(weighted, key=lambda name: (extra[name] + 1) / weighted[name])
        extra[chosen] += 1
        spread.append(chosen)
    return spread
