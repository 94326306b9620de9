"""Sends requests to AWS Batch and S3, and interprets how a job ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import boto3

from scaler.protocol.messages import Outcome
from scaler.serialization import Buffer
from scaler.worker_manager.aws.calls import AwsClient, AwsError, Fields, aws_session, steady
from scaler.worker_manager.aws.package import end_text, installs_other, package_of
from scaler.worker_manager.aws.resources import NO_BUCKET, delete_objects, object_keys
from scaler.worker_manager.aws_hpc import AwsHpcConfig, requests

ALIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
ENDED = ("SUCCEEDED", "FAILED")
MAX_DESCRIBED = 100
S3_READ_TIMEOUT_SECONDS = 60.0
NO_REASON = "AWS Batch gives no reason: check that the compute environment is VALID and large enough for the job"
_LOST_HOST = ("Host EC2", "Your Spot Task was interrupted")
_TIMEOUT = "attempt duration exceeded timeout"
_NOT_STARTED = "Task failed to start"
_EXITED = "Essential container in task exited"


class BatchService:
    def __init__(self, config: AwsHpcConfig, session: boto3.session.Session | None = None) -> None:
        self._config = config
        session = session or aws_session(config)
        self._batch = AwsClient(config, "batch", session=session)
        # SubmitJob has no client token to deduplicate repeated calls.
        self._submitting = AwsClient(config, "batch", session=session, attempts=1)

    def definition(self) -> str:
        """Return the ARN of the newest job definition. Raises AwsError if none is suitable."""
        name = self._config.job_definition
        named = {"jobDefinitions": [name]} if ":" in name else {"jobDefinitionName": name, "status": "ACTIVE"}
        found = self._batch.items("DescribeJobDefinitions", "jobDefinitions", **named)
        active = [described for described in found if described.get("status") == "ACTIVE"]
        if not active:
            text = f"there is no active job definition {name!r} in {self._config.aws_region}: run {requests.SETUP}"
            raise AwsError(f"{text}, or change job_definition", "refused")
        newest = max(active, key=lambda described: int(described["revision"]))
        words = newest.get("containerProperties", {}).get("command", ())
        command = " ".join(words)
        if installs_other(words, partial(package_of, self._config, self._config.event_loop)):
            text = f"the job definition {name!r} does not install this version of scaler with the current requirements"
            raise AwsError(f"{text}: run {requests.SETUP}", "refused")
        if re.search(r"pip install .*\bscaler(\[[^]]*])?==", command):
            text = f"the job definition {name!r} installs scaler by name, which may belong to another project"
            raise AwsError(f"{text}: run {requests.SETUP}", "refused")
        owner = (newest.get("tags") or {}).get(requests.OWNER_TAG)
        if owner not in (None, requests.owner_of(self._config)):
            text = f"the job definition {name!r} gives jobs access to objects of the worker manager {owner!r}"
            raise AwsError(f"{text}: set another job_definition for this manager, and run {requests.SETUP}", "refused")
        return str(newest["jobDefinitionArn"])

    def check_queue(self) -> None:
        name = self._config.job_queue
        found = self._batch.call("DescribeJobQueues", jobQueues=[name])["jobQueues"]
        if not found:
            text = f"there is no job queue {name!r} in {self._config.aws_region}: run {requests.SETUP}"
            raise AwsError(f"{text}, or change job_queue", "refused")
        state, status = found[0]["state"], found[0]["status"]
        if state != "ENABLED" or status not in ("VALID", "UPDATING", "CREATING"):
            reason = found[0].get("statusReason") or "no reason given"
            raise AwsError(f"the job queue {name!r} accepts no jobs: it is {state} and {status} ({reason})", "refused")

    def submit(self, request: Fields) -> str:
        """Submit a job and return its id. Never retries, so that no job is duplicated."""
        return str(self._submitting.call("SubmitJob", **request)["jobId"])

    def find(self, job_name: str) -> str | None:
        filters = [{"name": "JOB_NAME", "values": [job_name]}]
        found = self._list(jobQueue=self._config.job_queue, filters=filters)
        return next((str(job["jobId"]) for job in found if job["jobName"] == job_name), None)

    def alive(self) -> dict[str, Fields]:
        return {
            str(job["jobId"]): job
            for status in ALIVE
            for job in self._list(jobQueue=self._config.job_queue, jobStatus=status)
            if requests.owns(self._config, job["jobName"])
        }

    def children(self, array_id: str, status: str) -> list[int]:
        return [int(job["jobId"].rpartition(":")[2]) for job in self._list(arrayJobId=array_id, jobStatus=status)]

    def _list(self, **parameters: Any) -> Iterator[Fields]:
        return self._batch.items("ListJobs", "jobSummaryList", **parameters)

    def describe(self, job_ids: Iterable[str]) -> dict[str, Fields]:
        found: dict[str, Fields] = {}
        left = iter(job_ids)
        while some := list(islice(left, MAX_DESCRIBED)):
            found |= {str(job["jobId"]): job for job in self._batch.call("DescribeJobs", jobs=some)["jobs"]}
        return found

    def waiting_reason(self, job: Fields) -> str:
        jobs = [job]
        if "size" in (job.get("arrayProperties") or {}):
            waiting = islice(self._list(arrayJobId=job["jobId"], jobStatus="RUNNABLE"), MAX_DESCRIBED)
            jobs = list(self.describe(child["jobId"] for child in waiting).values())
        return next(filter(None, map(reason_of, jobs)), NO_REASON)

    def terminate(self, job_id: str, reason: str) -> None:
        """Terminate a job in any state, even before it starts. Idempotent."""
        self._batch.call("TerminateJob", jobId=job_id, reason=reason)

    def close(self) -> None:
        self._batch.close()
        self._submitting.close()


def counts_of(job: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of an array's children per state. A plain job counts as one child."""
    array = job.get("arrayProperties") or {}
    if "size" not in array:
        return {str(job["status"]): 1}
    return {str(status): int(count) for status, count in (array.get("statusSummary") or {}).items() if count}


