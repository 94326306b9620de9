"""Services of moto behind the emulator's endpoint, through boto3, with scripted faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from scaler.testing.aws import AwsEmulator, Error, Throttle
from tests.engines.aws_shapes import client_of


@pytest.fixture(scope="module")
def aws() -> Iterator[AwsEmulator]:
    with AwsEmulator() as emulator:
        yield emulator


@pytest.fixture
def s3(aws: AwsEmulator) -> Iterator[Any]:
    aws.faults.clear()
    client = client_of("s3", endpoint_url=aws.endpoint_url)
    client.create_bucket(Bucket="bucket")
    yield client
    for key in aws.s3.keys("bucket"):
        client.delete_object(Bucket="bucket", Key=key)
    client.delete_bucket(Bucket="bucket")
    client.close()


def read(s3: Any, key: str, **more: Any) -> bytes:
    with s3.get_object(Bucket="bucket", Key=key, **more)["Body"] as body:
        return bytes(body.read())


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    response: Any = error.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def test_slow_down_matches_the_service_and_clients_retry(aws: AwsEmulator, s3: Any) -> None:
    aws.faults.add("PutObject", Throttle())
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="bucket", Key="k", Body=b"1")
    assert code_of(caught) == ("SlowDown", 503)
    patient = client_of("s3", attempts=3, endpoint_url=aws.endpoint_url)
    rule = aws.faults.add("s3:*", Throttle())
    patient.put_object(Bucket="bucket", Key="k", Body=b"2")
    assert (rule.used, read(s3, "k")) == (1, b"2")
    patient.close()


@pytest.mark.parametrize(
    ("service", "operation", "request_", "code"),
    [
        ("iam", "get_role", {"RoleName": "none"}, "NoSuchEntity"),
        ("logs", "describe_log_streams", {"logGroupName": "none"}, "ResourceNotFoundException"),
        ("ec2", "describe_subnets", {"SubnetIds": ["subnet-0"]}, "InvalidSubnetID.NotFound"),
    ],
)
def test_other_services_answer_and_refuse_like_aws(
    aws: AwsEmulator, service: str, operation: str, request_: dict[str, Any], code: str
) -> None:
    aws.faults.clear()
    client: Any = client_of(service, endpoint_url=aws.endpoint_url)
    with pytest.raises(ClientError) as caught:
        getattr(client, operation)(**request_)
    assert code_of(caught)[0] == code
    rule = aws.faults.add(f"{service}:*", Error("AccessDenied", "not allowed", 403))
    with pytest.raises(ClientError, match="not allowed") as caught:
        getattr(client, operation)(**request_)
    assert (code_of(caught), rule.used) == (("AccessDenied", 403), 1)
    client.close()
