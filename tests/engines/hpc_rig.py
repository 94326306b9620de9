"""The AWS Batch executor in this process, with the emulator's jobs as processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from scaler.config.load import model_of
from scaler.offload.call import (
    Call,
    CallFailed,
    CallFinished,
    CallKey,
    CallResult,
    ExecutorDegraded,
    Report,
    unpack_result,
)
from scaler.serialization import dump_function, load_value, to_payload
from scaler.serialization.arguments import dump_arguments
from scaler.serialization.exceptions import load_exception
from scaler.testing.aws import AwsEmulator
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_hpc.executor import BatchExecutor
from scaler.worker_manager.aws_hpc.requests import JOB_MODULE, mark_of

WAIT_SECONDS = 20.0
BUCKET = "calls-and-results"


def settings(aws: AwsEmulator, **changes: Any) -> AwsHpcConfig:
    told = {
        "scheduler_address": "tcp://127.0.0.1:1",
        "worker_manager_id": "burst",
        "job_queue": "queue",
        "job_definition": "definition",
        "s3_bucket": BUCKET,
        "aws_region": "us-east-1",
        "aws_endpoint_url": aws.endpoint_url,
    }
    return model_of(AwsHpcConfig, {**told, **changes})


def furnish(aws: AwsEmulator, **changes: Any) -> None:
    """Create a queue, a job definition, and a bucket."""
    aws.batch.furnish(**{"command": ["python", "-P", "-m", JOB_MODULE], **changes})
    client = AwsClient(settings(aws), "s3")
    client.call("CreateBucket", Bucket=BUCKET)
    client.close()


class Rig:
    """An executor, with all its reports."""

    def __init__(self, aws: AwsEmulator, executor: BatchExecutor) -> None:
        self.aws = aws
        self.executor = executor
        self.reports: list[Report] = []
        self._changed = threading.Condition()
        self._count = 0

    def hear(self, report: Report) -> None:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition on the reports holds."""
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_SECONDS), self.reports

    def call(self, function: Callable[..., Any], *args: Any, once: bool = False, **kwargs: Any) -> Call:
        self._count += 1
        return Call(
            task=self._count.to_bytes(16, "big"),
            attempt=1,
            function=to_payload(dump_function(function)),
            arguments=to_payload(dump_arguments(args, kwargs)[0]),
            once=once,
        )

    def run(self, *calls: Call) -> None:
        self.executor.run(calls)

    def ends(self) -> dict[CallKey, CallFinished | CallFailed]:
        return {(each.task, each.attempt): each for each in self.reports if isinstance(each, CallFinished | CallFailed)}

    def end_of(self, call: Call) -> CallFinished | CallFailed:
        """Wait for the end of the rig's only call."""
        self.until(lambda: call.key in self.ends())
        same = [
            each
            for each in self.reports
            if isinstance(each, CallFinished | CallFailed) and (each.task, each.attempt) == call.key
        ]
        assert len(same) == 1
        return same[0]

    def result(self, call: Call) -> CallResult:
        end = self.end_of(call)
        assert isinstance(end, CallFinished), end
        return unpack_result(end.data)

    def value(self, call: Call) -> Any:
        return load_value(self.result(call).parts)

    def exception(self, call: Call) -> BaseException:
        return load_exception(bytes(self.result(call).parts[0]))

    def failure(self, call: Call) -> CallFailed:
        end = self.end_of(call)
        assert isinstance(end, CallFailed), end
        return end

    def troubles(self) -> list[str]:
        return [each.text for each in self.reports if isinstance(each, ExecutorDegraded)]

    def keys(self) -> list[str]:
        return self.aws.s3.keys(BUCKET)

    def alive(self, mark: str) -> list[str]:
        """Return the jobs that have running containers and this mark in their names."""
        described = self.aws.batch.call("DescribeJobs", {"jobs": self.aws.batch.alive()})["jobs"]
        return [job["jobId"] for job in described if mark in job["jobName"]]

    def jobs(self, status: str = "") -> list[dict[str, Any]]:
        """Return the queue's jobs with a status, or all. An array counts as one job."""
        if status:
            found = self.aws.batch.call("ListJobs", {"jobQueue": "queue", "jobStatus": status})
        else:
            filters = [{"name": "JOB_NAME", "values": ["*"]}]
            found = self.aws.batch.call("ListJobs", {"jobQueue": "queue", "filters": filters})
        jobs: list[dict[str, Any]] = found["jobSummaryList"]
        return jobs


@contextmanager
def rig_of(aws: AwsEmulator, **changes: Any) -> Iterator[Rig]:
    """Yield a started executor and close it, which must leave none of its manager's jobs."""
    made = Rig(aws, BatchExecutor(settings(aws, **changes)))
    try:
        made.executor.start(made.hear)
        yield made
    finally:
        made.executor.close()
    mark = mark_of(settings(aws, **changes))
    aws.batch.wait_until(lambda: not made.alive(mark), WAIT_SECONDS)
