"""Starts tasks: in batches, no faster than ECS allows, and none twice when an answer is lost."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from scaler._version import __version__
from scaler.errors import UsageError
from scaler.worker_manager.aws.errors import AwsError, steady
from scaler.worker_manager.aws.rates import Bucket
from scaler.worker_manager.aws.session import AwsCalls
from scaler.worker_manager.aws.setup_tools import MANAGED_TAG
from scaler.worker_manager.aws_raw_ecs.definition import (
    CONTAINER,
    Fields,
    overrides,
    registered,
    run_request,
    start_command,
    wanted_definition,
    worker_container,
    worker_document,
)
from scaler.worker_manager.aws_raw_ecs.settings import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs.tasks import unit_id_of
from scaler.worker_manager.backend import BackendError

BATCH = 10
"""Most tasks of one RunTask."""
LAUNCHES_AT_ONCE, LAUNCHES_PER_SECOND = 90, 18
CALLS_AT_ONCE, CALLS_PER_SECOND = 18, 18
"""ECS allows a tenth more: it counts by when calls arrive. Source: service quotas of ECS and Fargate."""
DOUBT_SECONDS = 30.0
"""After this time ECS lists what a call without an answer has started."""
SETUP = "`scaler_worker_manager aws_raw_ecs setup`"

_log = logging.getLogger(__name__)


def versions() -> dict[str, str]:
    """Return what a worker must have in the same version as this process."""
    return {"scaler": __version__, "cloudpickle": version("cloudpickle")}


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A RunTask that was not answered, and when."""

    request: Fields
    at: float


class Launches:
    """Starts tasks. Not for two threads at once. Raises UsageError for requirements or a document that cannot be."""

    def __init__(self, config: AwsRawEcsConfig, ecs: AwsCalls) -> None:
        self._config = config
        self._ecs = ecs
        self._document = worker_document(config)
        # Both are made again when a task definition is known; what is wrong with them shall be said now.
        overrides(CONTAINER, self._document)
        start_command(config, versions())
        self._template: Fields | None = None
        """The parameters of RunTask that stay the same, when the task definition is as it should be."""
        self._doubt: _Doubt | None = None
        now = time.monotonic()
        self._launches = Bucket(LAUNCHES_AT_ONCE, LAUNCHES_PER_SECOND, now)
        self._calls = Bucket(CALLS_AT_ONCE, CALLS_PER_SECOND, now)

    def start(self, count: int, is_known: Callable[[str], bool]) -> list[str]:
        """Start tasks and return the ids of those that were not known. Raises BackendError with those that started.

        A call that was not answered is repeated first, word for word: ECS then says what it has started for it, and
        starts what it has not.
        """
        started: list[str] = []
        try:
            started += [unit_id for unit_id in self.settle() if not is_known(unit_id)]
            while (missing := count - len(started)) > 0:
                request = self._prepared() | {"count": min(missing, BATCH), "clientToken": uuid.uuid4().hex}
                started += self._run(request)
        except BackendError as error:
            raise BackendError(str(error), [*started, *error.started]) from error
        return started

    def settle(self) -> list[str]:
        """Repeat the call that was not answered, if there is one, and return what it started. Raises BackendError."""
        return [] if self._doubt is None else self._run(self._doubt.request)

    def listed(self) -> None:
        """Take note that ECS has listed all tasks just now: what was in doubt for long is among them."""
        if self._doubt is not None and time.monotonic() - self._doubt.at > DOUBT_SECONDS:
            self._doubt = None

    def _run(self, request: Fields) -> list[str]:
        count = int(request["count"])
        now = time.monotonic()
        time.sleep(max(self._launches.take(count, now), self._calls.take(1, now)))
        try:
            answer = self._ecs.call("RunTask", **request)
        except AwsError as error:
            if error.is_uncertain:
                self._doubt = _Doubt(request, time.monotonic())
            elif error.kind == "refused":
                self._doubt = None
            raise with_hint(error) from error
        self._doubt = None
        unit_ids = [unit_id_of(task["taskArn"]) for task in answer["tasks"]]
        if len(unit_ids) < count:
            reasons = sorted({_words(failure) for failure in answer.get("failures", [])})
            raise BackendError(f"ECS does not start all tasks: {'; '.join(reasons) or 'no reason given'}", unit_ids)
        return unit_ids

    def _prepared(self) -> Fields:
        """Return the parameters that all starts share, after making sure of the task definition, once."""
        if self._template is None:
            try:
                definition = ensure_definition(self._config, self._ecs, {}, _log.info).definition
                container = worker_container(definition, self._config.ecs_task_definition)
                changed = overrides(container, self._document)
            except UsageError as error:
                raise BackendError(str(error)) from error  # the definition may be mended while the manager runs
            self._template = run_request(self._config, definition["taskDefinitionArn"], changed)
        return self._template


@dataclass(frozen=True, slots=True)
class Ensured:
    """A task definition as DescribeTaskDefinition shows it, and whether it was registered just now."""

    definition: Fields
    is_new: bool


def ensure_definition(
    config: AwsRawEcsConfig, ecs: AwsCalls, extras: Fields, say: Callable[[str], None], *, dry_run: bool = False
) -> Ensured:
    """Return the newest task definition, and register it when it is missing or differs from the settings.

    extras: see `wanted_definition`. dry_run: register nothing, and return what would be. Raises AwsError, UsageError.
    """
    family = config.ecs_task_definition
    current, tags = describe_definition(family, ecs)
    wanted = wanted_definition(config, current, versions(), extras)
    if current is not None and registered(current) == wanted:
        return Ensured(current, is_new=False)
    if dry_run:
        return Ensured({**wanted, "family": family}, is_new=True)
    if current is None and "executionRoleArn" not in wanted:
        say(f"the task definition {family} is made without roles: there are no logs, and no private images ({SETUP})")
    tags = tags if current is not None else [{"key": MANAGED_TAG, "value": "aws_raw_ecs"}]
    # An empty list of tags is refused.
    answer = ecs.call("RegisterTaskDefinition", family=family, **wanted, **({"tags": tags} if tags else {}))
    made: Fields = answer["taskDefinition"]
    say(f"registered the task definition {family}:{made['revision']}")
    return Ensured(made, is_new=True)


def describe_definition(family: str, ecs: AwsCalls) -> tuple[Fields | None, list[dict[str, str]]]:
    """Return the newest active revision of a family with its tags; None when there is none. Raises AwsError."""
    try:
        answer = ecs.call("DescribeTaskDefinition", taskDefinition=family, include=["TAGS"])
    except AwsError as error:
        if error.code != "ClientException":
            raise
        return None, []
    found: Fields = answer["taskDefinition"]
    if found.get("status", "ACTIVE") != "ACTIVE":
        return None, []
    return found, [tag for tag in answer.get("tags", []) if not tag["key"].startswith("aws:")]


def with_hint(error: AwsError) -> AwsError:
    """Return the error with what to do about it, where that is known."""
    hint = ""
    if error.code == "ClusterNotFoundException":
        hint = f"{SETUP} makes the cluster, or change ecs_cluster"
    elif "capacity provider" in error.message:
        hint = f"{SETUP} attaches ecs_capacity_provider to the cluster"
    return AwsError(f"{error}; {hint}", error.kind, error.code, error.message) if hint else error


def _words(failure: dict[str, Any]) -> str:
    return steady(": ".join(str(failure[key]) for key in ("reason", "detail") if failure.get(key)))
