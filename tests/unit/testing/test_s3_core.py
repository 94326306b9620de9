"""What the emulated S3 keeps, lists and refuses."""

from __future__ import annotations

import base64
import hashlib
import zlib
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from scaler.testing.aws.faults import Refusal
from scaler.testing.aws.s3 import S3Core
from scaler.testing.aws.s3.requests import operation_of
from scaler.testing.aws.service import Answer, Call

DAY = 86_400
SPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class Bucket:
    """A core with one bucket, `bucket`, and a clock."""

    def __init__(self, region: str = "us-east-1") -> None:
        self.now = 10.5 * DAY
        self.core = S3Core(region)
        self.call("PUT", "/bucket")

    def call(self, method: str, path: str, body: bytes = b"", query: str = "", **headers: str) -> Answer:
        words = dict(pair.partition("=")[::2] for pair in query.split("&")) if query else {}
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        call = Call(method, path, {name: unquote(value) for name, value in words.items()}, names, body)
        return self.core.call(operation_of(call), call, self.now)

    def document(self, method: str, query: str, body: bytes) -> Answer:
        digest = base64.b64encode(hashlib.md5(body).digest()).decode()
        return self.call(method, "/bucket", body, query, content_md5=digest)

    def put(self, *keys: str) -> None:
        for key in keys:
            self.call("PUT", f"/bucket/{key}", key.encode())

    def listed(self, query: str = "") -> tuple[list[str], list[str], str | None]:
        """Return keys, common prefixes and the token of the next page."""
        found = ElementTree.fromstring(self.call("GET", "/bucket", query=f"list-type=2&{query}").body)
        keys = [each.text or "" for each in found.iterfind(f"{SPACE}Contents/{SPACE}Key")]
        groups = [each.text or "" for each in found.iterfind(f"{SPACE}CommonPrefixes/{SPACE}Prefix")]
        assert found.findtext(f"{SPACE}KeyCount") == str(len(keys) + len(groups))
        token = found.findtext(f"{SPACE}NextContinuationToken")
        assert (found.findtext(f"{SPACE}IsTruncated") == "true") == (token is not None)
        return keys, groups, token

    def refusal(self, method: str, path: str, body: bytes = b"", query: str = "", **headers: str) -> tuple[str, int]:
        with pytest.raises(Refusal) as caught:
            self.call(method, path, body, query, **headers)
        return caught.value.code, caught.value.status


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def test_an_object_comes_back_as_it_was_put(bucket: Bucket) -> None:
    bucket.call("PUT", "/bucket/a/b", b"data", content_type="text/x", x_amz_meta_m="1", x_amz_tagging="t=1")
    got = bucket.call("GET", "/bucket/a/b")
    assert (got.status, got.body) == (200, b"data")
    assert got.headers["content-type"] == "text/x"
    assert got.headers["x-amz-meta-m"] == "1"
    assert got.headers["x-amz-tagging-count"] == "1"
    assert got.headers["etag"] == f'"{hashlib.md5(b"data").hexdigest()}"'


def test_what_is_not_there_is_named(bucket: Bucket) -> None:
    assert bucket.refusal("GET", "/bucket/none") == ("NoSuchKey", 404)
    assert bucket.refusal("HEAD", "/bucket/none") == ("NotFound", 404)
    assert bucket.refusal("GET", "/other/none") == ("NoSuchBucket", 404)
    assert bucket.refusal("PUT", "/other/none") == ("NoSuchBucket", 404)
    assert bucket.refusal("GET", "/bucket", b"", "acl") == ("NotImplemented", 501)
    assert bucket.call("DELETE", "/bucket/none").status == 204


