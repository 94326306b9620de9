"""The emulated Batch as boto3 sees it, with real processes, faults by script, and moto beside it for the shapes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import boto3
import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError
from moto import mock_aws

from scaler.errors import UsageError
from scaler.testing.aws import AwsEmulator, Error, LoseReply, Slow, Throttle
from tests.engines.aws_shapes import missing_keys, unknown_keys
from tests.waiting import until

DEADLINE_SECONDS = 10.0
SLEEPER = ["python", "-c", "import time; print('ready', flush=True); time.sleep(60)"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]
POLITE = ["sh", "-c", "trap 'echo stopping; exit 7' TERM; echo ready; while :; do sleep 0.05; done"]
ROLE = "arn:aws:iam::123456789012:role/r"
THROUGH_S3 = """
import boto3, os
key = os.environ["AWS_BATCH_JOB_ID"]
s3 = boto3.client("s3")
s3.put_object(Bucket="results", Key=key, Body=s3.get_object(Bucket="results", Key="input")["Body"].read().upper())
"""


def client_of(service: str, attempts: int = 1, read_timeout: float = 5, **more: Any) -> Any:
    config = Config(retries={"total_max_attempts": attempts, "mode": "standard"}, read_timeout=read_timeout)
    return boto3.client(
        service, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b", config=config, **more
    )


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


def start(aws: AwsEmulator, batch: Any, command: list[str], **more: Any) -> str:
    """Submit a job, and wait until its command has said `ready`."""
    job = submit(batch, command, **more)
    aws.batch.wait_until(lambda: job in aws.batch.alive(), DEADLINE_SECONDS)
    until(lambda: "ready" in aws.batch.output(job))
    return job


def processes(aws: AwsEmulator) -> list[psutil.Process]:
    return [psutil.Process(container.pid) for container in aws.containers.running()]


def test_a_job_runs_its_command_and_ends_with_its_exit_code(aws: AwsEmulator, batch: Any) -> None:
    good = submit(batch, ["sh", "-c", "echo $AWS_BATCH_JOB_ID of $AWS_BATCH_JQ_NAME"])
    bad = submit(batch, ["sh", "-c", "exit 3"])
    await_state(aws, "SUCCEEDED", good)
    await_state(aws, "FAILED", bad)
    assert aws.batch.output(good) == f"{good} of queue\n"
    assert described(batch, bad)["attempts"][0]["container"]["exitCode"] == 3


def test_children_of_an_array_run_with_their_indexes_within_the_capacity(aws: AwsEmulator, batch: Any) -> None:
    array = submit(batch, ["sh", "-c", "echo $AWS_BATCH_JOB_ARRAY_INDEX"], arrayProperties={"size": 12})
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, len(aws.batch.alive()))
        return aws.batch.state(array) == "SUCCEEDED"

    aws.batch.wait_until(over, DEADLINE_SECONDS)
    assert 1 <= most <= 4
    assert [aws.batch.output(f"{array}:{index}") for index in range(12)] == [f"{index}\n" for index in range(12)]
    assert described(batch, array)["arrayProperties"]["statusSummary"]["SUCCEEDED"] == 12


def test_boto3_inside_a_container_finds_the_emulator(aws: AwsEmulator, batch: Any) -> None:
    s3 = client_of("s3", endpoint_url=aws.endpoint_url)
    s3.create_bucket(Bucket="results")
    s3.put_object(Bucket="results", Key="input", Body=b"text")
    job = submit(batch, ["python", "-c", THROUGH_S3])
    aws.batch.wait_until(lambda: aws.batch.state(job) in ("SUCCEEDED", "FAILED"), DEADLINE_SECONDS)
    assert aws.batch.output(job) == ""
    assert s3.get_object(Bucket="results", Key=job)["Body"].read() == b"TEXT"
    s3.close()


def test_a_terminated_job_may_end_by_itself_and_nothing_is_left(aws: AwsEmulator, batch: Any) -> None:
    job = start(aws, batch, POLITE, retryStrategy={"attempts": 3})
    batch.terminate_job(jobId=job, reason="enough")
    await_state(aws, "FAILED", job)
    assert aws.batch.output(job) == "ready\nstopping\n"
    ended = described(batch, job)
    assert (ended["statusReason"], ended["container"]["exitCode"]) == ("enough", 7)
    assert processes(aws) == []


def test_a_job_that_ignores_its_end_is_killed(aws: AwsEmulator, batch: Any) -> None:
    aws.batch.times.stop = 0.1
    job = start(aws, batch, STUBBORN)
    batch.terminate_job(jobId=job, reason="enough")
    await_state(aws, "FAILED", job)
    assert described(batch, job)["container"]["exitCode"] == 137


def test_a_killed_container_is_an_attempt_that_is_repeated(aws: AwsEmulator, batch: Any) -> None:
    job = start(aws, batch, SLEEPER, retryStrategy={"attempts": 2})
    reason = "OutOfMemoryError: Container killed due to memory usage"
    aws.batch.kill_container(job, reason=reason)
    aws.batch.wait_until(lambda: len(aws.batch.alive()) == 0, DEADLINE_SECONDS)
    await_state(aws, "RUNNING", job)
    [attempt] = described(batch, job)["attempts"]
    assert (attempt["container"]["exitCode"], attempt["container"]["reason"]) == (137, reason)
    until(lambda: "ready" in aws.batch.output(job))
    aws.batch.kill_container(job, signal.SIGTERM)
    await_state(aws, "FAILED", job)
    assert described(batch, job)["container"]["exitCode"] == 143


def test_a_lost_host_takes_the_process_with_it(aws: AwsEmulator, batch: Any) -> None:
    job = start(aws, batch, STUBBORN)
    [process] = processes(aws)
    aws.batch.host_lost(job)
    await_state(aws, "FAILED", job)
    until(lambda: not process.is_running())
    assert described(batch, job)["statusReason"].startswith("Host EC2 (instance i-")
    assert aws.batch.alive() == []


def test_a_spot_notice_lets_the_process_say_goodbye(aws: AwsEmulator, batch: Any) -> None:
    job = start(aws, batch, POLITE)
    aws.batch.spot_notice(job)
    await_state(aws, "FAILED", job)
    assert described(batch, job)["statusReason"] == "Your Spot Task was interrupted."
    assert "stopping" in aws.batch.output(job)


def test_a_time_limit_that_is_over_ends_the_job(aws: AwsEmulator, batch: Any) -> None:
    job = start(aws, batch, SLEEPER, timeout={"attemptDurationSeconds": 60}, retryStrategy={"attempts": 2})
    aws.batch.expire(job)
    await_state(aws, "FAILED", job)
    assert described(batch, job)["statusReason"] == "Job attempt duration exceeded timeout"


def test_a_stuck_queue_says_why_and_goes_on_when_it_is_over(aws: AwsEmulator, batch: Any) -> None:
    aws.batch.stuck("queue")
    job = submit(batch)
    await_state(aws, "RUNNABLE", job)
    assert described(batch, job)["statusReason"].startswith("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY")
    aws.batch.unstuck("queue")
    await_state(aws, "SUCCEEDED", job)


def test_starts_fail_by_script_and_for_commands_that_are_not_there(aws: AwsEmulator, batch: Any) -> None:
    aws.batch.fail_starts()
    pulled, missing = submit(batch), submit(batch, ["no-such-program"])
    await_state(aws, "FAILED", pulled, missing)
    reasons = [described(batch, job)["container"]["reason"] for job in (pulled, missing)]
    assert reasons[0].startswith("CannotPullContainerError")
    assert reasons[1].startswith("CannotStartContainerError")


def test_throttled_calls_are_refused_as_the_service_does_and_clients_try_again(aws: AwsEmulator, batch: Any) -> None:
    aws.faults.add("SubmitJob", Throttle())
    with pytest.raises(ClientError, match="TooManyRequestsException") as caught:
        submit(batch)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
    aws.faults.add("SubmitJob", Throttle())
    patient = client_of("batch", attempts=3, endpoint_url=aws.endpoint_url)
    await_state(aws, "SUCCEEDED", submit(patient))
    patient.close()


def test_a_lost_reply_leaves_a_job_that_is_found_by_its_name(aws: AwsEmulator, batch: Any) -> None:
    aws.faults.add("SubmitJob", LoseReply())
    with pytest.raises(ConnectionClosedError):
        submit(batch, jobName="lost-1")
    aws.faults.add("SubmitJob", Error("ExpiredTokenException", "The security token is expired", 403))
    with pytest.raises(ClientError, match="ExpiredTokenException"):
        submit(batch, jobName="lost-2")
    wanted = [{"name": "JOB_NAME", "values": ["lost-*"]}]
    until(lambda: bool(batch.list_jobs(jobQueue="queue", filters=wanted)["jobSummaryList"]))
    [found] = batch.list_jobs(jobQueue="queue", filters=wanted)["jobSummaryList"]
    assert found["jobName"] == "lost-1"
    await_state(aws, "SUCCEEDED", found["jobId"])


def test_a_slow_call_holds_up_nobody_else(aws: AwsEmulator, batch: Any) -> None:
    aws.faults.add("DescribeJobQueues", Slow(60))
    impatient = client_of("batch", read_timeout=0.2, endpoint_url=aws.endpoint_url)
    with pytest.raises(ReadTimeoutError):
        impatient.describe_job_queues()
    assert [queue["jobQueueName"] for queue in batch.describe_job_queues()["jobQueues"]] == ["queue"]
    impatient.close()


def test_faults_of_what_does_not_run_are_mistakes(aws: AwsEmulator, batch: Any) -> None:
    job = submit(batch)
    await_state(aws, "SUCCEEDED", job)
    with pytest.raises(UsageError, match="the job is SUCCEEDED"):
        aws.batch.kill_container(job)
    for act in (aws.batch.kill_container, aws.batch.host_lost, aws.batch.expire, aws.batch.output, aws.batch.state):
        with pytest.raises(UsageError):
            act("nobody")
    with pytest.raises(TimeoutError):
        aws.batch.wait_until(lambda: False, 0.01)


def test_the_end_of_the_emulator_ends_all_containers() -> None:
    with AwsEmulator() as aws:
        aws.batch.furnish()
        batch = client_of("batch", endpoint_url=aws.endpoint_url)
        start(aws, batch, STUBBORN)
        [process] = processes(aws)
        batch.close()
    assert not process.is_running()


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
    # It shows what it gives the container, where the service shows what was asked for.
    ".container.environment[0]",
    # It shows these with the same values for every job.
    ".container.privileged",
    ".container.readonlyRootFilesystem",
    # The service shows them for job definitions that have them instead of resourceRequirements.
    ".container.memory",
    ".container.vcpus",
}
"""What moto shows of a job that the service does not have for a job on Fargate."""


def test_answers_have_the_shape_of_motos() -> None:
    resources = {"type": "FARGATE", "maxvCpus": 4, "subnets": ["subnet-1"], "securityGroupIds": ["sg-1"]}
    with AwsEmulator() as aws:
        client = client_of("batch", endpoint_url=aws.endpoint_url)
        ours = walk(client, {"type": "MANAGED", "computeResources": resources})
        client.close()
    with mock_aws(config={"batch": {"use_docker": False}}):
        client_of("iam").create_role(RoleName="r", AssumeRolePolicyDocument="{}")
        theirs = walk(client_of("batch"), {"type": "UNMANAGED"})  # its EC2 takes seconds to load
    lines = missing_keys(theirs, ours, "")
    assert {line.partition(".jobs[0]")[2] for line in lines} == MOTO_IS_WRONG, lines


def test_answers_say_nothing_that_the_services_model_does_not_know(aws: AwsEmulator, batch: Any) -> None:
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


@pytest.mark.parametrize(("service", "operation"), [("sqs", "list_queues"), ("dynamodb", "list_tables")])
def test_a_service_that_is_not_emulated_says_so_to_boto3(aws: AwsEmulator, service: Any, operation: str) -> None:
    client: Any = boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=aws.endpoint_url,
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    with pytest.raises(
        ClientError,
        match=r"\(NotEmulated\).* operation: the emulator has ECS, Batch, Service Quotas, S3, IAM",
    ):
        getattr(client, operation)()
