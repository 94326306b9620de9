"""The AWS Batch executor: every call returns, despite failures of jobs, Batch, and S3."""

from __future__ import annotations

import operator
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler.offload.call import ExecutorError
from scaler.protocol.messages import Outcome
from scaler.testing.aws import AwsEmulator, Error, LoseReply, Throttle
from scaler.worker_manager.aws.calls import AwsError
from scaler.worker_manager.aws_hpc.executor import BatchExecutor
from tests.engines.hpc_rig import BUCKET, WAIT_SECONDS, Rig, furnish, rig_of, settings
from tests.waiting import wait_for_file, within

NEVER_SECONDS = 1e9


@pytest.fixture
def aws(aws: AwsEmulator) -> AwsEmulator:
    furnish(aws)
    return aws


@pytest.fixture
def rig(aws: AwsEmulator) -> Iterator[Rig]:
    with rig_of(aws) as made:
        yield made


def noise(size: int) -> bytes:
    return random.Random(0).randbytes(size)


def waiting_for(gate: Path) -> Callable[..., int]:
    """Return a function that waits for a file, and returns the length of its argument."""

    def wait(data: bytes = b"") -> int:
        wait_for_file(gate)
        return len(data)

    return wait


def submitted(rig: Rig) -> dict[str, Any]:
    """Return the full description of the only submitted job."""
    rig.aws.batch.wait_until(lambda: len(rig.jobs()) == 1, WAIT_SECONDS)
    found: dict[str, Any] = rig.aws.batch.call("DescribeJobs", {"jobs": [rig.jobs()[0]["jobId"]]})["jobs"][0]
    return found


def begin_session(rig: Rig) -> None:
    """Run a call, which puts the session's key into S3."""
    call = rig.call(len, b"")
    rig.run(call)
    assert rig.value(call) == 0


# -- there and back


def test_simultaneous_calls_form_an_array_job_with_separate_results(rig: Rig) -> None:
    calls = [rig.call(operator.add, number, 100) for number in range(5)]
    rig.run(*calls)
    assert [rig.value(call) for call in calls] == [100, 101, 102, 103, 104]
    assert submitted(rig)["arrayProperties"]["size"] == 5
    assert rig.aws.faults.calls()["SubmitJob"] == 1


@pytest.mark.parametrize(
    ("size", "requests"),
    [
        (3_000, {"PutObject": 2, "GetObject": 2}),  # the calls and the result
        (1_000_000, {"PutObject": 2, "GetObject": 3}),  # the first read does not contain everything
    ],
)
def test_large_call_takes_one_more_request(rig: Rig, size: int, requests: dict[str, int]) -> None:
    call = rig.call(len, noise(size))
    rig.run(call)
    assert rig.value(call) == size
    counts = rig.aws.faults.calls()
    assert {name: counts[name] for name in requests} == requests


def test_exception_has_the_traceback_of_the_job(rig: Rig) -> None:
    call = rig.call(operator.truediv, 1, 0)
    nested = rig.call(lambda: dict[str, int]()["x"])
    rig.run(call, nested)
    assert isinstance(rig.exception(call), ZeroDivisionError)
    error = rig.exception(nested)
    assert isinstance(error, KeyError)
    assert "in <lambda>" in str(error.__cause__)


# -- jobs that die


def test_only_the_task_that_kills_its_process_is_charged(rig: Rig) -> None:
    calls = [rig.call(os._exit, 7), rig.call(len, b"abc"), rig.call(os._exit, 0)]
    rig.run(*calls)
    assert rig.value(calls[1]) == 3
    failure = rig.failure(calls[0])
    assert failure.outcome is Outcome.PROCESSOR_DIED
    assert "died: exit code 7" in failure.text
    silent = rig.failure(calls[2])
    assert silent.outcome is Outcome.PROCESSOR_DIED
    assert "ended with exit code 0 but without a result" in silent.text


