"""AWS Batch as both modes use it: which requests they make, and the calls themselves.

The methods of `BatchService` may be called from any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import boto3

from scaler.worker_manager.aws.calls import AwsCalls, AwsClient, AwsError, aws_session
from scaler.worker_manager.aws_hpc.context import SETUP, BatchContext
from scaler.worker_manager.aws_hpc.job_spec import (
    MAX_PARAMETER_CHARACTERS,
    MAX_REQUEST_CHARACTERS,
    MAX_VARIABLES_CHARACTERS,
    PARAMETER,
    InputFrom,
    as_text,
)

Fields = dict[str, Any]

ALIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
ENDED = ("SUCCEEDED", "FAILED")
MAX_DESCRIBED = 100

MODULE = "module"
"""The parameter that names the module for a job definition whose own command takes one, such as that of `setup`."""
HOST_LOSSES = ("Host EC2*", "Your Spot Task was interrupted*")
"""Reasons with which Batch takes a host away. Source: the user guide of AWS Batch, job retries."""
ATTEMPTS = 3
"""Batch runs a job whose host it takes away this often. After that the scheduler runs the task again, uncharged."""
MAX_TEXT_BYTES = MAX_PARAMETER_CHARACTERS // 4 * 3
"""More bytes do not fit into a request as text."""


@dataclass(frozen=True, slots=True)
class Definition:
    """An active job definition. takes_module: its command takes the module's name as a parameter."""

    arn: str
    vcpus: float
    takes_module: bool
    own_characters: int = 0
    """Length of its command and variables as JSON: they count with what a job overrides."""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Definition:
        """Return a definition as DescribeJobDefinitions shows it."""
        container = described.get("containerProperties") or {}
        requirements = container.get("resourceRequirements") or ()
        command = container.get("command") or ()
        own = [list(command), container.get("environment") or []]
        given = [entry["value"] for entry in requirements if entry.get("type") == "VCPU"]
        return cls(
            arn=str(described["jobDefinitionArn"]),
            vcpus=float(given[0] if given else container.get("vcpus") or 1),
            takes_module=f"Ref::{MODULE}" in command,
            own_characters=len(json.dumps(own)),
        )


def submission(
    context: BatchContext,
    definition: Definition,
    name: str,
    module: str,
    variables: Mapping[str, str],
    *,
    size: int,
    repeat: bool,
    parameters: Mapping[str, str] | None = None,
) -> Fields:
    """Return the parameters of SubmitJob. size: how many children, 1 for a plain job.

    repeat: Batch runs it again when it takes its host away.
    """
    overrides: Fields = {"environment": [{"name": key, "value": value} for key, value in variables.items()]}
    given = dict(parameters or {})
    if definition.takes_module:
        given[MODULE] = module
    else:
        overrides["command"] = ["python", "-m", module]
    request: Fields = {
        "jobName": name,
        "jobQueue": context.job_queue,
        "jobDefinition": definition.arn,
        "containerOverrides": overrides,
        "retryStrategy": _repeats() if repeat else {"attempts": 1},
        "timeout": {"attemptDurationSeconds": context.job_timeout_minutes * 60},
        "tags": context.tags,
        "propagateTags": True,
    }
    if given:
        request["parameters"] = given
    if size > 1:
        request["arrayProperties"] = {"size": size}
    return request


def fits(request: Fields, definition: Definition) -> bool:
    """Tell whether Batch takes a request, and ECS the overrides that Batch makes of it."""
    overrides = len(json.dumps(request["containerOverrides"])) + definition.own_characters
    return len(json.dumps(request)) <= MAX_REQUEST_CHARACTERS and overrides <= MAX_VARIABLES_CHARACTERS


def encodings_for(data: bytes, size: int) -> Sequence[tuple[InputFrom, str]]:
    """Return where calls may travel inside a request and their text there, the best place first.

    Only a job that is no array reads its parameters: the children of an array would all call DescribeJobs at once.
    """
    if len(data) > MAX_TEXT_BYTES:
        return ()
    text = as_text(data)
    return (("variable", text),) if size > 1 else (("variable", text), ("parameter", text))


def parameters_for(input_from: InputFrom, text: str) -> dict[str, str]:
    """Return the parameters that carry a call."""
    return {PARAMETER: text} if input_from == "parameter" else {}


def _repeats() -> Fields:
    rules: list[Fields] = [{"onStatusReason": reason, "action": "RETRY"} for reason in HOST_LOSSES]
    return {"attempts": ATTEMPTS, "evaluateOnExit": [*rules, {"onReason": "*", "action": "EXIT"}]}


