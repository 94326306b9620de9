"""The backend of the type aws_raw_ecs. An unanswered RunTask is repeated with its client token."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.calls import AwsClient, AwsError, Fields, seconds_between, steady, with_region
from scaler.worker_manager.aws.containers import end_text, unreachable
from scaler.worker_manager.aws.prices import FARGATE_MINIMUM_SECONDS, fargate_price
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.aws_raw_ecs.definition import SETUP, check, ensure_definition, run_request, started_by
from scaler.worker_manager.backend import BackendError, Capacity, most_units
from scaler.worker_manager.polled import STOP_REASON, PolledBackend, SeenUnit, Stopped

USUAL_STARTUP_SECONDS = 45.0  # from RunTask to the connected worker on Fargate
MAX_STARTED = 10
LAUNCHES_AT_ONCE, LAUNCHES_PER_SECOND = 90, 18
CALLS_AT_ONCE, CALLS_PER_SECOND = 18, 18  # a tenth below the service quotas of ECS and Fargate
UNANSWERED_SECONDS = 30.0  # ECS lists the tasks of an unanswered call within this time
MAX_DESCRIBED = 100
_STATES = {
    "RUNNING": UnitState.RUNNING,
    **dict.fromkeys(("DEACTIVATING", "STOPPING", "DEPROVISIONING"), UnitState.STOPPING),
}
"""In all other states except STOPPED, the task is pending."""

_log = logging.getLogger(__name__)


class EcsBackend(PolledBackend):
    """Units are ECS tasks. Raises UsageError for settings that ECS rejects."""

    def __init__(self, config: AwsRawEcsConfig, ecs: AwsClient | None = None) -> None:
        config = with_region(config)
        cpus, memory_gb = config.ecs_task_cpu, config.ecs_task_memory
        price = fargate_price(
            config.aws_region, cpus, memory_gb, config.ecs_cpu_architecture, config.ecs_capacity_provider
        )
        super().__init__(
            service="ECS",
            noun="tasks",
            stop_by_hand=f"stop each with `aws ecs stop-task --region {config.aws_region} "
            f"--cluster {config.ecs_cluster} --task TASK`",
            capacity=Capacity.of_units(
                cpus,
                most_units(config.max_task_concurrency, cpus),
                unit_memory_bytes=memory_gb * 1024**3,
                unit_price=price or 0.0,
                unit_minimum_seconds=FARGATE_MINIMUM_SECONDS,
                usual_startup_seconds=USUAL_STARTUP_SECONDS,
            ),
            heartbeat_seconds=config.heartbeat_interval_seconds,
        )
        check(config)
        self._config = config
        self._ecs = AwsClient(config, "ecs") if ecs is None else ecs
        self._template: Fields | None = None
        self._unanswered: tuple[Fields, float] | None = None
        now = time.monotonic()
        self._launches = TokenBucket(LAUNCHES_AT_ONCE, LAUNCHES_PER_SECOND, now)
        self._calls = TokenBucket(CALLS_AT_ONCE, CALLS_PER_SECOND, now)
        if warning := unreachable("workers on ECS", config.worker_scheduler_address, config.aws_endpoint_url):
            _log.warning("%s", warning)

    def start_some(self, count: int) -> list[str]:
        return self._run(self._prepared() | {"count": min(count, MAX_STARTED), "clientToken": uuid.uuid4().hex})

    def started_unanswered(self) -> list[str]:
        return [] if self._unanswered is None else self._run(self._unanswered[0])

    def stop_one(self, unit_id: str) -> Stopped:
        try:
            answer = self._ecs.call("StopTask", cluster=self._config.ecs_cluster, task=unit_id, reason=STOP_REASON)
        except AwsError as error:
            if error.code == "InvalidParameterException" and "not found" in error.message:
                return "not found"
            raise
        if answer["task"].get("desiredStatus") != "STOPPED":
            raise AwsError("ECS StopTask did not stop a task, and gave no reason", "broken")
        return "stopping"

    def list_ids(self, *, search: bool) -> list[str]:
        # Tasks that an earlier process is stopping may still be running.
        statuses = ("RUNNING", "STOPPED") if search else ("RUNNING",)
        parameters = {"cluster": self._config.ecs_cluster, "startedBy": started_by(self._config)}
        try:
            arns = [
                arn
                for status in statuses
                for arn in self._ecs.items("ListTasks", "taskArns", **parameters, desiredStatus=status)
            ]
        except AwsError as error:
            raise with_hint(error) from error
        if self._unanswered is not None and time.monotonic() - self._unanswered[1] > UNANSWERED_SECONDS:
            self._unanswered = None
        return [unit_id_of(arn) for arn in arns]

    def describe(self, unit_ids: Sequence[str]) -> dict[str, SeenUnit]:
        now = datetime.now(UTC)
        seen = {}
        for task in described(self._ecs, self._config.ecs_cluster, unit_ids):
            age = seconds_between(task.get("createdAt"), task.get("stoppedAt") or now)
            seen[unit_id_of(task["taskArn"])] = SeenUnit(state_of(task), age, reason_of(task))
        return seen

    def disconnect(self) -> None:
        self._ecs.close()

    def _run(self, request: Fields) -> list[str]:
        count = int(request["count"])
        now = time.monotonic()
        time.sleep(max(self._launches.take(count, now), self._calls.take(1, now)))
        try:
            answer = self._ecs.call("RunTask", **request)
        except AwsError as error:
            if error.is_uncertain:
                self._unanswered = (request, time.monotonic())
            elif error.kind == "refused":
                self._unanswered = None
            raise with_hint(error) from error
        self._unanswered = None
        unit_ids = [unit_id_of(task["taskArn"]) for task in answer["tasks"]]
        if len(unit_ids) < count:
            reasons = sorted({_failure_text(failure) for failure in answer.get("failures", [])})
            raise BackendError(f"ECS does not start all tasks: {'; '.join(reasons) or 'no reason given'}", unit_ids)
        return unit_ids

    def _prepared(self) -> Fields:
        if self._template is None:
            try:
                definition, _ = ensure_definition(self._config, self._ecs, {}, _log.info)
                self._template = run_request(self._config, definition)
            except UsageError as error:
                raise BackendError(str(error)) from error  # a user may correct the definition while the manager runs
        return self._template


@dataclass(slots=True)
class TokenBucket:
    """Grants `burst` tokens at once, then `per_second`. A debt delays the next use."""

    burst: float
    per_second: float
    at: float
    tokens: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.burst

    def take(self, count: float, now: float) -> float:
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.per_second) - count
        self.at = now
        return max(0.0, -self.tokens / self.per_second)


def described(ecs: AwsClient, cluster: str, tasks: Sequence[str]) -> Iterator[Fields]:
    for at in range(0, len(tasks), MAX_DESCRIBED):
        yield from ecs.call("DescribeTasks", cluster=cluster, tasks=tasks[at : at + MAX_DESCRIBED])["tasks"]


def unit_id_of(arn: str) -> str:
    return arn.rpartition("/")[2]


def state_of(task: Mapping[str, Any]) -> UnitState:
    """Return the state of a task. STOPPED: stopped by us, or exit code 0. FAILED: also if ECS reclaimed the task."""
    status = task.get("lastStatus", "")
    if status != "STOPPED":
        is_stopping = task.get("desiredStatus") == "STOPPED"
        return UnitState.STOPPING if is_stopping else _STATES.get(status, UnitState.PENDING)
    code = task.get("stopCode")
    if code == "UserInitiated" and str(task.get("stoppedReason", "")).startswith(STOP_REASON):
        return UnitState.STOPPED
    exit_codes = {container.get("exitCode") for container in task.get("containers", [])}
    in_order = code == "EssentialContainerExited" and exit_codes == {0}
    return UnitState.STOPPED if in_order else UnitState.FAILED


def reason_of(task: Mapping[str, Any]) -> str:
    reason = ": ".join(part for part in (task.get("stopCode"), steady(task.get("stoppedReason", ""))) if part)
    return end_text(reason.rstrip("."), task.get("containers", ()))


def with_hint(error: AwsError) -> AwsError:
    hint = ""
    if error.code == "ClusterNotFoundException":
        hint = f"{SETUP} makes the cluster, or change ecs_cluster"
    elif "capacity provider" in error.message:
        hint = f"{SETUP} attaches ecs_capacity_provider to the cluster"
    return AwsError(f"{error}; {hint}", error.kind, error.code, error.message) if hint else error


def _failure_text(failure: Mapping[str, Any]) -> str:
    return steady(": ".join(str(failure[key]) for key in ("reason", "detail") if failure.get(key)))
