"""The life of an emulated Batch job, from its submission to its end."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.testing.aws.batch import KillContainer, StartContainer, TerminateContainer
from scaler.testing.aws.batch.core import RETENTION_SECONDS
from tests.engines.batch_rig import COMPUTE, PREFIX, SLOW, BatchWorld

EXITED = "Essential container in task exited"


@pytest.fixture
def world() -> BatchWorld:
    return BatchWorld()


def retry(attempts: int, *rules: dict[str, str]) -> dict[str, Any]:
    return {"retryStrategy": {"attempts": attempts, "evaluateOnExit": list(rules)}}


def test_a_job_takes_its_time_from_submitted_to_running_and_succeeds(world: BatchWorld) -> None:
    job = world.submit()
    seen = [world.status(job)]
    for seconds in (SLOW.submitted, SLOW.pending):
        assert world.pass_time(seconds) == []
        seen.append(world.status(job))
    [start] = world.pass_time(SLOW.starting)
    assert seen == ["SUBMITTED", "PENDING", "STARTING"]
    assert isinstance(start, StartContainer)
    assert world.status(job) == "RUNNING"
    world.pass_time(7)
    world.end(job, 0)
    ended = world.describe(job)
    assert (ended["status"], ended["statusReason"], ended["container"]["exitCode"]) == ("SUCCEEDED", EXITED, 0)
    assert (ended["createdAt"], ended["startedAt"], ended["stoppedAt"]) == (1_010_000, 1_023_000, 1_030_000)
    [attempt] = ended["attempts"]
    assert (attempt["startedAt"], attempt["stoppedAt"], attempt["container"]["exitCode"]) == (1_023_000, 1_030_000, 0)


def test_a_container_gets_the_environment_and_command_of_definition_and_job(world: BatchWorld) -> None:
    overrides = {"environment": [{"name": "FROM", "value": "job"}]}
    job = world.run(parameters={"what": "this"}, containerOverrides=overrides)
    [start] = world.started
    assert start.command == ("run", "this")
    assert start.environment == {
        "FROM": "job",
        "KEPT": "yes",
        "AWS_BATCH_JOB_ID": job,
        "AWS_BATCH_JOB_ATTEMPT": "1",
        "AWS_BATCH_JQ_NAME": "q",
        "AWS_BATCH_CE_NAME": "c",
    }
    world.run(containerOverrides={"command": ["other", "Ref::what", "Ref::unknown"]})
    assert world.started[-1].command == ("other", "default", "Ref::unknown")


def test_no_more_vcpus_run_than_the_environment_has(world: BatchWorld) -> None:
    jobs = [world.submit() for _ in range(3)]
    world.pass_time(60)
    assert [world.status(job) for job in jobs] == ["RUNNING", "RUNNING", "RUNNABLE"]
    world.end(jobs[0], 0)
    assert world.status(jobs[2]) == "STARTING"


def test_a_large_job_at_the_head_of_the_queue_holds_up_small_ones(world: BatchWorld) -> None:
    first = world.run()
    sizes = [{"type": "VCPU", "value": "2"}, {"type": "MEMORY", "value": "4096"}]
    large = world.submit(containerOverrides={"resourceRequirements": sizes})
    small = world.submit()
    world.pass_time(60)
    assert [world.status(large), world.status(small)] == ["RUNNABLE", "RUNNABLE"]
    assert "statusReason" not in world.describe(large)
    world.end(first, 0)
    world.pass_time(60)
    assert [world.status(large), world.status(small)] == ["RUNNING", "RUNNABLE"]


def test_a_job_too_large_for_every_environment_waits_for_ever_and_says_why(world: BatchWorld) -> None:
    sizes = [{"type": "VCPU", "value": "4"}, {"type": "MEMORY", "value": "8192"}]
    job = world.submit(containerOverrides={"resourceRequirements": sizes})
    world.pass_time(1e6)
    described = world.describe(job)
    assert described["status"] == "RUNNABLE"
    assert described["statusReason"].startswith("MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE - ")
    world.call("UpdateComputeEnvironment", computeEnvironment="c", computeResources={"maxvCpus": 4})
    world.pass_time(60)
    assert world.status(job) == "RUNNING"


def test_a_stuck_queue_places_nothing_and_the_job_at_its_head_says_why(world: BatchWorld) -> None:
    world.core.queue("q").stuck = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - no hosts"
    array = world.submit(arrayProperties={"size": 2})
    world.pass_time(500)
    waiting = world.call("ListJobs", arrayJobId=array, jobStatus="RUNNABLE")["jobSummaryList"]
    assert [job.get("statusReason") for job in waiting] == ["CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - no hosts", None]
    assert world.status(array) == "PENDING"
    world.core.queue("q").stuck = ""
    world.pass_time(SLOW.starting)
    world.pass_time(SLOW.starting)
    assert world.status(f"{array}:0") == "RUNNING"
    assert "statusReason" not in world.describe(f"{array}:0")


def test_a_queue_may_cancel_what_blocks_it_for_long() -> None:
    reason = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"
    action = {"reason": reason, "state": "RUNNABLE", "maxTimeSeconds": 600, "action": "CANCEL"}
    world = BatchWorld(jobStateTimeLimitActions=[action])
    sizes = [{"type": "VCPU", "value": "4"}, {"type": "MEMORY", "value": "8192"}]
    large = world.submit(containerOverrides={"resourceRequirements": sizes})
    small = world.submit()
    world.pass_time(600)
    assert world.status(large) == "RUNNABLE"
    world.pass_time(10)
    assert world.describe(large)["statusReason"] == f"Canceled by JobStateTimeLimit action due to reason: {reason}"
    world.pass_time(10)
    assert world.status(small) == "RUNNING"


def test_children_of_an_array_have_their_index_and_the_parent_counts_them(world: BatchWorld) -> None:
    array = world.submit(arrayProperties={"size": 3})
    assert world.describe(array)["arrayProperties"] == {"size": 3, "statusSummary": {}}
    world.pass_time(60)
    assert world.status(array) == "PENDING"
    summary = world.describe(array)["arrayProperties"]["statusSummary"]
    assert {state: count for state, count in summary.items() if count} == {"RUNNING": 2, "RUNNABLE": 1}
    assert set(summary) == {"SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED"}
    own = [start.environment for start in world.started]
    assert [(each["AWS_BATCH_JOB_ID"], each["AWS_BATCH_JOB_ARRAY_INDEX"]) for each in own] == [
        (f"{array}:0", "0"),
        (f"{array}:1", "1"),
    ]
    assert world.describe(f"{array}:1")["arrayProperties"] == {"index": 1}
    assert world.names(arrayJobId=array) == [f"{array}:0", f"{array}:1"]
    for index in range(3):
        world.end(f"{array}:{index}", 0)
        world.pass_time(60)
    assert world.status(array) == "SUCCEEDED"
    assert world.names(jobQueue="q", jobStatus="SUCCEEDED") == [array]


def test_an_array_fails_with_its_last_child_when_one_of_them_failed(world: BatchWorld) -> None:
    array = world.submit(arrayProperties={"size": 2})
    world.pass_time(60)
    world.end(f"{array}:0", 1)
    assert world.status(array) == "PENDING"
    world.end(f"{array}:1", 0)
    assert world.describe(array)["status"] == "FAILED"
    assert world.describe(array)["statusReason"] == "Array Child Job failed"


def test_a_failed_attempt_is_repeated_up_to_the_limit(world: BatchWorld) -> None:
    job = world.run(**retry(2))
    world.end(job, 3)
    assert world.status(job) == "STARTING"
    world.pass_time(60)
    assert [start.environment["AWS_BATCH_JOB_ATTEMPT"] for start in world.started] == ["1", "2"]
    world.end(job, 4)
    ended = world.describe(job)
    assert ended["status"] == "FAILED"
    assert [attempt["container"]["exitCode"] for attempt in ended["attempts"]] == [3, 4]
    assert ended["container"]["exitCode"] == 4


@pytest.mark.parametrize(
    ("exit_code", "status"),
    [(1, "FAILED"), (13, "FAILED"), (2, "STARTING")],
)
def test_the_first_rule_that_matches_decides_and_none_means_retry(
    world: BatchWorld, exit_code: int, status: str
) -> None:
    rules = [{"onExitCode": "1*", "action": "exit"}, {"onStatusReason": "*", "action": "RETRY"}]
    job = world.run(**retry(3, *rules))
    world.end(job, exit_code)
    assert world.status(job) == status


def test_a_lost_host_has_no_exit_code_and_may_be_retried_by_its_reason(world: BatchWorld) -> None:
    rules = [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]
    job = world.run(**retry(5, *rules))
    known = world.core.job(job)
    assert known is not None
    world.core.running.host_lost(known, world.now)  # type: ignore[arg-type]
    assert world.commands() == [KillContainer(f"{job}/1")]
    [attempt] = world.describe(job)["attempts"]
    assert attempt["statusReason"].startswith("Host EC2 (instance i-")
    assert attempt["statusReason"].endswith(") terminated.")
    assert "exitCode" not in attempt["container"]
    world.core.running.container_ended(f"{job}/1", 137, world.now)
    world.pass_time(60)
    assert world.status(job) == "RUNNING"
    world.end(job, 1)
    assert world.status(job) == "FAILED"


def test_a_spot_notice_gives_time_and_the_attempt_is_retried(world: BatchWorld) -> None:
    job = world.run(**retry(2))
    known = world.core.job(job)
    world.core.running.spot_notice(known, world.now)  # type: ignore[arg-type]
    assert world.commands() == [TerminateContainer(f"{job}/1")]
    assert world.pass_time(SLOW.notice - 1) == []
    assert world.pass_time(1) == [KillContainer(f"{job}/1")]
    world.end(job, 137)
    assert world.describe(job)["attempts"][0]["statusReason"] == "Your Spot Task was interrupted."
    assert world.status(job) == "STARTING"


def test_a_timeout_ends_a_job_for_good(world: BatchWorld) -> None:
    job = world.run(**retry(5), timeout={"attemptDurationSeconds": 60})
    assert world.pass_time(59) == []
    assert world.pass_time(1) == [TerminateContainer(f"{job}/1")]
    assert world.pass_time(SLOW.stop) == [KillContainer(f"{job}/1")]
    world.end(job, 137)
    ended = world.describe(job)
    assert (ended["status"], ended["statusReason"]) == ("FAILED", "Job attempt duration exceeded timeout")


def test_cancel_ends_what_waits_and_never_what_runs(world: BatchWorld) -> None:
    running, starting = world.run(), world.submit()
    world.pass_time(5)
    waiting = world.submit()
    for job in (running, starting, waiting):
        world.call("CancelJob", jobId=job, reason="changed my mind")
    world.pass_time(60)
    assert [world.status(job) for job in (running, starting, waiting)] == ["RUNNING", "RUNNING", "FAILED"]
    ended = world.describe(waiting)
    assert (ended["statusReason"], ended["isCancelled"], ended["attempts"]) == ("changed my mind", True, [])


def test_terminate_ends_everything_without_retry(world: BatchWorld) -> None:
    running = world.run(**retry(5))
    starting, waiting = world.submit(), world.submit()
    world.pass_time(5)
    for job in (running, starting, waiting):
        world.call("TerminateJob", jobId=job, reason="enough")
        world.call("TerminateJob", jobId=job, reason="again")
    assert [world.status(job) for job in (running, starting, waiting)] == ["RUNNING", "FAILED", "FAILED"]
    assert world.commands() == [TerminateContainer(f"{running}/1")]
    assert world.describe(running)["isTerminated"]
    assert world.pass_time(SLOW.stop) == [KillContainer(f"{running}/1")]
    world.end(running, 0)
    ended = world.describe(running)
    assert (ended["status"], ended["statusReason"]) == ("FAILED", "enough")
    world.call("TerminateJob", jobId=running, reason="late")
    assert world.describe(running)["statusReason"] == "enough"


@pytest.mark.parametrize("seconds", [0, 1, 60])
def test_terminating_an_array_ends_all_its_children(world: BatchWorld, seconds: float) -> None:
    array = world.submit(arrayProperties={"size": 4})
    world.pass_time(seconds)
    world.call("TerminateJob", jobId=array, reason="enough")
    for start in world.started:
        world.end(start.job_id, 143)
    world.pass_time(100)
    ended = world.describe(array)
    assert (ended["status"], ended["statusReason"]) == ("FAILED", "enough")
    assert ended["arrayProperties"]["statusSummary"]["FAILED"] == 4


def test_jobs_that_nobody_knows_cannot_be_ended(world: BatchWorld) -> None:
    for operation in ("CancelJob", "TerminateJob"):
        assert "does not exist" in world.refusal(operation, jobId="nobody", reason="x")
        assert "1024" in world.refusal(operation, jobId=world.submit(), reason="x" * 1025)


def test_a_container_that_cannot_start_is_an_attempt_with_a_reason(world: BatchWorld) -> None:
    world.core.running.fail_starts(2, "CannotPullContainerError: no such image")
    job = world.submit(**retry(2))
    world.pass_time(100)
    world.pass_time(100)
    ended = world.describe(job)
    assert ended["status"] == "FAILED"
    assert [each["statusReason"] for each in ended["attempts"]] == ["Task failed to start"] * 2
    assert ended["container"]["reason"] == "CannotPullContainerError: no such image"
    assert "startedAt" not in ended
    assert world.started == []


def test_overrides_beyond_the_limit_of_ecs_are_accepted_and_fail_the_job_later(world: BatchWorld) -> None:
    def payload(size: int) -> dict[str, Any]:
        return {"containerOverrides": {"environment": [{"name": "PAYLOAD", "value": "x" * size}]}}

    fits, large = world.submit(**payload(7_400)), world.submit(**payload(7_680))
    world.pass_time(100)
    assert world.status(fits) == "RUNNING"
    failed = world.describe(large)
    assert failed["status"] == "FAILED"
    assert failed["statusReason"] == "Container Overrides length must be at most 8192"
    assert failed["attempts"] == []


def test_large_parameters_meet_the_same_limit_through_the_command(world: BatchWorld) -> None:
    job = world.submit(parameters={"what": "x" * 8_192})
    world.pass_time(100)
    assert world.describe(job)["statusReason"] == "Container Overrides length must be at most 8192"


def test_a_deleted_queue_terminates_its_jobs_and_goes_when_they_have_ended(world: BatchWorld) -> None:
    running, waiting = world.run(), world.submit()
    world.call("UpdateJobQueue", jobQueue="q", state="DISABLED")
    world.pass_time(SLOW.changing)
    world.call("DeleteJobQueue", jobQueue="q")
    assert world.commands()[-1] == TerminateContainer(f"{running}/1")
    assert world.describe(waiting)["statusReason"] == "JobQueue deleted"
    world.pass_time(SLOW.changing)
    assert len(world.call("DescribeJobQueues")["jobQueues"]) == 1
    world.end(running, 143)
    world.pass_time(SLOW.changing)
    assert world.call("DescribeJobQueues")["jobQueues"] == []
    assert world.describe(running)["statusReason"] == "JobQueue deleted"


def test_ended_jobs_are_known_for_a_week(world: BatchWorld) -> None:
    job = world.run()
    world.end(job, 0)
    world.pass_time(RETENTION_SECONDS - 1)
    assert world.status(job) == "SUCCEEDED"
    world.pass_time(1)
    assert world.call("DescribeJobs", jobs=[job])["jobs"] == []


def test_jobs_go_to_the_second_environment_when_the_first_is_full(world: BatchWorld) -> None:
    world.call("CreateComputeEnvironment", computeEnvironmentName="e", type="MANAGED", computeResources=COMPUTE)
    world.pass_time(SLOW.changing)
    order = [
        {"order": 2, "computeEnvironment": "e"},
        {"order": 1, "computeEnvironment": f"{PREFIX}compute-environment/c"},
    ]
    world.call("UpdateJobQueue", jobQueue="q", computeEnvironmentOrder=order)
    for _ in range(5):
        world.submit()
    world.pass_time(60)
    assert [start.environment["AWS_BATCH_CE_NAME"] for start in world.started] == ["c", "c", "e", "e"]


def test_nothing_is_due_when_nothing_is_under_way(world: BatchWorld) -> None:
    assert world.core.next_due() is None
    job = world.submit()
    assert world.core.next_due() == world.now + SLOW.submitted
    world.pass_time(60)
    world.end(job, 0)
    assert world.core.next_due() is None
