"""What moto serves behind the emulator's endpoint, as boto3 sees it, with faults by script."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from scaler.testing.aws import AwsEmulator, Error, Throttle
from tests.engines.aws_shapes import client_of

STRANGE_KEY = "a b/ü?#%2F//x&<y>+=:'\"*"


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


def test_objects_come_back_under_strange_keys_with_what_belongs_to_them(s3: Any) -> None:
    s3.put_object(
        Bucket="bucket", Key=STRANGE_KEY, Body=b"hello", Metadata={"m": "1"}, ContentType="text/x", Tagging="t=1&u=2"
    )
    head = s3.head_object(Bucket="bucket", Key=STRANGE_KEY)
    assert (head["ContentLength"], head["ContentType"], head["Metadata"]) == (5, "text/x", {"m": "1"})
    assert read(s3, STRANGE_KEY) == b"hello"
    [found] = s3.list_objects_v2(Bucket="bucket")["Contents"]
    assert (found["Key"], found["Size"], found["ETag"]) == (STRANGE_KEY, 5, head["ETag"])
    tags = s3.get_object_tagging(Bucket="bucket", Key=STRANGE_KEY)["TagSet"]
    assert tags == [{"Key": "t", "Value": "1"}, {"Key": "u", "Value": "2"}]
    deleted = s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": STRANGE_KEY}]})["Deleted"]
    assert deleted == [{"Key": STRANGE_KEY}]


def test_what_is_missing_has_the_codes_of_the_service(s3: Any) -> None:
    calls: list[tuple[Any, dict[str, str], tuple[str, int]]] = [
        (s3.get_object, {"Bucket": "bucket", "Key": "x"}, ("NoSuchKey", 404)),
        (s3.head_object, {"Bucket": "bucket", "Key": "x"}, ("404", 404)),
        (s3.head_bucket, {"Bucket": "none"}, ("404", 404)),
        (s3.list_objects_v2, {"Bucket": "none"}, ("NoSuchBucket", 404)),
    ]
    for call, request, expected in calls:
        with pytest.raises(ClientError) as caught:
            call(**request)
        assert code_of(caught) == expected


def test_of_many_writers_that_want_to_be_first_one_is(s3: Any, aws: AwsEmulator) -> None:
    winners: list[int] = []
    losers: list[tuple[str, int]] = []

    def write(number: int) -> None:
        try:
            s3.put_object(Bucket="bucket", Key="result", Body=str(number).encode(), IfNoneMatch="*")
            winners.append(number)
        except ClientError as error:
            response: Any = error.response
            losers.append((response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(s3, "result") == str(winners[0]).encode()
    assert (len(winners), losers) == (1, [("PreconditionFailed", 412)] * 7)


def test_presigned_urls_work_without_a_client(s3: Any) -> None:
    url = s3.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "k"})
    with urllib.request.urlopen(urllib.request.Request(url, data=b"1", method="PUT")) as response:
        assert response.status == 200
    assert read(s3, "k") == b"1"


def test_slow_down_is_said_as_the_service_says_it_and_clients_try_again(aws: AwsEmulator, s3: Any) -> None:
    aws.faults.add("PutObject", Throttle())
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="bucket", Key="k", Body=b"1")
    assert code_of(caught) == ("SlowDown", 503)
    patient = client_of("s3", attempts=3, endpoint_url=aws.endpoint_url)
    rule = aws.faults.add("s3:*", Throttle())
    patient.put_object(Bucket="bucket", Key="k", Body=b"2")
    assert (rule.used, read(s3, "k")) == (1, b"2")
    patient.close()


def test_an_emulator_starts_without_what_an_earlier_one_was_given(aws: AwsEmulator, s3: Any) -> None:
    s3.put_object(Bucket="bucket", Key="k", Body=b"1")
    assert aws.s3.keys("bucket") == ["k"]
    with AwsEmulator() as second:
        client = client_of("s3", endpoint_url=second.endpoint_url)
        assert client.list_buckets()["Buckets"] == []
        client.close()
    s3.create_bucket(Bucket="bucket")  # moto keeps one state per process: the last emulator has it


@pytest.mark.parametrize(
    ("service", "operation", "request_", "code"),
    [
        ("iam", "get_role", {"RoleName": "none"}, "NoSuchEntity"),
        ("logs", "describe_log_streams", {"logGroupName": "none"}, "ResourceNotFoundException"),
        ("ec2", "describe_subnets", {"SubnetIds": ["subnet-0"]}, "InvalidSubnetID.NotFound"),
    ],
)
def test_other_services_answer_and_refuse_as_aws_does(
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