def running_job(rig: Rig) -> str:
    rig.aws.batch.wait_until(lambda: len(rig.aws.batch.alive()) == 1, WAIT_SECONDS)
    return rig.aws.batch.alive()[0]


def test_task_of_a_lost_host_is_not_charged(rig: Rig, tmp_path: Path) -> None:
    call = rig.call(waiting_for(tmp_path / "gate"), noise(100_000))
    rig.run(call)
    rig.aws.batch.host_lost(running_job(rig))
    failure = rig.failure(call)
    assert failure.outcome is Outcome.NOT_STARTED
    assert "lost its host: Host EC2" in failure.text


def test_containers_that_cannot_start_charge_no_task(rig: Rig) -> None:
    rig.aws.batch.fail_starts(1, "CannotPullContainerError: pull image manifest: not found")
    call = rig.call(len, b"")
    rig.run(call)
    failure = rig.failure(call)
    assert failure.outcome is Outcome.NOT_STARTED
    assert "CannotPullContainerError: pull image manifest: not found" in failure.text


def test_job_that_runs_too_long_times_out(aws: AwsEmulator) -> None:
    def for_long() -> None:
        print("begun", flush=True)
        signal.pause()

    with rig_of(aws, job_timeout_minutes=3) as rig:
        call = rig.call(for_long)
        rig.run(call)
        job_id = running_job(rig)
        within(WAIT_SECONDS, lambda: "begun" in rig.aws.batch.output(job_id))
        assert submitted(rig)["timeout"] == {"attemptDurationSeconds": 180}
        rig.aws.batch.expire(job_id)
        failure = rig.failure(call)
        assert failure.outcome is Outcome.TIMED_OUT
        assert "longer than job_timeout_minutes (3)" in failure.text
        assert "SIGTERM: AWS Batch ends this job" in rig.aws.batch.output(job_id)


