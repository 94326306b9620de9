"""Jobs of the emulated Batch: parsing of SubmitJob requests, job states, and how jobs are shown and listed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from scaler.testing.aws.batch import values
from scaler.testing.aws.batch.definitions import EMPTY_LISTS, JobDefinition
from scaler.testing.aws.batch.resources import ComputeEnvironment, JobQueue
from scaler.testing.aws.batch.values import JSON, Invalid, Resources, Retries, page

NOT_EMULATED = (
    "dependsOn",
    "nodeOverrides",
    "eksPropertiesOverride",
    "ecsPropertiesOverride",
    "consumableResourcePropertiesOverride",
    "shareIdentifier",
    "schedulingPriorityOverride",
)
MAX_OVERRIDES_LENGTH = 8192
"""Length limit of overrides as JSON, imposed by ECS, which starts the containers. SubmitJob does not check the
limit.
"""
HIDDEN_LENGTH = 256
"""Undocumented overhead of Batch. Overrides of 7,680 characters are publicly known to have failed."""
PLACEHOLDER = "Ref::"
PAGE, FILTERED_PAGE = 1000, 100


class State(StrEnum):
    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNABLE = "RUNNABLE"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


WAITING = (State.SUBMITTED, State.PENDING, State.RUNNABLE)
PLACED = (State.STARTING, State.RUNNING)
ENDED = (State.SUCCEEDED, State.FAILED)


@dataclass(frozen=True, slots=True)
class JobSubmission:
    """Parameters of a SubmitJob request, shared by the children of an array."""

    name: str
    queue: JobQueue
    definition: JobDefinition
    parameters: dict[str, str]
    command: tuple[str, ...]
    environment: dict[str, str]
    resources: Resources
    retries: Retries
    retry_strategy: JSON | None
    timeout_seconds: int | None
    tags: dict[str, str]
    propagate_tags: bool
    created_at: float


@dataclass(slots=True, eq=False)
class JobRun:
    """One attempt on a host. `ending`: why the run is being stopped, empty unless it is."""

    run_id: str
    environment: ComputeEnvironment
    arn: str
    task_arn: str
    instance_arn: str | None
    log_stream: str
    started_at: float | None = None
    ending: str = ""
    final: bool = False
    """The job ends with this run, regardless of the outcome."""
    reason: str = ""
    """Reason that the service reports for the container."""

    def describe(self) -> JSON:
        shown: JSON = {"taskArn": self.task_arn, "networkInterfaces": []}
        if self.instance_arn is not None:
            shown["containerInstanceArn"] = self.instance_arn
        if self.started_at is not None:
            shown["logStreamName"] = self.log_stream
        return shown


@dataclass(frozen=True, slots=True)
class JobAttempt:
    run: JobRun
    exit_code: int | None
    reason: str
    status_reason: str
    stopped_at: float

    def describe(self) -> JSON:
        shown: JSON = {
            "container": {**self.run.describe(), **_container_end(self)},
            "statusReason": self.status_reason,
            "stoppedAt": millis(self.stopped_at),
        }
        if self.run.started_at is not None:
            shown["startedAt"] = millis(self.run.started_at)
        return shown


@dataclass(slots=True, eq=False)
class SubmittedJob:
    """Common base of a job and the parent of an array."""

    serial: int
    job_id: str
    arn: str
    submission: JobSubmission
    state: State = field(default=State.SUBMITTED, kw_only=True)
    reason: str = field(default="", kw_only=True)
    stopped_at: float | None = field(default=None, kw_only=True)
    cancelled: bool = field(default=False, kw_only=True)
    terminated: bool = field(default=False, kw_only=True)


@dataclass(slots=True, eq=False)
class Job(SubmittedJob):
    array: Array | None = None
    index: int | None = None
    attempts: list[JobAttempt] = field(default_factory=list)
    run: JobRun | None = None
    blocked_since: float | None = None
    """Time at which the job, still not placed, reached the head of its queue."""

    @property
    def size_of(self) -> JSON | None:
        return None if self.index is None else {"index": self.index}

    @property
    def started_at(self) -> float | None:
        last = self.run or (self.attempts[-1].run if self.attempts else None)
        return last.started_at if last else None

    def container(self) -> JSON:
        shown: JSON = _definition_container(self.submission)
        if self.run is not None:
            shown |= self.run.describe()
        elif self.attempts:
            shown |= self.attempts[-1].run.describe() | _container_end(self.attempts[-1])
        return shown


@dataclass(slots=True, eq=False)
class Array(SubmittedJob):
    """The parent of an array job. Has no children while SUBMITTED."""

    size: int
    children: list[Job] = field(default_factory=list)
    counts: Counter[State] = field(default_factory=Counter)
    changed_at: float | None = None
    attempts: tuple[JobAttempt, ...] = ()
    started_at: float | None = None

    @property
    def size_of(self) -> JSON:
        shown: JSON = {"size": self.size, "statusSummary": {}}
        if self.changed_at is not None:
            shown["statusSummary"] = {state.value: self.counts[state] for state in State}
            shown["statusSummaryLastUpdatedAt"] = millis(self.changed_at)
        return shown

    def container(self) -> JSON:
        return _definition_container(self.submission)


def describe(job: Job | Array) -> JSON:
    submission = job.submission
    shown: JSON = {
        **_common(job),
        "jobQueue": submission.queue.arn,
        "attempts": [attempt.describe() for attempt in job.attempts],
        "retryStrategy": submission.retry_strategy or {"attempts": 1, "evaluateOnExit": []},
        "dependsOn": [],
        "parameters": submission.parameters,
        "container": job.container(),
        "tags": submission.tags,
        "propagateTags": submission.propagate_tags,
        "platformCapabilities": submission.definition.capabilities,
        "eksAttempts": [],
        "isCancelled": job.cancelled,
        "isTerminated": job.terminated,
    }
    if submission.timeout_seconds is not None:
        shown["timeout"] = {"attemptDurationSeconds": submission.timeout_seconds}
    return shown


def summarize(job: Job | Array) -> JSON:
    shown = _common(job)
    if isinstance(job, Job) and job.attempts:
        shown["container"] = _container_end(job.attempts[-1])
    flags = {"isCancelled": job.cancelled, "isTerminated": job.terminated}
    return shown | {name: True for name, value in flags.items() if value}


def millis(seconds: float) -> int:
    return int(seconds * 1000)


def _common(job: Job | Array) -> JSON:
    shown: JSON = {
        "jobArn": job.arn,
        "jobId": job.job_id,
        "jobName": job.submission.name,
        "jobDefinition": job.submission.definition.arn,
        "status": job.state.value,
        "createdAt": millis(job.submission.created_at),
    }
    if job.reason:
        shown["statusReason"] = job.reason
    if job.started_at is not None:
        shown["startedAt"] = millis(job.started_at)
    if job.stopped_at is not None:
        shown["stoppedAt"] = millis(job.stopped_at)
    if job.size_of is not None:
        shown["arrayProperties"] = job.size_of
    return shown


def _definition_container(submission: JobSubmission) -> JSON:
    needed = submission.resources
    requirements = [("VCPU", f"{needed.vcpus:g}"), ("MEMORY", str(needed.memory_mib))]
    if needed.gpus:
        requirements.append(("GPU", str(needed.gpus)))
    return {
        **{name: [] for name in EMPTY_LISTS},
        **submission.definition.container,
        "command": list(submission.command),
        "environment": [{"name": name, "value": value} for name, value in submission.environment.items()],
        "resourceRequirements": [{"type": kind, "value": value} for kind, value in requirements],
        "networkInterfaces": [],
    }


def _container_end(attempt: JobAttempt) -> JSON:
    shown: JSON = {}
    if attempt.exit_code is not None:
        shown["exitCode"] = attempt.exit_code
    if attempt.reason:
        shown["reason"] = attempt.reason[:255]
    return shown


def submission_of(request: Mapping[str, Any], queue: JobQueue, definition: JobDefinition, now: float) -> JobSubmission:
    name = values.checked_name(request, "jobName")
    values.refuse_members(request, NOT_EMULATED)
    if queue.state != "ENABLED" or queue.status not in ("VALID", "UPDATING"):
        raise Invalid(f"JobQueue {queue.name} is not in ENABLED state or not VALID")
    fargate = any(each.resources.get("type") in values.FARGATE for each in queue.environments)
    if ("FARGATE" if fargate else "EC2") not in definition.capabilities:
        raise Invalid(f"JobDefinition {definition.arn} does not have the platform capability of JobQueue {queue.name}")
    overrides = request.get("containerOverrides") or {}
    extra = values.environment(overrides.get("environment"))
    parameters = {**definition.parameters, **(request.get("parameters") or {})}
    given = overrides.get("command") or definition.container.get("command") or ()
    command = tuple(_substituted(word, parameters) for word in given)
    strategy = request.get("retryStrategy")
    timeout = values.timeout_seconds(request)
    propagate = bool(request.get("propagateTags", definition.propagate_tags))
    return JobSubmission(
        name,
        queue,
        definition,
        parameters,
        command,
        {**values.environment(definition.container.get("environment")), **extra},
        values.resources(definition.container, overrides, fargate=fargate),
        values.retries(strategy) if strategy else definition.retries,
        {"evaluateOnExit": [], **strategy} if strategy else definition.retry_strategy,
        definition.timeout_seconds if timeout is None else timeout,
        values.tags(request.get("tags")),
        propagate,
        now,
    )


def own_variables(job: Job, environment_name: str) -> dict[str, str]:
    variables = {
        "AWS_BATCH_JOB_ID": job.job_id,
        "AWS_BATCH_JOB_ATTEMPT": str(len(job.attempts) + 1),
        "AWS_BATCH_JQ_NAME": job.submission.queue.name,
        "AWS_BATCH_CE_NAME": environment_name,
    }
    if job.array is not None:
        variables["AWS_BATCH_JOB_ARRAY_INDEX"] = str(job.index)
        variables["AWS_BATCH_JOB_ARRAY_SIZE"] = str(job.array.size)
    return variables


def overrides_length(submission: JobSubmission, own: Mapping[str, str]) -> int:
    environment = {**submission.environment, **own}
    container = {
        "name": "default",
        "command": list(submission.command),
        "environment": [{"name": name, "value": value} for name, value in environment.items()],
    }
    return HIDDEN_LENGTH + len(json.dumps({"containerOverrides": [container]}, separators=(",", ":")))


def _substituted(word: str, parameters: Mapping[str, str]) -> str:
    return parameters.get(word.removeprefix(PLACEHOLDER), word) if word.startswith(PLACEHOLDER) else word


def list_of(request: Mapping[str, Any], jobs: Iterable[Job | Array], queue: JobQueue) -> JSON:
    mine = (job for job in jobs if job.submission.queue is queue)
    filters = request.get("filters") or ()
    if not filters:
        return _listed(request, _in_state(request, mine), lambda job: -job.serial, PAGE)
    if len(filters) > 1:
        raise Invalid("only one filter can be used at a time")
    wanted = _filter(filters[0])
    return _listed(request, (job for job in mine if wanted(job)), lambda job: -job.serial, FILTERED_PAGE)


def list_children(request: Mapping[str, Any], array: Array) -> JSON:
    return _listed(request, _in_state(request, array.children), lambda job: getattr(job, "index", None) or 0, PAGE)


def _listed(
    request: Mapping[str, Any], found: Iterable[Job | Array], key: Callable[[Job | Array], int], most: int
) -> JSON:
    shown, token = page(found, key, request, most)
    return {"jobSummaryList": [summarize(job) for job in shown], **token}


def _in_state(request: Mapping[str, Any], jobs: Iterable[Job | Array]) -> Iterable[Job | Array]:
    state = State(values.one_of(request, "jobStatus", tuple(State), State.RUNNING))
    return (job for job in jobs if job.state is state)


def _filter(given: Mapping[str, Any]) -> Callable[[Job | Array], bool]:
    name, texts = values.need(given, "name"), values.need(given, "values")
    match name:
        case "JOB_NAME":
            return lambda job: any(values.fits(text.lower(), job.submission.name.lower()) for text in texts)
        case "JOB_DEFINITION":
            return lambda job: any(
                values.fits(text, job.submission.definition.name) or text == job.submission.definition.arn
                for text in texts
            )
        case "BEFORE_CREATED_AT":
            return lambda job: millis(job.submission.created_at) < int(texts[0])
        case "AFTER_CREATED_AT":
            return lambda job: millis(job.submission.created_at) > int(texts[0])
        case _:
            raise Invalid(f"the emulator has no filter {name}")
