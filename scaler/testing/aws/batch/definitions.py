"""Job definitions of the emulated Batch: revisions by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from scaler.testing.aws.batch import values
from scaler.testing.aws.batch.values import JSON, Invalid, Retries, page

NOT_EMULATED = ("nodeProperties", "eksProperties", "ecsProperties", "consumableResourceProperties")
EMPTY_LISTS = ("command", "volumes", "environment", "mountPoints", "ulimits", "resourceRequirements", "secrets")
"""Members of container properties that Batch shows even if they were not given."""
PAGE = 100


@dataclass(slots=True, eq=False)
class JobDefinition:
    """One revision."""

    serial: int
    name: str
    revision: int
    arn: str
    container: JSON
    parameters: dict[str, str]
    retries: Retries
    retry_strategy: JSON | None
    timeout_seconds: int | None
    capabilities: list[str]
    propagate_tags: bool
    tags: dict[str, str]
    active: bool = True

    @property
    def fargate(self) -> bool:
        return "FARGATE" in self.capabilities

    def describe(self) -> JSON:
        shown: JSON = {
            "jobDefinitionName": self.name,
            "jobDefinitionArn": self.arn,
            "revision": self.revision,
            "status": "ACTIVE" if self.active else "INACTIVE",
            "type": "container",
            "parameters": self.parameters,
            "containerProperties": {**{name: [] for name in EMPTY_LISTS}, **self.container},
            "tags": self.tags,
            "propagateTags": self.propagate_tags,
            "platformCapabilities": self.capabilities,
            "containerOrchestrationType": "ECS",
        }
        if self.retry_strategy is not None:
            shown["retryStrategy"] = self.retry_strategy
        if self.timeout_seconds is not None:
            shown["timeout"] = {"attemptDurationSeconds": self.timeout_seconds}
        return shown


class JobDefinitions:
    def __init__(self, arn_prefix: str) -> None:
        self._arn_prefix = f"{arn_prefix}job-definition/"
        self._by_name: dict[str, list[JobDefinition]] = {}
        self._registered = 0

    def register(self, request: Mapping[str, Any]) -> JSON:
        name = values.checked_name(request, "jobDefinitionName")
        values.refuse_members(request, NOT_EMULATED)
        if values.one_of(request, "type", ("container", "multinode"), "") == "multinode":
            raise Invalid("the emulator has no multinode job definitions")
        container = dict(values.need(request, "containerProperties"))
        values.need(container, "image")
        values.environment(container.get("environment"))
        capabilities = list(request.get("platformCapabilities") or ["EC2"])
        fargate = "FARGATE" in capabilities
        values.resources(container, {}, fargate=fargate)
        if fargate:
            values.need(container, "executionRoleArn")
            container.setdefault("fargatePlatformConfiguration", {"platformVersion": "LATEST"})
        strategy = request.get("retryStrategy")
        revisions = self._by_name.get(name, [])
        revision = len(revisions) + 1
        self._registered += 1
        definition = JobDefinition(
            self._registered,
            name,
            revision,
            f"{self._arn_prefix}{name}:{revision}",
            container,
            dict(request.get("parameters") or {}),
            values.retries(strategy),
            None if strategy is None else {"evaluateOnExit": [], **strategy},
            values.timeout_seconds(request),
            capabilities,
            bool(request.get("propagateTags")),
            values.tags(request.get("tags")),
        )
        self._by_name[name] = [*revisions, definition]
        return {"jobDefinitionName": name, "jobDefinitionArn": definition.arn, "revision": revision}

    def describe(self, request: Mapping[str, Any]) -> JSON:
        found = sorted(chain.from_iterable(self._by_name.values()), key=lambda each: each.serial)
        wanted = request.get("jobDefinitions")
        if wanted is not None:
            names = {name.removeprefix(self._arn_prefix) for name in wanted}
            found = [each for each in found if names & {each.name, f"{each.name}:{each.revision}"}]
        if request.get("jobDefinitionName"):
            found = [each for each in found if each.name == request["jobDefinitionName"]]
        if request.get("status"):
            found = [each for each in found if each.describe()["status"] == request["status"]]
        shown, token = page(found, lambda each: each.serial, request, PAGE)
        return {"jobDefinitions": [each.describe() for each in shown], **token}

    def deregister(self, request: Mapping[str, Any]) -> JSON:
        wanted = values.need(request, "jobDefinition").removeprefix(self._arn_prefix)
        name, colon, revision = wanted.partition(":")
        if not colon:
            raise Invalid("jobDefinition must have a revision to be deregistered")
        for definition in self._by_name.get(name, ()):
            if str(definition.revision) == revision:
                definition.active = False
        return {}

    def active(self, wanted: str) -> JobDefinition:
        name, _, revision = wanted.removeprefix(self._arn_prefix).partition(":")
        for definition in reversed(self._by_name.get(name, [])):
            if definition.active and revision in ("", str(definition.revision)):
                return definition
        raise Invalid(f"JobDefinition {wanted} was not found or is not ACTIVE")

    def tags_of(self, arn: str) -> dict[str, str] | None:
        for definition in chain.from_iterable(self._by_name.values()):
            if definition.arn == arn:
                return definition.tags
        return None
