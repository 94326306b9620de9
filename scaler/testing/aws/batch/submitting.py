"""SubmitJob of the emulated Batch: what a request and its job definition make together, and what its container gets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scaler.testing.aws.batch import values
from scaler.testing.aws.batch.definitions import JobDefinition
from scaler.testing.aws.batch.jobs import Job, JobSubmission
from scaler.testing.aws.batch.resources import JobQueue
from scaler.testing.aws.batch.values import Invalid

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
"""Batch starts containers through ECS, whose limit is this, counted as JSON. SubmitJob does not check it."""
HIDDEN_LENGTH = 256
"""What Batch adds beyond what is known to us: overrides of 7,680 characters are publicly known to have failed."""
PLACEHOLDER = "Ref::"


def submission_of(request: Mapping[str, Any], queue: JobQueue, definition: JobDefinition, now: float) -> JobSubmission:
    """Read a SubmitJob. Raises Invalid."""
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
    """Return the variables that Batch sets in a job's container."""
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
    """Return the length of what Batch hands to ECS: all of a container that a job could have overridden."""
    environment = {**submission.environment, **own}
    container = {
        "name": "default",
        "command": list(submission.command),
        "environment": [{"name": name, "value": value} for name, value in environment.items()],
    }
    return HIDDEN_LENGTH + len(json.dumps({"containerOverrides": [container]}, separators=(",", ":")))


def _substituted(word: str, parameters: Mapping[str, str]) -> str:
    return parameters.get(word.removeprefix(PLACEHOLDER), word) if word.startswith(PLACEHOLDER) else word
