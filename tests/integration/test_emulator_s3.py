"""The emulated S3 as boto3 sees it, with faults by script, and moto beside it for the shapes."""

from __future__ import annotations

import io
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from moto import mock_aws

from scaler.testing.aws import AwsEmulator, Error, LoseReply, Slow, Throttle
from tests.integration.aws_shapes import missing_keys

STRANGE_KEY = "a b/ü?#%2F//x&<y>+=:'\"*"


def client_of(attempts: int = 1, **more: Any) -> Any:
    config = Config(retries={"total_max_attempts": attempts, "mode": "standard"}, read_timeout=5)
    return boto3.client(
        "s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b", config=config, **more
    )


@pytest.fixture(scope="module")
def aws() -> Iterator[AwsEmulator]:
    with AwsEmulator() as emulator:
        yield emulator


@pytest.fixture
def s3(aws: AwsEmulator) -> Iterator[Any]:
    aws.faults.clear()
    client = client_of(endpoint_url=aws.endpoint_url)
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


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_large_objects_and_streams_keep_every_byte(s3: Any, algorithm: str) -> None:
    body = os.urandom(3_000_001)
    s3.put_object(Bucket="bucket", Key="large", Body=body, ChecksumAlgorithm=algorithm)
    assert read(s3, "large", ChecksumMode="ENABLED") == body
    assert read(s3, "large", Range="bytes=1000000-1000009") == body[1_000_000:1_000_010]
    s3.upload_fileobj(io.BytesIO(body), "bucket", "stream")
    assert read(s3, "stream") == body


def test_pages_of_a_listing_hold_all_keys_once(s3: Any, aws: AwsEmulator) -> None:
    keys = [f"p/{number:02}" for number in range(25)]
    for key in (*keys, "q/1"):
        s3.put_object(Bucket="bucket", Key=key, Body=b"")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix="p/", PaginationConfig={"PageSize": 7})
    assert [each["Key"] for page in pages for each in page["Contents"]] == keys
    answer = s3.list_objects_v2(Bucket="bucket", Delimiter="/")
    assert [each["Prefix"] for each in answer["CommonPrefixes"]] == ["p/", "q/"]


def test_what_is_missing_has_the_codes_of_the_service(s3: Any) -> None:
    calls: list[tuple[Any, dict[str, str], tuple[str, int]]] = [
        (s3.get_object, {"Bucket": "bucket", "Key": "x"}, ("NoSuchKey", 404)),
        (s3.head_object, {"Bucket": "bucket", "Key": "x"}, ("404", 404)),
        (s3.head_bucket, {"Bucket": "none"}, ("404", 404)),
        (s3.list_objects_v2, {"Bucket": "none"}, ("NoSuchBucket", 404)),
        (s3.get_bucket_acl, {"Bucket": "bucket"}, ("NotImplemented", 501)),
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
    patient = client_of(attempts=3, endpoint_url=aws.endpoint_url)
    rule = aws.faults.add("s3:*", Throttle())
    patient.put_object(Bucket="bucket", Key="k", Body=b"2")
    assert (rule.used, read(s3, "k")) == (1, b"2")
    patient.close()


def test_a_lost_reply_leaves_the_object_and_an_expired_token_leaves_nothing(aws: AwsEmulator, s3: Any) -> None:
    aws.faults.add("PutObject", LoseReply())
    with pytest.raises(ConnectionClosedError):
        s3.put_object(Bucket="bucket", Key="lost", Body=b"1")
    assert read(s3, "lost") == b"1"
    aws.faults.add("PutObject", Error("ExpiredToken", "The provided token has expired."))
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="bucket", Key="late", Body=b"1")
    assert code_of(caught) == ("ExpiredToken", 400)
    assert aws.s3.keys("bucket") == ["lost"]


def test_a_slow_call_is_served_in_the_end(aws: AwsEmulator, s3: Any) -> None:
    aws.faults.add("GetObject", Slow(0.2))
    s3.put_object(Bucket="bucket", Key="k", Body=b"1")
    begin = time.monotonic()
    assert read(s3, "k") == b"1"
    assert time.monotonic() - begin >= 0.2


def walk(s3: Any) -> dict[str, Any]:
    """Call every operation once; return the answers."""
    answers: dict[str, Any] = {}

    def call(operation: str, **request: Any) -> None:
        answers[operation] = getattr(s3, operation)(Bucket="walk", **request)

    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "x/"}, "Expiration": {"Days": 7}}
    block = {
        "BlockPublicAcls": True,
        "IgnorePublicAcls": True,
        "BlockPublicPolicy": True,
        "RestrictPublicBuckets": True,
    }
    encryption = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
    call("create_bucket")
    call("head_bucket")
    call("get_bucket_location")
    answers["list_buckets"] = s3.list_buckets()
    call("put_bucket_lifecycle_configuration", LifecycleConfiguration={"Rules": [rule]})
    call("get_bucket_lifecycle_configuration")
    call("delete_bucket_lifecycle")
    call("put_bucket_tagging", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    call("get_bucket_tagging")
    call("delete_bucket_tagging")
    call("put_public_access_block", PublicAccessBlockConfiguration=block)
    call("get_public_access_block")
    call("delete_public_access_block")
    call("put_bucket_encryption", ServerSideEncryptionConfiguration=encryption)
    call("get_bucket_encryption")
    call("delete_bucket_encryption")
    call("put_bucket_policy", Policy='{"Version": "2012-10-17", "Statement": []}')
    call("get_bucket_policy")
    call("delete_bucket_policy")
    call("put_object", Key="a/b", Body=b"1", Metadata={"m": "1"})
    call("put_object_tagging", Key="a/b", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    call("get_object_tagging", Key="a/b")
    call("head_object", Key="a/b")
    call("get_object", Key="a/b", ChecksumMode="ENABLED")
    assert answers["get_object"].pop("Body").read() == b"1"
    call("list_objects_v2", MaxKeys=1)
    answers["a listing of groups"] = s3.list_objects_v2(Bucket="walk", Delimiter="/", StartAfter="a")
    call("delete_object_tagging", Key="a/b")
    call("delete_objects", Delete={"Objects": [{"Key": "a/b"}]})
    call("delete_object", Key="a/b")
    call("delete_bucket")
    return answers


MOTO_IS_WRONG = {".list_buckets.Owner.DisplayName"}
"""What moto's answers have and the service's no longer have."""


def test_answers_have_the_shape_of_motos(aws: AwsEmulator, s3: Any) -> None:
    ours = walk(s3)
    with mock_aws():
        theirs = walk(client_of())
    assert set(missing_keys(theirs, ours, "")) == MOTO_IS_WRONG
    ours_differ = {
        operation: ours[operation]["ResponseMetadata"]["HTTPStatusCode"]
        for operation, answer in theirs.items()
        if ours[operation]["ResponseMetadata"]["HTTPStatusCode"] != answer["ResponseMetadata"]["HTTPStatusCode"]
    }
    assert ours_differ == {"put_bucket_policy": 204}  # as in the service's reference
