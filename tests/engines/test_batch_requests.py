"""What the emulated Batch accepts, refuses and answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.batch_rig import COMPUTE, CONTAINER, DEFINITION, PREFIX, SLOW, BatchWorld


@pytest.fixture
def world() -> BatchWorld:
    return BatchWorld()


def variables(**values: str) -> dict[str, Any]:
    return {"environment": [{"name": name, "value": value} for name, value in values.items()]}


def sizes(vcpus: str, memory: str) -> dict[str, Any]:
    return {"resourceRequirements": [{"type": "VCPU", "value": vcpus}, {"type": "MEMORY", "value": memory}]}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"jobName": "has space"}, "jobName"),
        ({"jobName": "x" * 129}, "jobName"),
        ({"jobQueue": "none"}, "JobQueue none not found"),
        ({"jobDefinition": "none"}, "JobDefinition none"),
        ({"jobDefinition": "d:2"}, "JobDefinition d:2"),
        ({"arrayProperties": {"size": 1}}, "between 2 and 10000"),
        ({"arrayProperties": {"size": 10_001}}, "between 2 and 10000"),
        ({"timeout": {"attemptDurationSeconds": 59}}, "at least 60"),
        ({"retryStrategy": {"attempts": 0}}, "between 1 and 10"),
        ({"retryStrategy": {"attempts": 11}}, "between 1 and 10"),
        (
            {"retryStrategy": {"attempts": 2, "evaluateOnExit": [{"onExitCode": "1", "action": "EXIT"}] * 6}},
            "at most 5 rules",
        ),
        ({"retryStrategy": {"attempts": 2, "evaluateOnExit": [{"action": "EXIT"}]}}, "must have onStatusReason"),
        ({"retryStrategy": {"attempts": 2, "evaluateOnExit": [{"onReason": "*x", "action": "EXIT"}]}}, "at its end"),
        ({"containerOverrides": variables(AWS_BATCH_X="1")}, "reserved"),
        ({"containerOverrides": sizes("3", "2048")}, "no size of 3 vCPU"),
        ({"containerOverrides": sizes("0.25", "4096")}, "no size of 0.25 vCPU with 4096 MiB"),
        ({"containerOverrides": variables(X="x" * 31 * 1024)}, "Job size must be less than 30 KiB, got 32 KiB"),
        ({"tags": {str(number): "" for number in range(51)}}, "50 tags"),
        ({"dependsOn": [{"jobId": "id-1"}]}, "the emulator has no dependsOn"),
    ],
)
def test_a_job_that_may_not_be_is_refused(world: BatchWorld, wrong: dict[str, Any], text: str) -> None:
    request = {"jobName": "j", "jobQueue": "q", "jobDefinition": "d", **wrong}
    message = world.refusal("SubmitJob", **request)
    assert text in message
    assert message.startswith("Error executing request, Exception : ")
    assert "RequestId: " in message


def test_a_disabled_queue_takes_no_jobs_but_finishes_those_it_has(world: BatchWorld) -> None:
    job = world.submit()
    world.call("UpdateJobQueue", jobQueue="q", state="DISABLED")
    assert "not in ENABLED state" in world.refusal("SubmitJob", jobName="j", jobQueue="q", jobDefinition="d")
    world.pass_time(20)
    assert world.status(job) == "RUNNING"


def test_at_most_a_hundred_jobs_are_described_at_once_and_unknown_ones_left_out(world: BatchWorld) -> None:
    job = world.submit()
    many = [job, "nobody", f"{job}:0", f"{PREFIX}job/{job}", *["nobody"] * 96]
    assert [each["jobId"] for each in world.call("DescribeJobs", jobs=many)["jobs"]] == [job, job]
    assert "Maximum number of jobs supported is 100" in world.refusal("DescribeJobs", jobs=[*many, "nobody"])


def test_the_newest_active_revision_of_a_definition_is_used(world: BatchWorld) -> None:
    assert world.call("RegisterJobDefinition", **DEFINITION)["revision"] == 2
    assert world.describe(world.submit())["jobDefinition"] == f"{PREFIX}job-definition/d:2"
    world.call("DeregisterJobDefinition", jobDefinition="d:2")
    assert world.describe(world.submit())["jobDefinition"] == f"{PREFIX}job-definition/d:1"
    assert "was not found or is not ACTIVE" in world.refusal(
        "SubmitJob", jobName="j", jobQueue="q", jobDefinition=f"{PREFIX}job-definition/d:2"
    )
    states = [each["status"] for each in world.call("DescribeJobDefinitions", jobDefinitionName="d")["jobDefinitions"]]
    assert states == ["ACTIVE", "INACTIVE"]
    active = world.call("DescribeJobDefinitions", jobDefinitions=["d"], status="ACTIVE")["jobDefinitions"]
    assert [each["revision"] for each in active] == [1]


def test_a_definition_for_fargate_has_an_execution_role_and_a_size_of_fargate(world: BatchWorld) -> None:
    without_role = {name: value for name, value in CONTAINER.items() if name != "executionRoleArn"}
    assert "executionRoleArn" in world.refusal(
        "RegisterJobDefinition", **{**DEFINITION, "containerProperties": without_role}
    )
    odd = {**CONTAINER, **sizes("1", "1000")}
    assert "no size" in world.refusal("RegisterJobDefinition", **{**DEFINITION, "containerProperties": odd})
    assert "whole number" in world.refusal(
        "RegisterJobDefinition",
        **{**DEFINITION, "platformCapabilities": ["EC2"], "containerProperties": {**CONTAINER, **sizes("0.5", "64")}},
    )


def test_a_queue_runs_jobs_of_its_own_platform_only(world: BatchWorld) -> None:
    world.call("RegisterJobDefinition", **{**DEFINITION, "jobDefinitionName": "ec2", "platformCapabilities": ["EC2"]})
    assert "platform capability" in world.refusal("SubmitJob", jobName="j", jobQueue="q", jobDefinition="ec2")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"maxvCpus": 0}, "maxvCpus"),
        ({"subnets": []}, "subnets"),
        ({"securityGroupIds": []}, "securityGroupIds"),
        ({"minvCpus": 0}, "not applicable to Fargate"),
        ({"type": "SPOT"}, "instanceRole"),
        ({"type": "MAINFRAME"}, "must be one of"),
    ],
)
def test_compute_resources_that_may_not_be_are_refused(world: BatchWorld, wrong: dict[str, Any], text: str) -> None:
    request = {"computeEnvironmentName": "e", "type": "MANAGED", "computeResources": {**COMPUTE, **wrong}}
    assert text in world.refusal("CreateComputeEnvironment", **request)


def test_places_take_their_time_to_be_valid_and_are_taken_down_in_order(world: BatchWorld) -> None:
    world.call("CreateComputeEnvironment", computeEnvironmentName="e", type="MANAGED", computeResources=COMPUTE)
    order = [{"order": 1, "computeEnvironment": "e"}]
    assert "is not valid" in world.refusal(
        "CreateJobQueue", jobQueueName="r", priority=1, computeEnvironmentOrder=order
    )
    [shown] = world.call("DescribeComputeEnvironments", computeEnvironments=["e"])["computeEnvironments"]
    assert shown["status"] == "CREATING"
    assert "being modified" in world.refusal("UpdateComputeEnvironment", computeEnvironment="e", state="DISABLED")
    world.pass_time(SLOW.changing)
    world.call("CreateJobQueue", jobQueueName="r", priority=1, computeEnvironmentOrder=order)
    world.pass_time(SLOW.changing)
    assert "must be DISABLED" in world.refusal("DeleteComputeEnvironment", computeEnvironment="e")
    world.call("UpdateComputeEnvironment", computeEnvironment="e", state="DISABLED")
    world.pass_time(SLOW.changing)
    assert "found existing JobQueue" in world.refusal("DeleteComputeEnvironment", computeEnvironment="e")
    assert "must be DISABLED" in world.refusal("DeleteJobQueue", jobQueue="r")
    world.call("UpdateJobQueue", jobQueue="r", state="DISABLED")
    world.pass_time(SLOW.changing)
    world.call("DeleteJobQueue", jobQueue=f"{PREFIX}job-queue/r")
    [queue] = world.call("DescribeJobQueues", jobQueues=["r"])["jobQueues"]
    assert queue["status"] == "DELETING"
    world.pass_time(SLOW.changing)
    world.call("DeleteComputeEnvironment", computeEnvironment="e")
    world.pass_time(SLOW.changing)
    assert world.call("DescribeJobQueues", jobQueues=["r"])["jobQueues"] == []
    assert world.call("DescribeComputeEnvironments", computeEnvironments=["e"])["computeEnvironments"] == []


def test_names_are_taken_once(world: BatchWorld) -> None:
    order = [{"order": 1, "computeEnvironment": "c"}]
    assert "already exists" in world.refusal(
        "CreateJobQueue", jobQueueName="q", priority=1, computeEnvironmentOrder=order
    )
    assert "already exists" in world.refusal(
        "CreateComputeEnvironment", computeEnvironmentName="c", type="MANAGED", computeResources=COMPUTE
    )


def test_tags_stay_with_jobs_queues_environments_and_definitions(world: BatchWorld) -> None:
    job = f"{PREFIX}job/{world.submit(tags={'a': '1'})}"
    arns = [f"{PREFIX}job-queue/q", f"{PREFIX}compute-environment/c", f"{PREFIX}job-definition/d:1", job]
    for arn in arns:
        world.call("TagResource", resourceArn=arn, tags={"b": "2"})
    found = [world.call("ListTagsForResource", resourceArn=arn)["tags"] for arn in arns]
    assert found == [{"b": "2"}] * 3 + [{"a": "1", "b": "2"}]
    assert "does not exist" in world.refusal("ListTagsForResource", resourceArn=f"{PREFIX}job/nobody")


def test_jobs_are_listed_by_state_newest_first_and_running_ones_by_default(world: BatchWorld) -> None:
    first, second, third = (world.submit() for _ in range(3))
    world.pass_time(20)
    assert world.names(jobQueue="q") == [second, first]
    assert world.names(jobQueue="q", jobStatus="RUNNABLE") == [third]
    assert "exactly one of" in world.refusal("ListJobs")
    assert "must be one of" in world.refusal("ListJobs", jobQueue="q", jobStatus="LOST")


def test_a_filter_takes_names_in_any_case_with_a_star_at_the_end_and_all_states(world: BatchWorld) -> None:
    one, two = world.submit(jobName="Fleet-1"), world.submit(jobName="fleet-10", arrayProperties={"size": 2})
    world.submit(jobName="other")
    world.pass_time(20)

    def named(text: str, **more: Any) -> list[str]:
        return world.names(jobQueue="q", filters=[{"name": "JOB_NAME", "values": [text]}], **more)

    assert named("FLEET-1") == [one]
    assert named("fleet*", jobStatus="FAILED") == [two, one]
    assert world.names(jobQueue="q", filters=[{"name": "JOB_DEFINITION", "values": ["d"]}])[1:] == [two, one]
    assert world.names(jobQueue="q", filters=[{"name": "AFTER_CREATED_AT", "values": ["0"]}])[1:] == [two, one]
    assert "only one filter" in world.refusal(
        "ListJobs", jobQueue="q", filters=[{"name": "JOB_NAME", "values": ["a"]}] * 2
    )


def test_a_new_job_is_described_at_once_and_listed_a_little_later(world: BatchWorld) -> None:
    job = world.submit()
    wanted = [{"name": "JOB_NAME", "values": ["j"]}]
    assert world.status(job) == "SUBMITTED"
    assert world.names(jobQueue="q", filters=wanted) == []
    world.pass_time(SLOW.listing)
    assert world.names(jobQueue="q", filters=wanted) == [job]


def test_pages_do_not_lose_or_repeat_jobs_that_come_meanwhile(world: BatchWorld) -> None:
    jobs = [world.submit() for _ in range(5)]
    world.pass_time(5)
    request: dict[str, Any] = {"jobQueue": "q", "filters": [{"name": "JOB_NAME", "values": ["j"]}], "maxResults": 2}
    page = world.call("ListJobs", **request)
    seen = [job["jobId"] for job in page["jobSummaryList"]]
    world.submit()
    world.pass_time(5)
    while "nextToken" in page:
        page = world.call("ListJobs", **request, nextToken=page["nextToken"])
        seen += [job["jobId"] for job in page["jobSummaryList"]]
    assert seen == jobs[::-1]
    assert "nextToken" in world.refusal("ListJobs", **request, nextToken="x")


def test_filtered_lists_have_pages_of_a_hundred(world: BatchWorld) -> None:
    for _ in range(101):
        world.submit()
    world.pass_time(5)
    page = world.call("ListJobs", jobQueue="q", filters=[{"name": "JOB_NAME", "values": ["j"]}], maxResults=500)
    assert len(page["jobSummaryList"]) == 100
    assert "nextToken" in page
