"""A Batch without clock or processes, in the hands of a test."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from scaler.testing.aws.batch import BatchCore, StartContainer, Times
from scaler.testing.aws.batch.running import Command
from scaler.testing.aws.faults import ServiceError

PREFIX = "arn:aws:batch:us-east-1:123456789012:"
SLOW = Times(submitted=1, pending=2, starting=10, changing=5, listing=3, stop=30, notice=120)
COMPUTE: dict[str, Any] = {"type": "FARGATE", "maxvCpus": 2, "subnets": ["subnet-0"], "securityGroupIds": ["sg-0"]}
CONTAINER: dict[str, Any] = {
    "image": "python:3.11-slim",
    "command": ["run", "Ref::what"],
    "executionRoleArn": "arn:aws:iam::123456789012:role/execution",
    "environment": [{"name": "FROM", "value": "definition"}, {"name": "KEPT", "value": "yes"}],
    "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "2048"}],
}
DEFINITION: dict[str, Any] = {
    "jobDefinitionName": "d",
    "type": "container",
    "platformCapabilities": ["FARGATE"],
    "parameters": {"what": "default"},
    "containerProperties": CONTAINER,
}
TO_RUNNING = SLOW.submitted + SLOW.pending + SLOW.starting


class BatchWorld:
    """A core with a compute environment `c` of two vCPUs, a queue `q`, a job definition `d` of one, and a clock."""

    def __init__(self, **queue: Any) -> None:
        self.now = 1000.0
        self.started: list[StartContainer] = []
        ids = itertools.count(1)
        self.core = BatchCore(PREFIX, lambda: f"id-{next(ids)}", SLOW)
        self.call("CreateComputeEnvironment", computeEnvironmentName="c", type="MANAGED", computeResources=COMPUTE)
        self.pass_time(SLOW.changing)
        order = [{"order": 1, "computeEnvironment": "c"}]
        self.call("CreateJobQueue", jobQueueName="q", priority=1, computeEnvironmentOrder=order, **queue)
        self.pass_time(SLOW.changing)
        self.call("RegisterJobDefinition", **DEFINITION)

    def call(self, operation: str, **request: Any) -> dict[str, Any]:
        answer = self.core.call(operation, request, self.now)
        self.core.check()
        return answer

    def refusal(self, operation: str, **request: Any) -> str:
        """Return the text with which a request is refused as the client's mistake."""
        with pytest.raises(ServiceError) as caught:
            self.call(operation, **request)
        assert caught.value.code == "ClientException"
        return caught.value.message

    def submit(self, **more: Any) -> str:
        """Submit a job and return its id."""
        request = {"jobName": "j", "jobQueue": "q", "jobDefinition": "d", **more}
        return str(self.call("SubmitJob", **request)["jobId"])

    def run(self, **more: Any) -> str:
        """Submit a job, wait until it runs, and return its id."""
        job_id = self.submit(**more)
        self.pass_time(TO_RUNNING)
        assert self.status(job_id) == "RUNNING"
        return job_id

    def pass_time(self, seconds: float) -> list[Command]:
        """Let time pass; return what must be done outside."""
        self.now += seconds
        self.core.advance(self.now)
        return self.commands()

    def commands(self) -> list[Command]:
        """Return what must be done outside."""
        self.core.check()
        commands = self.core.take_commands()
        self.started += [command for command in commands if isinstance(command, StartContainer)]
        return commands

    def end(self, job_id: str, exit_code: int) -> list[Command]:
        """Let a job's container end by itself."""
        run_id = [start.run_id for start in self.started if start.job_id == job_id][-1]
        self.core.running.container_ended(run_id, exit_code, self.now)
        return self.pass_time(0)

    def describe(self, job_id: str) -> dict[str, Any]:
        [job] = self.call("DescribeJobs", jobs=[job_id])["jobs"]
        assert isinstance(job, dict)
        return job

    def status(self, job_id: str) -> str:
        return str(self.describe(job_id)["status"])

    def names(self, **request: Any) -> list[str]:
        """Return the ids that ListJobs shows."""
        return [job["jobId"] for job in self.call("ListJobs", **request)["jobSummaryList"]]
