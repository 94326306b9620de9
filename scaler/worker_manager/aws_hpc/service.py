"""AWS Batch as the managers use it. Its methods may be called from any thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import boto3

from scaler.worker_manager.aws.errors import AwsError
from scaler.worker_manager.aws.session import AwsCalls, AwsClient, aws_session
from scaler.worker_manager.aws_hpc.place import SETUP, Place
from scaler.worker_manager.aws_hpc.requests import Definition, Fields

ALIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
ENDED = ("SUCCEEDED", "FAILED")
MAX_DESCRIBED = 100


class BatchService:
    """The jobs of one manager. Raises UsageError."""

    def __init__(self, place: Place, session: boto3.session.Session | None = None) -> None:
        """session: from `aws_session`; one of its own by default."""
        self._place = place
        session = session or aws_session(place)
        self._batch: AwsCalls = AwsClient(place, "batch", session=session)
        # SubmitJob has no token that would tell a repeated call from a new one.
        self._submitting: AwsCalls = AwsClient(place, "batch", session=session, attempts=1)

    def definition(self) -> Definition:
        """Return the newest active revision of the job definition, or the one that is named. Raises AwsError."""
        name = self._place.job_definition
        if name.startswith("arn:") or ":" in name:
            found = self._batch.call("DescribeJobDefinitions", jobDefinitions=[name])["jobDefinitions"]
        else:
            pages = self._batch.pages("DescribeJobDefinitions", jobDefinitionName=name, status="ACTIVE")
            found = [described for page in pages for described in page["jobDefinitions"]]
        active = [described for described in found if described.get("status") == "ACTIVE"]
        if not active:
            text = f"there is no active job definition {name!r} in {self._place.aws_region}: {SETUP} makes one"
            raise AwsError(f"{text}, or change job_definition", "refused")
        return Definition.of(max(active, key=lambda described: int(described["revision"])))

    def check_queue(self) -> None:
        """Raise AwsError when the queue takes no jobs."""
        name = self._place.job_queue
        found = self._batch.call("DescribeJobQueues", jobQueues=[name])["jobQueues"]
        if not found:
            raise AwsError(
                f"there is no job queue {name!r} in {self._place.aws_region}: {SETUP} makes one, or change job_queue",
                "refused",
            )
        state, status = found[0]["state"], found[0]["status"]
        if state != "ENABLED" or status not in ("VALID", "UPDATING", "CREATING"):
            reason = found[0].get("statusReason") or "no reason given"
            raise AwsError(f"the job queue {name!r} takes no jobs: it is {state} and {status} ({reason})", "refused")

    def submit(self, request: Fields) -> str:
        """Submit a job and return its id; asked once only, so that no job is there twice. Raises AwsError."""
        return str(self._submitting.call("SubmitJob", **request)["jobId"])

    def find(self, job_name: str) -> str | None:
        """Return the id of the job of this name; None when none is listed, or none yet. Raises AwsError."""
        filters = [{"name": "JOB_NAME", "values": [job_name]}]
        for page in self._batch.pages("ListJobs", jobQueue=self._place.job_queue, filters=filters):
            for job in page["jobSummaryList"]:
                if job["jobName"] == job_name:
                    return str(job["jobId"])
        return None

    def alive(self) -> dict[str, Fields]:
        """Return all of this manager's jobs that have not ended, by id: arrays, not their children. Raises AwsError."""
        return {
            str(job["jobId"]): job
            for status in ALIVE
            for page in self._batch.pages("ListJobs", jobQueue=self._place.job_queue, jobStatus=status)
            for job in page["jobSummaryList"]
            if self._place.owns(job["jobName"])
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
        """End a job wherever it is: one that does not run yet never will. Harmless when repeated. Raises AwsError."""
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
