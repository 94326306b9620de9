"""An ECS without clock or processes, in the hands of a test."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from scaler.testing.aws.ecs import EcsRates, EcsTimes
from scaler.testing.aws.ecs.core import EcsCore
from scaler.testing.aws.ecs.task import Command, StartTask
from scaler.testing.aws.faults import Partial, ServiceError

NETWORK = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}
DEFINITION: dict[str, Any] = {
    "family": "worker",
    "requiresCompatibilities": ["FARGATE"],
    "networkMode": "awsvpc",
    "cpu": "1024",
    "memory": "2048",
    "containerDefinitions": [
        {"name": "main", "image": "python:3.11-slim", "command": ["python", "-m", "scaler.worker"], "stopTimeout": 60}
    ],
}
SLOW = EcsTimes(provisioning=10, pending=20, deactivating=5, deprovisioning=10, hidden=3)


class EcsWorld:
    """A core with a cluster `c`, a task definition `worker` and a clock."""

    def __init__(self, times: EcsTimes = SLOW, rates: EcsRates | None = None) -> None:
        self.now = 1000.0
        ids = itertools.count(1)
        self.core = EcsCore(
            lambda name: f"arn:aws:ecs:us-east-1:123456789012:{name}", lambda: f"{next(ids):032x}", times,
            rates or EcsRates(),
        )  # fmt: skip
        self.call("CreateCluster", clusterName="c", capacityProviders=["FARGATE", "FARGATE_SPOT"])
        self.call("RegisterTaskDefinition", **DEFINITION)

    def call(self, operation: str, partial: Partial | None = None, **request: Any) -> dict[str, Any]:
        return self.core.call(operation, request, self.now, partial)

    def run(self, count: int = 1, partial: Partial | None = None, **more: Any) -> list[str]:
        """Run tasks and return their ARNs."""
        return [task["taskArn"] for task in self.answer_to_run(count, partial, **more)["tasks"]]

    def answer_to_run(self, count: int = 1, partial: Partial | None = None, **more: Any) -> dict[str, Any]:
        request = {"cluster": "c", "taskDefinition": "worker", "count": count, "networkConfiguration": NETWORK, **more}
        if "capacityProviderStrategy" not in more:
            request.setdefault("launchType", "FARGATE")
        return self.call("RunTask", partial, **request)

    def describe(self, *names: str) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = self.call("DescribeTasks", cluster="c", tasks=list(names))["tasks"]
        return tasks

    def status(self, name: str) -> str:
        return str(self.describe(name)[0]["lastStatus"])

    def pass_time(self, seconds: float) -> list[Command]:
        """Let time pass, and return the commands to containers. Those that are told to start do."""
        self.now += seconds
        commands = self.core.step(self.now)
        for command in commands:
            if isinstance(command, StartTask):
                self.core.started(command.arn, self.now)
        return commands

    def run_until_running(self, count: int = 1, **more: Any) -> list[str]:
        arns = self.run(count, **more)
        self.pass_time(10)
        self.pass_time(20)
        return arns

    def refused(self, operation: str, **request: Any) -> ServiceError:
        with pytest.raises(ServiceError) as caught:
            self.call(operation, **request)
        return caught.value

    def refused_run(self, **more: Any) -> ServiceError:
        with pytest.raises(ServiceError) as caught:
            self.answer_to_run(**more)
        return caught.value