class BatchService:
    """The jobs of one manager. Raises UsageError."""

    def __init__(self, context: BatchContext, session: boto3.session.Session | None = None) -> None:
        """session: from `aws_session`; one of its own by default."""
        self._context = context
        session = session or aws_session(context)
        self._batch: AwsCalls = AwsClient(context, "batch", session=session)
        # SubmitJob has no client token that distinguishes a repeated call from a new one.
        self._submitting: AwsCalls = AwsClient(context, "batch", session=session, attempts=1)

    def definition(self) -> Definition:
        """Return the newest active revision of the job definition, or the named one. Raises AwsError."""
        name = self._context.job_definition
        if name.startswith("arn:") or ":" in name:
            found = self._batch.call("DescribeJobDefinitions", jobDefinitions=[name])["jobDefinitions"]
        else:
            pages = self._batch.pages("DescribeJobDefinitions", jobDefinitionName=name, status="ACTIVE")
            found = [described for page in pages for described in page["jobDefinitions"]]
        active = [described for described in found if described.get("status") == "ACTIVE"]
        if not active:
            text = f"there is no active job definition {name!r} in {self._context.aws_region}: {SETUP} makes one"
            raise AwsError(f"{text}, or change job_definition", "refused")
        return Definition.of(max(active, key=lambda described: int(described["revision"])))

    def check_queue(self) -> None:
        """Raise AwsError when the queue accepts no jobs."""
        name = self._context.job_queue
        found = self._batch.call("DescribeJobQueues", jobQueues=[name])["jobQueues"]
        if not found:
            raise AwsError(
                f"there is no job queue {name!r} in {self._context.aws_region}: {SETUP} makes one, or change job_queue",
                "refused",
            )
        state, status = found[0]["state"], found[0]["status"]
        if state != "ENABLED" or status not in ("VALID", "UPDATING", "CREATING"):
            reason = found[0].get("statusReason") or "no reason given"
            raise AwsError(f"the job queue {name!r} takes no jobs: it is {state} and {status} ({reason})", "refused")

    def submit(self, request: Fields) -> str:
        """Submit a job and return its id. Never repeated by itself, so no job exists twice. Raises AwsError."""
        return str(self._submitting.call("SubmitJob", **request)["jobId"])

    def find(self, job_name: str) -> str | None:
        """Return the id of the job of this name; None when none is listed, or none yet. Raises AwsError."""
        filters = [{"name": "JOB_NAME", "values": [job_name]}]
        for page in self._batch.pages("ListJobs", jobQueue=self._context.job_queue, filters=filters):
            for job in page["jobSummaryList"]:
                if job["jobName"] == job_name:
                    return str(job["jobId"])
        return None

    def alive(self) -> dict[str, Fields]:
        """Return all of this manager's jobs that have not ended, by id: arrays, not their children. Raises AwsError."""
        return {
            str(job["jobId"]): job
            for status in ALIVE
            for page in self._batch.pages("ListJobs", jobQueue=self._context.job_queue, jobStatus=status)
            for job in page["jobSummaryList"]
            if self._context.owns(job["jobName"])
        }

    def describe(self, job_ids: Iterable[str]) -> dict[str, Fields]:
        """Return jobs, arrays and children by id; those that Batch does not know are missing. Raises AwsError."""
        wanted = list(job_ids)
        found: dict[str, Fields] = {}
        for at in range(0, len(wanted), MAX_DESCRIBED):
            answer = self._batch.call("DescribeJobs", jobs=wanted[at : at + MAX_DESCRIBED])
            found |= {str(job["jobId"]): job for job in answer["jobs"]}
        return found

    def children(self, array_id: str, status: str) -> Iterator[Fields]:
        """Return the children of an array that are in a state, page by page. Raises AwsError."""
        for page in self._batch.pages("ListJobs", arrayJobId=array_id, jobStatus=status):
            yield from page["jobSummaryList"]

    def terminate(self, job_id: str, reason: str) -> None:
        """End a job in any state; one that does not run yet never will. Harmless when repeated. Raises AwsError."""
        self._batch.call("TerminateJob", jobId=job_id, reason=reason)

    def close(self) -> None:
        """Close the connections."""
        self._batch.close()
        self._submitting.close()


def counts_of(job: Mapping[str, Any]) -> dict[str, int]:
    """Return how many children of an array are in which state; a plain job counts as its only child."""
    array = job.get("arrayProperties") or {}
    if "size" not in array:
        return {str(job["status"]): 1}
    return {str(status): int(count) for status, count in (array.get("statusSummary") or {}).items() if count}


def index_in(job_id: str) -> int:
    """Return the index of a child by its id; 0 for a plain job."""
    _, colon, index = job_id.partition(":")
    return int(index) if colon else 0


def child_id(job_id: str, index: int, size: int) -> str:
    """Return the id of a child, or of the plain job that stands for the only one."""
    return job_id if size == 1 else f"{job_id}:{index}"