def test_keys_are_listed_in_their_order_in_pages(bucket: Bucket) -> None:
    bucket.put("b", "a/2", "é", "a/1", "A", "c")
    assert bucket.listed() == (["A", "a/1", "a/2", "b", "c", "é"], [], None)
    assert bucket.listed("prefix=a/") == (["a/1", "a/2"], [], None)
    assert bucket.listed("start-after=a/2") == (["b", "c", "é"], [], None)
    keys, token = [], ""
    while True:
        page, _, following = bucket.listed("max-keys=2" + token)
        assert len(page) == 2
        keys += page
        if following is None:
            break
        token = f"&continuation-token={following}"
    assert keys == ["A", "a/1", "a/2", "b", "c", "é"]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_groups_below_a_delimiter_are_listed_once_over_all_pages(bucket: Bucket, size: int) -> None:
    bucket.put("a", "b/1", "b/2", "b/3", "c", "d/1", "d/e/1", "e")
    keys, groups, token = bucket.listed(f"delimiter=/&max-keys={size}")
    while token is not None:
        more, others, token = bucket.listed(f"delimiter=/&max-keys={size}&continuation-token={token}")
        keys, groups = keys + more, groups + others
    assert keys == ["a", "c", "e"]
    assert groups == ["b/", "d/"]


def test_keys_with_characters_that_xml_cannot_have_are_listed_encoded(bucket: Bucket) -> None:
    bucket.put("a b&\x01<")
    assert bucket.listed("encoding-type=url")[0] == ["a%20b%26%01%3C"]


def test_a_page_has_at_most_a_thousand_keys(bucket: Bucket) -> None:
    bucket.put(*(f"{number:04}" for number in range(1001)))
    keys, _, token = bucket.listed("max-keys=5000")
    assert len(keys) == 1000
    assert bucket.listed(f"continuation-token={token}")[0] == ["1000"]
    assert bucket.refusal("GET", "/bucket", b"", "list-type=2&continuation-token=x") == ("InvalidArgument", 400)


def test_an_object_can_be_put_only_where_there_is_none(bucket: Bucket) -> None:
    bucket.call("PUT", "/bucket/a", b"1", if_none_match="*")
    assert bucket.refusal("PUT", "/bucket/a", b"2", if_none_match="*") == ("PreconditionFailed", 412)
    etag = bucket.call("HEAD", "/bucket/a").headers["etag"]
    assert bucket.refusal("PUT", "/bucket/a", b"2", if_match='"other"') == ("PreconditionFailed", 412)
    assert bucket.call("GET", "/bucket/a", if_none_match=etag).status == 304
    bucket.call("PUT", "/bucket/a", b"2", if_match=etag)
    assert bucket.call("GET", "/bucket/a").body == b"2"
    assert bucket.refusal("GET", "/bucket/a", if_match=etag) == ("PreconditionFailed", 412)


