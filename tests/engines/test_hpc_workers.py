"""The backend of mode worker: units that are jobs or array children, whatever Batch answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.testing.aws import AwsEmulator, Error, LoseReply
from scaler.worker_manager.aws.calls import AwsError
from scaler.worker_manager.aws_hpc.backend import BatchBackend
from scaler.worker_manager.backend import BackendError, Unit
from tests.engines.hpc_rig import settings
from tests.waiting import within

WAIT_SECONDS = 20.0
NEVER_SECONDS = 1e9


@pytest.fixture
def aws(aws: AwsEmulator) -> AwsEmulator:
    aws.batch.furnish(command=["sh", "-c", "exec sleep 60", "Ref::module"])
    return aws


def backend_of(aws: AwsEmulator, **changes: Any) -> BatchBackend:
    return BatchBackend(settings(aws, **{"mode": "worker", "heartbeat_interval_seconds": 0.01, **changes}))


@pytest.fixture
def backend(aws: AwsEmulator) -> Iterator[BatchBackend]:
    made = backend_of(aws)
    yield made
    made.close()


def alive(units: list[Unit]) -> set[str]:
    return {unit.unit_id for unit in units if unit.state in (UnitState.PENDING, UnitState.RUNNING)}


def sizes(aws: AwsEmulator) -> list[int]:
    filters = [{"name": "JOB_NAME", "values": ["*"]}]
    found = aws.batch.call("ListJobs", {"jobQueue": "queue", "filters": filters})["jobSummaryList"]
    return [int((job.get("arrayProperties") or {}).get("size", 1)) for job in found]


def test_one_unit_is_a_plain_job_and_several_are_an_array(aws: AwsEmulator, backend: BatchBackend) -> None:
    [single] = backend.start(1)
    array = backend.start(3)
    assert ":" not in single
    assert [unit_id.partition(":")[2] for unit_id in array] == ["0", "1", "2"]
    assert within(WAIT_SECONDS, lambda: sorted(sizes(aws)) == [1, 3])
    assert {unit.unit_id for unit in backend.list()} == {single, *array}


def test_units_have_as_many_slots_as_their_jobs_have_cpus(aws: AwsEmulator) -> None:
    requirements = [{"type": "VCPU", "value": "4"}, {"type": "MEMORY", "value": "8192"}]
    container = {"image": "i", "executionRoleArn": "arn:aws:iam::1:role/r", "resourceRequirements": requirements}
    definition = {"jobDefinitionName": "wide", "type": "container", "platformCapabilities": ["FARGATE"]}
    aws.batch.call("RegisterJobDefinition", {**definition, "containerProperties": container})
    for changes, slots, units in (
        ({"max_concurrent_jobs": 7}, 1, 7),
        ({"max_task_concurrency": 5, "job_definition": "wide"}, 4, 2),
        ({"max_task_concurrency": 500, "job_definition": "wide", "max_concurrent_jobs": 3}, 4, 3),
    ):
        backend = backend_of(aws, **changes)
        capacity = backend.capacity
        assert (capacity.unit_slots, capacity.max_units, capacity.max_slots) == (slots, units, slots * units)
        backend.close()


def test_unanswered_start_is_found_and_not_repeated(aws: AwsEmulator, backend: BatchBackend) -> None:
    aws.batch.times.listing = NEVER_SECONDS
    aws.faults.add("SubmitJob", LoseReply())
    with pytest.raises(BackendError, match=r"no answer at http://127.0.0.1:\d+ "):
        backend.start(2)
    with pytest.raises(BackendError, match="AWS Batch did not answer SubmitJob: checking whether the jobs exist"):
        backend.start(2)
    aws.batch.times.listing = 0.0
    assert len(backend.start(2)) == 2
    assert sizes(aws) == [2]
    assert aws.faults.calls()["SubmitJob"] == 1


def test_second_manager_adopts_only_units_of_the_first(aws: AwsEmulator) -> None:
    first, other = backend_of(aws), backend_of(aws, worker_manager_id="other")
    started = {*first.start(2), *first.start(1)}
    other.start(1)
    assert within(WAIT_SECONDS, lambda: len(aws.batch.alive()) == 4)
    first.close()
    second = backend_of(aws)
    assert alive(second.list()) == started
    second.stop(sorted(started))
    assert within(WAIT_SECONDS, lambda: not alive(second.list()) and len(aws.batch.alive()) == 1)
    for backend in (second, other):
        backend.close()


def test_unstoppable_resource_is_reported_with_a_command(aws: AwsEmulator, caplog: pytest.LogCaptureFixture) -> None:
    backend = backend_of(aws)
    [unit_id] = backend.start(1)
    aws.faults.add("TerminateJob", Error("AccessDeniedException", "no", 403), times=None)
    with pytest.raises(AwsError, match="not allowed to call AWS Batch TerminateJob"):
        backend.stop([unit_id])
    with caplog.at_level(logging.ERROR):
        backend.close()
    assert f"these jobs may remain: {unit_id}; end each with `aws batch terminate-job" in caplog.text


def test_missing_parts_are_reported_at_startup(aws: AwsEmulator) -> None:
    with pytest.raises(AwsError, match="there is no active job definition 'none' in us-east-1"):
        backend_of(aws, job_definition="none")
    with pytest.raises(UsageError, match=r"the workers' configuration takes .* characters, but AWS allows 8,192"):
        backend_of(aws, per_worker_capabilities={f"capability-{number}": 1.0 for number in range(400)})


def test_warns_about_an_address_that_jobs_cannot_reach(
    aws: AwsEmulator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend_of(aws).close()
    assert "cannot reach" not in caplog.text
    # boto3 also finds the emulator through AWS_ENDPOINT_URL.
    backend_of(aws, aws_endpoint_url=None).close()
    assert "workers on AWS Batch cannot reach the scheduler at tcp://127.0.0.1:1" in caplog.text
