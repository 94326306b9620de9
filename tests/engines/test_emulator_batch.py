"""The emulated Batch through boto3, with real processes, scripted faults, and moto to compare shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from scaler.testing.aws import AwsEmulator
from tests.engines.aws_shapes import client_of, missing_keys, unknown_keys
from tests.waiting import until

DEADLINE_SECONDS = 10.0
ROLE = "arn:aws:iam::123456789012:role/r"


@pytest.fixture
def aws() -> Iterator[AwsEmulator]:
    with AwsEmulator() as emulator:
        emulator.batch.furnish(command=["true"])
        yield emulator
        emulator.batch.check()


@pytest.fixture
def batch(aws: AwsEmulator) -> Iterator[Any]:
    client = client_of("batch", endpoint_url=aws.endpoint_url)
    yield client
    client.close()


def submit(batch: Any, command: list[str] | None = None, **more: Any) -> str:
    """Submit a job and return its id."""
    if command is not None:
        more["containerOverrides"] = {"command": command}
    request = {"jobName": "job", "jobQueue": "queue", "jobDefinition": "definition", **more}
    return str(batch.submit_job(**request)["jobId"])


def described(batch: Any, job: str) -> Any:
    [found] = batch.describe_jobs(jobs=[job])["jobs"]
    return found


def await_state(aws: AwsEmulator, state: str, *jobs: str) -> None:
    aws.batch.wait_until(lambda: all(aws.batch.state(job) == state for job in jobs), DEADLINE_SECONDS)


def walk(batch: Any, environment: dict[str, Any]) -> dict[str, Any]:
    """Call every operation once; return the answers."""
    answers: dict[str, Any] = {}

    def call(operation: str, **request: Any) -> Any:
        method = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in operation).lstrip("_")
        answers[operation] = getattr(batch, method)(**request)
        return answers[operation]

    def valid(operation: str, member: str) -> None:
        until(lambda: call(operation)[member][-1]["status"] == "VALID")

    call(
        "CreateComputeEnvironment", computeEnvironmentName="walk", state="ENABLED", serviceRole=ROLE, tags={"a": "b"},
        **environment,
    )  # fmt: skip
    valid("DescribeComputeEnvironments", "computeEnvironments")
    order = [{"order": 1, "computeEnvironment": "walk"}]
    call("CreateJobQueue", jobQueueName="walk", state="ENABLED", priority=1, computeEnvironmentOrder=order)
    valid("DescribeJobQueues", "jobQueues")
    sizes = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "2048"}]
    container = {"image": "i", "command": ["true"], "executionRoleArn": ROLE, "resourceRequirements": sizes}
    call(
        "RegisterJobDefinition", jobDefinitionName="walk", type="container", containerProperties=container,
        platformCapabilities=["FARGATE"], tags={"a": "b"}, timeout={"attemptDurationSeconds": 60},
        retryStrategy={"attempts": 2}, parameters={"a": "b"},
    )  # fmt: skip
    call("DescribeJobDefinitions", jobDefinitionName="walk")
    queue = answers["CreateJobQueue"]["jobQueueArn"]
    call("TagResource", resourceArn=queue, tags={"c": "d"})
    call("ListTagsForResource", resourceArn=queue)
    job = call("SubmitJob", jobName="walk", jobQueue="walk", jobDefinition="walk", tags={"a": "b"})["jobId"]
    until(lambda: call("DescribeJobs", jobs=[job])["jobs"][0]["status"] == "SUCCEEDED")
    until(lambda: bool(call("ListJobs", jobQueue="walk", jobStatus="SUCCEEDED")["jobSummaryList"]))
    array = batch.submit_job(jobName="a", jobQueue="walk", jobDefinition="walk", arrayProperties={"size": 2})["jobId"]
    until(lambda: call("DescribeJobs", jobs=[array])["jobs"][0]["status"] == "SUCCEEDED")
    answers["DescribeJobs of a child"] = batch.describe_jobs(jobs=[f"{array}:1"])
    call("DescribeJobs", jobs=[job])
    call("CancelJob", jobId=job, reason="late")
    call("TerminateJob", jobId=job, reason="late")
    call("DeregisterJobDefinition", jobDefinition="walk:1")
    call("UpdateJobQueue", jobQueue="walk", state="DISABLED")
    valid("DescribeJobQueues", "jobQueues")
    call("DeleteJobQueue", jobQueue="walk")
    until(lambda: not batch.describe_job_queues(jobQueues=["walk"])["jobQueues"])
    call("UpdateComputeEnvironment", computeEnvironment="walk", state="DISABLED")
    valid("DescribeComputeEnvironments", "computeEnvironments")
    call("DeleteComputeEnvironment", computeEnvironment="walk")
    return answers


MOTO_IS_WRONG = {
    # Fargate has no container instances.
    ".attempts[0].container.containerInstanceArn",
    # Shows values passed to the container, where the service shows the request.
    ".container.environment[0]",
    # Shows these with the same values for every job.
    ".container.privileged",
    ".container.readonlyRootFilesystem",
    # The service shows these for job definitions that use them instead of resourceRequirements.
    ".container.memory",
    ".container.vcpus",
}
"""Fields of moto's jobs that the service lacks for jobs on Fargate."""


def test_answers_have_the_same_shape_as_moto_answers() -> None:
    resources = {"type": "FARGATE", "maxvCpus": 4, "subnets": ["subnet-1"], "securityGroupIds": ["sg-1"]}
    with AwsEmulator() as aws:
        client = client_of("batch", endpoint_url=aws.endpoint_url)
        ours = walk(client, {"type": "MANAGED", "computeResources": resources})
        client.close()
    with mock_aws(config={"batch": {"use_docker": False}}):
        client_of("iam").create_role(RoleName="r", AssumeRolePolicyDocument="{}")
        theirs = walk(client_of("batch"), {"type": "UNMANAGED"})  # loading its EC2 takes seconds
    lines = missing_keys(theirs, ours, "")
    assert {line.partition(".jobs[0]")[2] for line in lines} == MOTO_IS_WRONG, lines


def test_answers_contain_only_what_the_service_model_defines(aws: AwsEmulator, batch: Any) -> None:
    array = submit(batch, ["sh", "-c", "exit $AWS_BATCH_JOB_ARRAY_INDEX"], arrayProperties={"size": 2}, tags={"a": "b"})
    await_state(aws, "FAILED", array)
    model = batch.meta.service_model
    requests: list[tuple[str, dict[str, Any]]] = [
        ("DescribeJobs", {"jobs": [array, f"{array}:0", f"{array}:1"]}),
        ("ListJobs", {"jobQueue": "queue", "jobStatus": "FAILED"}),
        ("ListJobs", {"arrayJobId": array, "jobStatus": "FAILED"}),
        ("SubmitJob", {"jobName": "j", "jobQueue": "queue", "jobDefinition": "definition"}),
        ("DescribeComputeEnvironments", {}),
        ("DescribeJobQueues", {}),
        ("DescribeJobDefinitions", {}),
        ("ListTagsForResource", {"resourceArn": described(batch, array)["jobArn"]}),
    ]
    for operation, request in requests:
        answer = aws.batch.call(operation, request)
        assert unknown_keys(answer, model.operation_model(operation).output_shape, operation) == []