def reason_of(job: Mapping[str, Any]) -> str:
    container = _last_attempt(job).get("container") or {}
    status_reason = steady(str(job.get("statusReason") or ""))
    is_plain = status_reason.startswith(_EXITED) and "exitCode" in container
    return end_text(status_reason, [container], shown=not is_plain)


def has_not_read(job: Mapping[str, Any]) -> bool:
    return (_last_attempt(job).get("container") or {}).get("exitCode") == requests.EXIT_NO_CALL


def classify_exit(job: Mapping[str, Any], timeout_minutes: int) -> tuple[Outcome, str]:
    attempt = _last_attempt(job)
    container = attempt.get("container") or {}
    status_reason = str(job.get("statusReason") or "")
    code = container.get("exitCode")
    reason = reason_of(job) or "no reason given"
    where = f"the AWS Batch job {job['jobId']}"
    log = f"; its log stream is {container['logStreamName']}" if container.get("logStreamName") else ""
    if _TIMEOUT in status_reason:
        return Outcome.TIMED_OUT, f"{where} ran for longer than job_timeout_minutes ({timeout_minutes}) and was stopped"
    if any(text.startswith(_LOST_HOST) for text in (status_reason, str(attempt.get("statusReason") or ""))):
        return Outcome.NOT_STARTED, f"{where} lost its host: {reason}"
    if has_not_read(job):
        text = f"{where} could not read its task: check its role's permissions and the version of scaler in its image"
        return Outcome.NOT_STARTED, text + log
    if code == requests.EXIT_NO_RESULT:
        return Outcome.WORKER_LOST, f"{where} could not write the result: check its role's permissions{log}"
    has_run = any(each.get("startedAt") for each in (job, *(job.get("attempts") or ())))
    if status_reason.startswith(_NOT_STARTED) or not has_run:
        return Outcome.NOT_STARTED, f"{where} did not start: {reason}"
    if job.get("isTerminated") or code is None:
        return Outcome.WORKER_LOST, f"{where} was ended: {reason}{log}"
    if code == 0:
        return Outcome.PROCESSOR_DIED, f"{where} ended with exit code 0 but without a result{log}"
    return Outcome.PROCESSOR_DIED, f"{where} died: {reason}{log}"


def _last_attempt(job: Mapping[str, Any]) -> Mapping[str, Any]:
    attempts = job.get("attempts") or [job]
    found: Mapping[str, Any] = attempts[-1]
    return found


class SessionObjects:
    def __init__(self, config: AwsHpcConfig, session: str, aws: boto3.session.Session) -> None:
        self._s3 = AwsClient(config, "s3", session=aws, read_timeout_seconds=S3_READ_TIMEOUT_SECONDS)
        self._bucket = config.s3_bucket
        self._prefix = requests.keys_of(config, session)

    def check(self) -> None:
        if self._s3.find("ListObjectsV2", *NO_BUCKET, Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1) is None:
            text = f"there is no bucket {self._bucket!r}: run {requests.SETUP}, or change s3_bucket"
            raise AwsError(text, "refused", "NoSuchBucket")

    def put(self, key: str, data: Buffer) -> None:
        self._s3.call("PutObject", Bucket=self._bucket, Key=key, Body=data)

    def put_object(self, name: str, data: Buffer) -> None:
        self.put(requests.object_key(self._prefix, name), data)

    def get(self, key: str) -> bytes:
        return self._s3.read(Bucket=self._bucket, Key=key)

    def results(self) -> dict[tuple[int, int], str]:
        found = {}
        for key in object_keys(self._s3, self._bucket, f"{self._prefix}results/"):
            *_, number, index = key.split("/")
            if number.isdecimal() and index.isdecimal():
                found[int(number), int(index)] = key
        return found

    def delete(self, keys: Sequence[str]) -> None:
        delete_objects(self._s3, self._bucket, keys)

    def clear(self) -> None:
        """Remove all objects of this session. If the manager is killed, they expire instead."""
        self.delete(list(object_keys(self._s3, self._bucket, self._prefix)))

    def close(self) -> None:
        self._s3.close()
