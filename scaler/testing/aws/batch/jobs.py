"""Jobs of the emulated Batch: what was asked for, how far it is, and how it is shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from scaler.testing.aws.batch.definitions import EMPTY_LISTS, JobDefinition
from scaler.testing.aws.batch.resources import ComputeEnvironment, JobQueue
from scaler.testing.aws.batch.values import JSON, Resources, Retries


class State(StrEnum):
    """How far a job is."""

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
    """What SubmitJob asked for. The children of an array share it."""

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
    """One attempt on a host. `ending` is why it is being stopped: empty while it is not."""

    run_id: str
    environment: ComputeEnvironment
    arn: str
    task_arn: str
    instance_arn: str | None
    log_stream: str
    started_at: float | None = None
    ending: str = ""
    final: bool = False
    """Whether the job ends with this run, however it ends."""
    reason: str = ""
    """What the service will say of its container."""

    def describe(self) -> JSON:
        """Return what a job's and an attempt's `container` have in common."""
        shown: JSON = {"taskArn": self.task_arn, "networkInterfaces": []}
        if self.instance_arn is not None:
            shown["containerInstanceArn"] = self.instance_arn
        if self.started_at is not None:
            shown["logStreamName"] = self.log_stream
        return shown


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """A run that has ended."""

    run: JobRun
    exit_code: int | None
    reason: str
    status_reason: str
    stopped_at: float

    def describe(self) -> JSON:
        """Return it as DescribeJobs does."""
        shown: JSON = {
            "container": {**self.run.describe(), **_container_end(self)},
            "statusReason": self.status_reason,
            "stoppedAt": millis(self.stopped_at),
        }
        if self.run.started_at is not None:
            shown["startedAt"] = millis(self.run.started_at)
        return shown


@dataclass(slots=True, eq=False)
class Job:
    """A job with a container: a plain one, or a child of an array. `run` is there while it is STARTING or RUNNING."""

    serial: int
    job_id: str
    arn: str
    submission: JobSubmission
    array: Array | None = None
    index: int | None = None
    state: State = State.SUBMITTED
    reason: str = ""
    attempts: list[JobAttempt] = field(default_factory=list)
    run: JobRun | None = None
    stopped_at: float | None = None
    blocked_since: float | None = None
    """Since when it is at the head of its queue and cannot be placed."""
    cancelled: bool = False
    terminated: bool = False

    @property
    def size_of(self) -> JSON | None:
        """Its arrayProperties."""
        return None if self.index is None else {"index": self.index}

    @property
    def started_at(self) -> float | None:
        """When its last attempt began to run."""
        last = self.run or (self.attempts[-1].run if self.attempts else None)
        return last.started_at if last else None

    def container(self) -> JSON:
        """Return the container's details."""
        shown: JSON = _definition_container(self.submission)
        if self.run is not None:
            shown |= self.run.describe()
        elif self.attempts:
            shown |= self.attempts[-1].run.describe() | _container_end(self.attempts[-1])
        return shown


@dataclass(slots=True, eq=False)
class Array:
    """The parent of an array job. It has no children yet while it is SUBMITTED."""

    serial: int
    job_id: str
    arn: str
    submission: JobSubmission
    size: int
    state: State = State.SUBMITTED
    reason: str = ""
    children: list[Job] = field(default_factory=list)
    counts: Counter[State] = field(default_factory=Counter)
    """How many children are in which state."""
    changed_at: float | None = None
    stopped_at: float | None = None
    cancelled: bool = False
    terminated: bool = False

    attempts: tuple[JobAttempt, ...] = ()
    started_at: float | None = None

    @property
    def size_of(self) -> JSON:
        """Its arrayProperties."""
        shown: JSON = {"size": self.size, "statusSummary": {}}
        if self.changed_at is not None:
            shown["statusSummary"] = {state.value: self.counts[state] for state in State}
            shown["statusSummaryLastUpdatedAt"] = millis(self.changed_at)
        return shown

    def container(self) -> JSON:
        """Return the details that its children's containers share."""
        return _definition_container(self.submission)


def describe(job: Job | Array) -> JSON:
    """Return a job as DescribeJobs does."""
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
    """Return a job as ListJobs does."""
    shown = _common(job)
    if isinstance(job, Job) and job.attempts:
        shown["container"] = _container_end(job.attempts[-1])
    flags = {"isCancelled": job.cancelled, "isTerminated": job.terminated}
    return shown | {name: True for name, value in flags.items() if value}


def millis(seconds: float) -> int:
    """Return a time as the service writes it."""
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
