"""Requests to AWS Batch, names and inputs of jobs, and the meaning of their ends."""

from __future__ import annotations

import platform
from typing import Any

import pytest

from scaler.config.load import model_of
from scaler.errors import ConfigError
from scaler.offload.call import Call, pack_call
from scaler.protocol.messages import Outcome
from scaler.worker_manager.aws_hpc import AwsHpcConfig, tracking
from scaler.worker_manager.aws_hpc.backend import classify_exit
from scaler.worker_manager.aws_hpc.objects import PackedCall
from scaler.worker_manager.aws_hpc.requests import JobSpec, call_request, job_name, keys_of, mark_of, owns
from scaler.worker_manager.aws_hpc.tracking import batches_of

DEFINITION = "arn:definition:1"


def config(**changes: Any) -> AwsHpcConfig:
    settings = {"scheduler_address": "tcp://h:1", "worker_manager_id": "burst", "job_queue": "q", "job_definition": "d"}
    return model_of(AwsHpcConfig, {**settings, "s3_bucket": "bucket", **changes})


def request(size: int = 1) -> dict[str, Any]:
    return call_request(config(), DEFINITION, "5e55", 7, size)[0]


def call(number: int, *, size: int = 10) -> PackedCall:
    made = Call(number.to_bytes(16, "big"), 1, b"f", bytes(size))
    return PackedCall(made, pack_call(made))


# -- names


def test_job_names_are_valid_for_batch_and_identify_their_owner() -> None:
    mine = config(name="a b/c")
    name = job_name(mine, "0a1b2c3d", 12)
    assert name == f"a_b_c-{mark_of(mine)}-0a1b2c3d-12"
    assert owns(mine, name)
    assert owns(mine, name, "0a1b2c3d")
    assert not owns(mine, name, "0a1b2c3e")
    assert owns(config(name="renamed"), name)
    assert not owns(config(worker_manager_id="other"), name)
    assert not owns(config(scheduler_address="tcp://other:1"), name)
    assert len(job_name(config(name="x" * 300), "0a1b2c3d", 10**6)) <= 128
    assert job_name(config(name="-x"), "0", 1).startswith("scaler-x-")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:8816", "tcp://localhost:8816", "ipc:///tmp/scheduler"])
def test_same_file_on_two_machines_creates_two_managers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = config(scheduler_address=address)
    name, keys = job_name(mine, "0a1b2c3d", 1), keys_of(mine, "5e55")
    assert owns(config(scheduler_address=address), name), "a later manager on this machine finds these jobs"
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert not owns(mine, name)
    assert not keys.startswith(keys_of(mine, "5e55"))


# -- requests


def test_one_call_is_a_plain_job_and_several_are_an_array() -> None:
    assert "arrayProperties" not in request()
    assert request(size=7)["arrayProperties"] == {"size": 7}
    assert request()["timeout"] == {"attemptDurationSeconds": 3600}
    assert request()["tags"] == {"scaler:manager": "burst", "scaler:cluster": "tcp://h:1"}


@pytest.mark.parametrize("size", [1, 2])
def test_request_names_the_object_that_has_the_calls(size: int) -> None:
    made, key = call_request(config(), DEFINITION, "5e55", 7, size)
    variables = {each["name"]: each["value"] for each in made["containerOverrides"]["environment"]}
    assert JobSpec.from_environment(variables).call_key == key
    assert "parameters" not in made, "anyone with DescribeJobs could read them"


# -- batches


def test_batch_respects_array_length_and_byte_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [call(0)] * 10_001
    assert [len(batch) for batch in batches_of(calls)] == [10_000, 1]
    monkeypatch.setattr(tracking, "MAX_TOGETHER_BYTES", 1000)
    assert [len(batch) for batch in batches_of([call(number, size=400) for number in range(4)])] == [1, 1, 1, 1]


# -- the specification of a job


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"region": "r"}', '{"input_from": "s3", "x": 1}', "[" * 100_000]
)
def test_invalid_job_spec_variable_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="SCALER_JOB is not a job of this version of scaler"):
        JobSpec.from_environment({"SCALER_JOB": text})


# -- job states


def ended(status_reason: str, code: int | None = None, reason: str = "", **more: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"logStreamName": "d/default/1"}
    if code is not None:
        container["exitCode"] = code
    if reason:
        container["reason"] = reason
    attempt = {"container": container, "statusReason": status_reason, "startedAt": 1}
    return {"jobId": "j:1", "status": "FAILED", "statusReason": status_reason, "attempts": [attempt], **more}


EXITED = "Essential container in task exited"


@pytest.mark.parametrize(
    ("job", "outcome", "text"),
    [
        (ended(EXITED, 137), Outcome.PROCESSOR_DIED, "died: exit code 137 (SIGKILL); its log stream is d/default/1"),
        (ended(EXITED, 3), Outcome.PROCESSOR_DIED, "died: exit code 3"),
        (
            ended(EXITED, 137, "OutOfMemoryError: Container killed due to memory usage"),
            Outcome.PROCESSOR_DIED,
            "exit code 137 (SIGKILL); OutOfMemoryError: Container killed due to memory usage",
        ),
        (ended(EXITED, 0), Outcome.PROCESSOR_DIED, "ended with exit code 0 but without a result"),
        (ended("Host EC2 (instance i-1) terminated."), Outcome.NOT_STARTED, "lost its host: Host EC2 (instance i-1)"),
        (ended("Your Spot Task was interrupted.", 143), Outcome.NOT_STARTED, "lost its host: Your Spot Task"),
        (ended("Job attempt duration exceeded timeout", 143), Outcome.TIMED_OUT, "job_timeout_minutes (60)"),
        (ended("Task failed to start", None, "CannotPullContainerError: no"), Outcome.NOT_STARTED, "CannotPull"),
        (ended("by hand", 143, isTerminated=True), Outcome.WORKER_LOST, "was ended: by hand; exit code 143 (SIGTERM)"),
        (ended("JobQueue deleted", attempts=[]), Outcome.NOT_STARTED, "did not start: JobQueue deleted"),
        (ended(EXITED, 90), Outcome.NOT_STARTED, "could not read its task"),
        (ended(EXITED, 91), Outcome.WORKER_LOST, "could not write the result"),
        ({"jobId": "j:1", "status": "FAILED"}, Outcome.NOT_STARTED, "did not start: no reason given"),
    ],
)
def test_job_that_ends_without_a_result_maps_to_an_outcome(job: dict[str, Any], outcome: Outcome, text: str) -> None:
    found, said = classify_exit(job, 60)
    assert found is outcome
    assert said.startswith("the AWS Batch job j:1 ")
    assert text in said


# -- poll interval
