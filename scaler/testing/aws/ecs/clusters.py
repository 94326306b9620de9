"""Clusters and their capacity providers. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from scaler.testing.aws.ecs.rules import (
    CAPACITY_PROVIDERS,
    MAX_DESCRIBED,
    Fields,
    checked_tags,
    invalid,
    tag_pairs,
)
from scaler.testing.aws.faults import ServiceError


@dataclass(slots=True)
class EcsCluster:
    """A cluster. Deleted ones stay, as the service keeps them for a while."""

    arn: str
    name: str
    providers: list[str]
    strategy: list[Fields]
    settings: list[Fields]
    tags: dict[str, str]
    is_active: bool = True


class EcsClusters:
    """All clusters."""

    def __init__(self, arn_of: Callable[[str], str], count_tasks: Callable[[str], tuple[int, int]]) -> None:
        """count_tasks: tells how many tasks of a cluster, by its ARN, are running and how many will run."""
        self._arn_of = arn_of
        self._count_tasks = count_tasks
        self._clusters: dict[str, EcsCluster] = {}

    def create(self, request: Fields) -> Fields:
        """CreateCluster. An active cluster of the name is returned as it is."""
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
        """Return an active cluster by name or ARN. Raises Refusal when there is none."""
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
    """Raise Refusal for a strategy with a provider that the cluster does not have, or in which none has a weight."""
    for item in strategy:
        if item.get("capacityProvider") not in attached:
            raise invalid(
                "The specified capacity provider strategy cannot contain a capacity provider that is not associated "
                "with the cluster. Associate the capacity provider with the cluster and try again."
            )
    if strategy and not any(item.get("weight", 0) or item.get("base", 0) for item in strategy):
        raise invalid("A capacity provider strategy must contain a capacity provider with a weight above 0.")