@pytest.mark.parametrize(
    ("wanted", "body", "text"),
    [
        ("bytes=1-3", b"123", "bytes 1-3/10"),
        ("bytes=8-", b"89", "bytes 8-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
        ("bytes=5-99", b"56789", "bytes 5-9/10"),
    ],
)
def test_parts_of_an_object_can_be_read(bucket: Bucket, wanted: str, body: bytes, text: str) -> None:
    bucket.call("PUT", "/bucket/a", b"0123456789")
    got = bucket.call("GET", "/bucket/a", range=wanted)
    assert (got.status, got.body, got.headers["content-range"]) == (206, body, text)
    assert bucket.refusal("GET", "/bucket/a", range="bytes=10-") == ("InvalidRange", 416)


def test_checksums_are_checked_and_handed_back_on_demand(bucket: Bucket) -> None:
    crc = base64.b64encode(zlib.crc32(b"data").to_bytes(4, "big")).decode()
    bucket.call("PUT", "/bucket/a", b"data", x_amz_checksum_crc32=crc)
    assert "x-amz-checksum-crc32" not in bucket.call("GET", "/bucket/a").headers
    assert bucket.call("GET", "/bucket/a", x_amz_checksum_mode="ENABLED").headers["x-amz-checksum-crc32"] == crc
    assert bucket.refusal("PUT", "/bucket/a", b"dat", x_amz_checksum_crc32=crc) == ("BadDigest", 400)
    assert bucket.refusal("PUT", "/bucket/a", b"dat", content_md5=crc) == ("BadDigest", 400)
    other = hashlib.sha256(b"data").hexdigest()
    assert bucket.refusal("PUT", "/bucket/a", b"dat", x_amz_content_sha256=other) == ("XAmzContentSHA256Mismatch", 400)


def test_a_chunked_upload_is_put_together_and_its_trailing_checksum_checked(bucket: Bucket) -> None:
    crc = base64.b64encode(zlib.crc32(b"hello world").to_bytes(4, "big")).decode()

    def send(body: bytes) -> None:
        bucket.call(
            "PUT", "/bucket/a", body, content_encoding="gzip,aws-chunked",
            x_amz_content_sha256="STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        )  # fmt: skip

    chunks = b"6;chunk-signature=0\r\nhello \r\n5\r\nworld\r\n0;chunk-signature=1\r\n"
    send(chunks + f"x-amz-checksum-crc32:{crc}\r\nx-amz-trailer-signature:2\r\n\r\n".encode())
    got = bucket.call("GET", "/bucket/a")
    assert (got.body, got.headers["content-encoding"]) == (b"hello world", "gzip")
    for wrong, code in (
        (chunks + b"x-amz-checksum-crc32:AAAA\r\n\r\n", "BadDigest"),
        (b"9\r\nshort", "IncompleteBody"),
    ):
        with pytest.raises(Refusal, match=code):
            send(wrong)


def test_many_objects_are_deleted_at_once_and_missing_ones_count_as_deleted(bucket: Bucket) -> None:
    bucket.put("a", "b&", "c")
    body = b"<Delete xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>%s</Delete>"
    objects = b"".join(b"<Object><Key>%s</Key></Object>" % key for key in (b"a", b"b&amp;", b"none"))
    answer = bucket.document("POST", "delete", body % objects)
    deleted = [each.text for each in ElementTree.fromstring(answer.body).iter(f"{SPACE}Key")]
    assert deleted == ["a", "b&", "none"]
    assert bucket.core.keys("bucket", bucket.now) == ["c"]
    many = b"<Object><Key>x</Key></Object>" * 1001
    with pytest.raises(Refusal, match="MalformedXML"):
        bucket.document("POST", "delete", body % many)
    assert bucket.refusal("POST", "/bucket", body % objects, "delete") == ("InvalidRequest", 400)


def test_a_lifecycle_rule_deletes_old_objects_below_its_prefix_at_midnight(bucket: Bucket) -> None:
    bucket.put("tasks/1", "other")
    when = b"<Filter><Prefix>tasks/</Prefix></Filter><Expiration><Days>%d</Days></Expiration>"
    rule = b"<Rule><Status>%s</Status>" + when + b"</Rule>"
    frame = b"<LifecycleConfiguration>%s</LifecycleConfiguration>"
    bucket.document("PUT", "lifecycle", frame % (rule % (b"Enabled", 2)))
    bucket.now = 13 * DAY - 1
    assert bucket.core.keys("bucket", bucket.now) == ["other", "tasks/1"]
    bucket.put("tasks/2")
    bucket.now = 13 * DAY + 60
    assert bucket.core.keys("bucket", bucket.now) == ["other", "tasks/2"]
    bucket.document("PUT", "lifecycle", frame % (rule % (b"Disabled", 2)))
    bucket.now = 100 * DAY
    assert bucket.core.keys("bucket", bucket.now) == ["other", "tasks/2"]
    for wrong in (b"", rule % (b"Perhaps", 2), b"<Rule/>"):
        with pytest.raises(Refusal, match="MalformedXML"):
            bucket.document("PUT", "lifecycle", frame % wrong)


def test_a_bucket_is_deleted_only_when_it_is_empty(bucket: Bucket) -> None:
    bucket.put("a")
    assert bucket.refusal("DELETE", "/bucket") == ("BucketNotEmpty", 409)
    bucket.call("DELETE", "/bucket/a")
    bucket.call("DELETE", "/bucket")
    assert bucket.refusal("HEAD", "/bucket") == ("NoSuchBucket", 404)


@pytest.mark.parametrize("name", ["ab", "Upper", "a..b", "-ab", "ab-", "under_score", "x" * 64])
def test_names_of_buckets_keep_the_rules(bucket: Bucket, name: str) -> None:
    assert bucket.refusal("PUT", f"/{name}") == ("InvalidBucketName", 400)


def test_the_oldest_region_has_rules_of_its_own_for_new_buckets() -> None:
    def constraint(place: str) -> bytes:
        text = f"<LocationConstraint>{place}</LocationConstraint>"
        return f"<CreateBucketConfiguration>{text}</CreateBucketConfiguration>".encode()

    oldest = Bucket()
    assert oldest.call("PUT", "/bucket").status == 200
    assert oldest.refusal("PUT", "/other", constraint("us-east-1")) == ("InvalidLocationConstraint", 400)
    core = S3Core("eu-west-1")
    for body, code in ((b"", "IllegalLocationConstraintException"), (constraint("eu-west-1"), "")):
        call = Call("PUT", "/bucket", {}, {}, body)
        if code:
            with pytest.raises(Refusal, match=code):
                core.call("CreateBucket", call, 0)
        else:
            core.call("CreateBucket", call, 0)
            with pytest.raises(Refusal, match="BucketAlreadyOwnedByYou"):
                core.call("CreateBucket", call, 0)


@pytest.mark.parametrize(
    ("query", "body", "missing"),
    [
        ("tagging", b"<Tagging><TagSet/></Tagging>", "NoSuchTagSet"),
        ("policy", b'{"Statement": []}', "NoSuchBucketPolicy"),
        (
            "lifecycle",
            b"<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter/></Rule></LifecycleConfiguration>",
            "NoSuchLifecycleConfiguration",
        ),
        (
            "publicAccessBlock",
            b"<PublicAccessBlockConfiguration/>",
            "NoSuchPublicAccessBlockConfiguration",
        ),
    ],
)
def test_documents_of_a_bucket_are_kept_and_deleted(bucket: Bucket, query: str, body: bytes, missing: str) -> None:
    bucket.document("PUT", query, body)
    assert bucket.call("GET", "/bucket", query=query).body == body
    bucket.call("DELETE", "/bucket", query=query)
    assert bucket.refusal("GET", "/bucket", b"", query) == (missing, 404)
    with pytest.raises(Refusal, match="Malformed"):
        bucket.document("PUT", query, b"<<")
    assert bucket.refusal("PUT", "/bucket", body, query) == ("InvalidRequest", 400)


def test_objects_have_tags_of_their_own(bucket: Bucket) -> None:
    bucket.put("a")
    body = b"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>"
    digest = base64.b64encode(hashlib.md5(body).digest()).decode()
    bucket.call("PUT", "/bucket/a", body, "tagging", content_md5=digest)
    assert b"<Tag><Key>k</Key><Value>v</Value></Tag>" in bucket.call("GET", "/bucket/a", query="tagging").body
    bucket.call("DELETE", "/bucket/a", query="tagging")
    assert b"<Tag>" not in bucket.call("GET", "/bucket/a", query="tagging").body
    many = "&".join(f"{number}=" for number in range(11))
    assert bucket.refusal("PUT", "/bucket/b", b"", x_amz_tagging=many) == ("BadRequest", 400)


def test_a_key_has_at_most_1024_bytes(bucket: Bucket) -> None:
    bucket.put("é" * 512)
    assert bucket.refusal("PUT", f"/bucket/{'é' * 513}") == ("KeyTooLongError", 400)