def test_reports_a_job_without_access_to_s3(aws: AwsEmulator, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with rig_of(aws) as rig:
        call = rig.call(waiting_for(gate))
        rig.run(call)
        aws.faults.add("PutObject", Error("AccessDenied", "no", 403), times=None)
        gate.touch()
        failure = rig.failure(call)
        assert failure.outcome is Outcome.WORKER_LOST
        assert "could not write the result: check its role's permissions" in failure.text
        assert "not allowed to call S3 PutObject (AccessDenied)" in aws.batch.output(rig.jobs("FAILED")[0]["jobId"])


# -- cancelling


def test_cancelling_a_call_spares_the_rest_of_its_array(rig: Rig, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    calls = [rig.call(time.sleep, 60), rig.call(waiting_for(gate))]
    rig.run(*calls)
    rig.aws.batch.wait_until(lambda: len(rig.aws.batch.alive()) == 2, WAIT_SECONDS)
    rig.executor.cancel([calls[0].key])
    rig.aws.batch.wait_until(lambda: len(rig.aws.batch.alive()) == 1, WAIT_SECONDS)
    gate.touch()
    assert rig.value(calls[1]) == 0
    assert calls[0].key not in rig.ends()


def test_close_terminates_leftovers_and_removes_their_objects(aws: AwsEmulator) -> None:
    with rig_of(aws) as rig:
        rig.run(*(rig.call(time.sleep, 60) for _ in range(2)))
        rig.run(rig.call(len, noise(200_000)))
        rig.aws.batch.wait_until(lambda: len(aws.batch.alive()) >= 2, WAIT_SECONDS)
        assert rig.keys()
    assert aws.s3.keys(BUCKET) == []
    assert all(not rig.jobs(status) for status in ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING"))


def test_leftovers_of_an_earlier_agent_are_killed_and_removed(
    aws: AwsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The earlier agent still runs here: in a second search, it would end the jobs of the next one.
    monkeypatch.setattr("scaler.worker_manager.aws_hpc.tracking.SEARCH_PAUSE_SECONDS", NEVER_SECONDS)
    with rig_of(aws) as other, rig_of(aws, worker_manager_id="another") as foreign:
        other.run(*(other.call(time.sleep, 60) for _ in range(2)))
        foreign.run(foreign.call(time.sleep, 60))
        aws.batch.wait_until(lambda: len(aws.batch.alive()) == 3, WAIT_SECONDS)
        other.run(other.call(len, noise(200_000)))
        with rig_of(aws) as rig:
            aws.batch.wait_until(lambda: len(aws.batch.alive()) == 1, WAIT_SECONDS)
            call = rig.call(len, b"abc")
            rig.run(call)
            assert rig.value(call) == 3
            # The other manager's call.
            assert within(WAIT_SECONDS, lambda: [key.rpartition("/")[2] for key in aws.s3.keys(BUCKET)] == ["1"])
        assert len(aws.batch.alive()) == 1, "that of another manager"


# -- services that fail


def test_calls_refused_by_batch_are_returned_with_the_reason(rig: Rig) -> None:
    rig.aws.faults.add("SubmitJob", Throttle(), times=1)
    call = rig.call(len, b"abc")
    with pytest.raises(ExecutorError, match="throttled by AWS Batch SubmitJob"):
        rig.run(call)
    rig.run(call)
    assert rig.value(call) == 3
    assert len(rig.jobs()) == 1


def test_submission_with_a_lost_answer_runs_once(rig: Rig) -> None:
    rig.aws.batch.times.listing = NEVER_SECONDS
    rig.aws.faults.add("SubmitJob", LoseReply(), times=1)
    calls = [rig.call(operator.add, number, 1) for number in range(3)]
    rig.run(*calls)
    rig.aws.batch.times.listing = 0.0
    assert [rig.value(call) for call in calls] == [1, 2, 3]
    assert rig.aws.faults.calls()["SubmitJob"] == 1
    assert len(rig.jobs()) == 1


def test_jobs_that_wait_long_show_the_reason_until_they_run(aws: AwsEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaler.worker_manager.aws_hpc.executor.STUCK_SECONDS", 0.6)
    aws.batch.stuck("queue", "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - no instance is large enough")
    with rig_of(aws) as rig:
        calls = [rig.call(len, b"abc") for _ in range(3)]
        rig.run(*calls)
        rig.until(rig.troubles)
        [said] = rig.troubles()
        assert said == (
            "no task of the job queue queue has started for more than 0.01 minutes: "
            "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - no instance is large enough"
        )
        aws.batch.unstuck("queue")
        assert [rig.value(call) for call in calls] == [3] * 3
        rig.until(lambda: rig.troubles()[-1] == "")


# -- the start


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"job_queue": "none"},
            r"there is no job queue 'none' in us-east-1: run `scaler_worker_manager aws_hpc setup`",
        ),
        ({"job_definition": "none"}, r"there is no active job definition 'none' in us-east-1"),
        ({"job_definition": "none:3"}, r"there is no active job definition 'none:3'"),
        ({"s3_bucket": "none"}, r"there is no bucket 'none': run `scaler_worker_manager aws_hpc setup`"),
    ],
)
def test_only_missing_parts_are_reported_at_startup(
    aws: AwsEmulator, changes: dict[str, str], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    executor = BatchExecutor(settings(aws, **changes))
    with pytest.raises(AwsError, match=text):
        executor.start(lambda _: None)
    executor.close()
    assert caplog.messages == []


# -- number of requests


def test_thousand_tasks_start_and_end_with_one_request_each(aws: AwsEmulator) -> None:
    aws.batch.stuck("queue")
    with rig_of(aws) as rig:
        before = aws.faults.calls()
        rig.run(*(rig.call(operator.add, number, 1) for number in range(1000)))
        asked = aws.faults.calls() - before
        assert (asked["SubmitJob"], asked["PutObject"]) == (1, 1)
        assert submitted(rig)["arrayProperties"]["size"] == 1000
    assert aws.faults.calls()["TerminateJob"] == 1
