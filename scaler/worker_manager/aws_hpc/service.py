"""AWS Batch and S3 as the managers use them. All methods may be called from any thread, and raise AwsError."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import boto3

from scaler.worker_manager.aws.calls import AwsClient, AwsError, aws_session, steady
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_hpc.requests import (
    SETUP,
    Definition,
    Fields,
    keys_of,
    owns,
)

ALIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
ENDED = ("SUCCEEDED", "FAILED")
MAX_DESCRIBED = 100


class BatchService:
    """The jobs of one manager. Raises UsageError."""

    def __init__(self, config: AwsHpcConfig, session: boto3.session.Session | None = None) -> None:
        """session: from `aws_session`; one of its own by default."""
        self._config = config
        session = session or aws_session(config)
        self._batch = AwsClient(config, "batch", session=session)
        # SubmitJob has no client token that distinguishes a repeated call from a new one.
        self._submitting = AwsClient(config, "batch", session=session, attempts=1)

    def definition(self) -> Definition:
        """Return the newest active revision of the job definition, or the named one. Raises AwsError."""
        name = self._config.job_definition
        if name.startswith("arn:") or ":" in name:
            found = self._batch.call("DescribeJobDefinitions", jobDefinitions=[name])["jobDefinitions"]
        else:
            pages = self._batch.pages("DescribeJobDefinitions", jobDefinitionName=name, status="ACTIVE")
            found = [described for page in pages for described in page["jobDefinitions"]]
        active = [described for described in found if described.get("status") == "ACTIVE"]
        if not active:
            text = f"there is no active job definition {name!r} in {self._config.aws_region}: {SETUP} makes one"
            raise AwsError(f"{text}, or change job_definition", "refused")
        return Definition.of(max(active, key=lambda described: int(described["revision"])))

    def check_queue(self) -> None:
        """Raise AwsError when the queue accepts no jobs."""
        name = self._config.job_queue
        found = self._batch.call("DescribeJobQueues", jobQueues=[name])["jobQueues"]
        if not found:
            raise AwsError(
                f"there is no job queue {name!r} in {self._config.aws_region}: {SETUP} makes one, or change job_queue",
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
        for page in self._batch.pages("ListJobs", jobQueue=self._config.job_queue, filters=filters):
            for job in page["jobSummaryList"]:
                if job["jobName"] == job_name:
                    return str(job["jobId"])
        return None

    def alive(self) -> dict[str, Fields]:
        """Return all of this manager's jobs that have not ended, by id: arrays, not their children. Raises AwsError."""
        return {
            str(job["jobId"]): job
            for status in ALIVE
            for page in self._batch.pages("ListJobs", jobQueue=self._config.job_queue, jobStatus=status)
            for job in page["jobSummaryList"]
            if owns(self._config, job["jobName"])
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


DELETED_AT_ONCE = 1000
"""Most keys of one DeleteObjects."""


@dataclass(frozen=True, slots=True)
class ResultKey:
    """The key of the result of one call."""

    number: int
    """Of the submission that the call was part of."""
    index: int
    key: str


class SessionObjects:
    """Its methods may be called from any thread. All raise AwsError."""

    def __init__(self, config: AwsHpcConfig, session: str, s3: AwsClient) -> None:
        self._s3 = s3
        self._config = config
        self._bucket = config.s3_bucket
        self._prefix = f"{keys_of(config)}{session}/"

    def check(self) -> None:
        """Check that the bucket exists and may be used."""
        try:
            self._s3.call("HeadBucket", Bucket=self._bucket)
        except AwsError as error:
            if error.code in ("404", "NoSuchBucket", "NotFound"):
                text = f"there is no bucket {self._bucket!r}: {SETUP} makes it, or change s3_bucket"
                raise AwsError(text, "refused", error.code) from error
            raise

    def call_key(self, number: int) -> str:
        """Return the key of the calls of a submission."""
        return f"{self._prefix}calls/{number}"

    def result_prefix(self, number: int) -> str:
        """Return the prefix of the keys of a submission's results; the index follows."""
        return f"{self._prefix}results/{number}/"

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        self._s3.call("PutObject", Bucket=self._bucket, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        """Return an object."""
        answer = self._s3.call("GetObject", Bucket=self._bucket, Key=key)
        with self._s3.errors("GetObject"):
            data: bytes = answer["Body"].read()
        return data

    def results(self) -> list[ResultKey]:
        """Return all results that exist, of all submissions."""
        prefix = f"{self._prefix}results/"
        found = []
        for key in self._keys(prefix):
            number, _, index = key.removeprefix(prefix).partition("/")
            if number.isdecimal() and index.isdecimal():
                found.append(ResultKey(int(number), int(index), key))
        return found

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. Those that do not exist are no error."""
        for at in range(0, len(keys), DELETED_AT_ONCE):
            batch = [{"Key": key} for key in keys[at : at + DELETED_AT_ONCE]]
            answer = self._s3.call("DeleteObjects", Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
            for error in answer.get("Errors", [])[:1]:
                raise AwsError(f"S3 DeleteObjects refused ({error['Code']}): {steady(error['Message'])}", "refused")

    def clear(self) -> int:
        """Remove all objects of this session. Returns how many."""
        left = list(self._keys(self._prefix))
        self.delete(left)
        return len(left)

    def clear_others(self) -> int:
        """Remove the objects of earlier sessions of this manager. Returns how many."""
        left = [key for key in self._keys(keys_of(self._config)) if not key.startswith(self._prefix)]
        self.delete(left)
        return len(left)

    def close(self) -> None:
        """Close the connections."""
        self._s3.close()

    def _keys(self, prefix: str) -> Iterator[str]:
        pages: Iterable[dict[str, list[dict[str, str]]]] = self._s3.pages(
            "ListObjectsV2", Bucket=self._bucket, Prefix=prefix
        )
        for page in pages:
            for entry in page.get("Contents", []):
                yield entry["Key"]
