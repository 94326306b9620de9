"""Objects shared by calls, and results that only their own jobs can have written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest

from scaler.errors import ScalerError
from scaler.offload.call import Call, CallFailed
from scaler.protocol.messages import Outcome
from scaler.testing.aws import AwsEmulator
from scaler.testing.aws.service import ServiceCall
from scaler.worker_manager.aws.calls import AwsClient
from tests.engines.hpc_rig import BUCKET, WAIT_SECONDS, Rig, furnish, rig_of, settings
from tests.waiting import within

MB = 1_000_000


class Traffic:
    """Counts bytes put into S3."""

    def __init__(self, aws: AwsEmulator) -> None:
        self.put_bytes = 0
        aws.on_request = self._note

    def _note(self, _service: str, operation: str, call: ServiceCall) -> None:
        if operation == "PutObject":
            self.put_bytes += len(call.body)


@pytest.fixture
def aws(aws: AwsEmulator) -> AwsEmulator:
    furnish(aws)
    return aws


@pytest.fixture
def s3(aws: AwsEmulator) -> Iterator[AwsClient]:
    client = AwsClient(settings(aws), "s3")
    yield client
    client.close()


def noise(size: int) -> bytes:
    return random.Random(0).randbytes(size)


def total(table: bytes, number: int) -> int:
    return len(table) + number


def test_data_shared_by_40_tasks_is_uploaded_once(aws: AwsEmulator) -> None:
    aws.batch.stuck("queue")
    traffic = Traffic(aws)
    with rig_of(aws) as rig:
        rig.run(*(rig.call(partial(total, noise(8 * MB)), number) for number in range(40)))
        assert traffic.put_bytes < 8.1 * MB
        rig.run(*(rig.call(partial(total, noise(8 * MB)), number) for number in range(40)))
        assert traffic.put_bytes < 8.2 * MB, "once per session"
        assert sum("/shared/" in key for key in rig.aws.s3.keys(BUCKET)) == 1
    assert not aws.s3.keys(BUCKET)


def test_shared_object_is_uploaded_again_after_a_job_has_missed_it(aws: AwsEmulator, s3: AwsClient) -> None:
    with rig_of(aws) as rig:

        def calls() -> list[Call]:
            return [rig.call(partial(total, noise(MB)), number) for number in range(2)]

        first, lost, third = calls(), calls(), calls()
        rig.run(*first)
        assert [rig.value(each) for each in first] == [MB, MB + 1]
        [shared] = [key for key in aws.s3.keys(BUCKET) if "/shared/" in key]
        s3.call("DeleteObject", Bucket=BUCKET, Key=shared)
        rig.run(*lost)
        assert {rig.failure(each).outcome for each in lost} == {Outcome.NOT_STARTED}
        rig.run(*third)
        assert [rig.value(each) for each in third] == [MB, MB + 1]


def forge(rig: Rig, s3: AwsClient, name: str, data: bytes) -> CallFailed:
    """Submit a call, write a result that is not from its job, and return the call's outcome."""
    call = rig.call(len, b"")
    rig.run(call)
    [session] = {key.partition("calls/")[0] for key in rig.aws.s3.keys(BUCKET) if "/calls/" in key}
    s3.call("PutObject", Bucket=BUCKET, Key=f"{session}results/{name}/0", Body=data)
    return rig.failure(call)


def test_results_signed_for_another_place_are_refused_and_their_jobs_ended(aws: AwsEmulator, s3: AwsClient) -> None:
    taken: list[bytes] = []

    def keep(_service: str, operation: str, call: ServiceCall) -> None:
        if operation == "PutObject" and "/results/" in call.path:
            taken.append(call.body)

    aws.on_request = keep
    with rig_of(aws) as rig:
        true = rig.call(len, b"abc")
        rig.run(true)
        assert rig.value(true) == 3
        aws.batch.stuck("queue")
        for name, data in (("2", b"\0unsigned"), ("3", taken[0])):
            failure = forge(rig, s3, name, data)
            assert failure.outcome is Outcome.WORKER_LOST
            assert "it is not signed with the key of this session" in failure.text
        assert within(WAIT_SECONDS, lambda: len(rig.jobs("FAILED")) == 2), "their tasks run again"
        assert within(WAIT_SECONDS, lambda: [key for key in rig.aws.s3.keys(BUCKET) if "/results/" in key] == [])


def test_rejects_a_job_definition_of_another_manager(aws: AwsEmulator) -> None:
    described = aws.batch.call("DescribeJobDefinitions", {"jobDefinitionName": "definition"})["jobDefinitions"][0]
    fields = {name: described[name] for name in ("jobDefinitionName", "type", "containerProperties")}
    aws.batch.call("RegisterJobDefinition", {**fields, "tags": {"scaler:manager": "another"}})
    with pytest.raises(ScalerError, match="gives jobs access to objects of the worker manager 'another'"), rig_of(aws):
        pass
