"""The rules of the emulated S3. Pure: a call and the time in, an answer out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from scaler.testing.aws.faults import Refusal
from scaler.testing.aws.s3 import documents, xml
from scaler.testing.aws.s3.listing import list_objects
from scaler.testing.aws.s3.ranges import Span, span_of
from scaler.testing.aws.s3.requests import (
    CHECKSUM,
    DOCUMENTS,
    Target,
    checked_content,
    content_of,
    etag_of,
    kept_headers,
    target_of,
)
from scaler.testing.aws.s3.store import Store, Stored
from scaler.testing.aws.s3.xml import element, texts
from scaler.testing.aws.service import ACCOUNT, Answer, Call

MAX_DELETED_KEYS = 1000
MAX_OBJECT_TAGS = 10
OLDEST_REGION = "us-east-1"
"""Where a bucket can be made again, and where none is named at its making."""
NO_CONTENT = Answer(204)

Operation = Callable[[Call, Target, float], Answer]


class S3Core:
    """Buckets and objects of one account. `call` answers a request. Times are Unix seconds."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._store = Store()
        self._operations: dict[str, Operation] = {
            "ListBuckets": self._list_buckets,
            "CreateBucket": self._create_bucket,
            "HeadBucket": self._head_bucket,
            "GetBucketLocation": self._get_location,
            "DeleteBucket": self._delete_bucket,
            "ListObjectsV2": self._list_objects,
            "DeleteObjects": self._delete_objects,
            "PutObject": self._put_object,
            "GetObject": self._get_object,
            "HeadObject": self._get_object,
            "DeleteObject": self._delete_object,
            "GetObjectTagging": self._get_object_tags,
            "PutObjectTagging": self._put_object_tags,
            "DeleteObjectTagging": self._put_object_tags,
        }

    def call(self, operation: str, call: Call, now: float) -> Answer:
        """Answer a request. Raises Refusal."""
        target = target_of(call)
        if operation in self._operations:
            return self._operations[operation](call, target, now)
        document = next((word for word in DOCUMENTS if word in call.query), None)
        if document is None or target.key:
            text = "A header or query you provided implies functionality that is not implemented"
            raise Refusal("NotImplemented", text, 501)
        bucket = self._store.bucket(target.bucket, now)
        if call.method == "PUT":
            return documents.put(bucket, document, call)
        if call.method == "DELETE":
            return documents.delete(bucket, document)
        return documents.get(bucket, document)

    def keys(self, bucket: str, now: float) -> list[str]:
        """Return all keys of a bucket. Raises Refusal."""
        return list(self._store.bucket(bucket, now).keys)

    def _list_buckets(self, *_: object) -> Answer:
        buckets = [
            element("Bucket", *texts({"Name": each.name, "CreationDate": xml.iso(each.created)}))
            for each in self._store.buckets.values()
        ]
        owner = element("Owner", *texts({"ID": ACCOUNT}))
        return xml.document(element("ListAllMyBucketsResult", owner, element("Buckets", *buckets)))

    def _create_bucket(self, call: Call, target: Target, now: float) -> Answer:
        place = ""
        if call.body:
            place = xml.parsed(call.body, "CreateBucketConfiguration").findtext("LocationConstraint", "")
        if place == OLDEST_REGION:
            raise Refusal("InvalidLocationConstraint", "The specified location-constraint is not valid")
        if not place and self._region != OLDEST_REGION:
            text = "The unspecified location constraint is incompatible for the region specific endpoint"
            raise Refusal("IllegalLocationConstraintException", f"{text} this request was sent to.")
        if self._region != OLDEST_REGION or target.bucket not in self._store.buckets:
            self._store.create(target.bucket, now).documents.update(documents.DEFAULTS)
        return Answer(200, b"", {"location": f"/{target.bucket}"})

    def _head_bucket(self, _: Call, target: Target, now: float) -> Answer:
        self._store.bucket(target.bucket, now)
        return Answer(200, b"", {"x-amz-bucket-region": self._region, **xml.HEADERS})

    def _get_location(self, _: Call, target: Target, now: float) -> Answer:
        self._store.bucket(target.bucket, now)
        place = None if self._region == OLDEST_REGION else self._region
        return xml.document(element("LocationConstraint", text=place))

    def _delete_bucket(self, _: Call, target: Target, now: float) -> Answer:
        self._store.delete(target.bucket, now)
        return NO_CONTENT

    def _list_objects(self, call: Call, target: Target, now: float) -> Answer:
        return xml.document(list_objects(self._store.bucket(target.bucket, now), call.query))

    def _delete_objects(self, call: Call, target: Target, now: float) -> Answer:
        bucket = self._store.bucket(target.bucket, now)
        body = checked_content(call)
        found = xml.parsed(body, "Delete")
        keys = [each.findtext("Key", "") for each in found.findall("Object")]
        if not 0 < len(keys) <= MAX_DELETED_KEYS:
            raise xml.malformed()
        for key in keys:
            bucket.delete(key)
        quiet = found.findtext("Quiet", "false").strip().lower() == "true"
        deleted = [] if quiet else [element("Deleted", *texts({"Key": key})) for key in keys]
        return xml.document(element("DeleteResult", *deleted))

    def _put_object(self, call: Call, target: Target, now: float) -> Answer:
        present = self._store.bucket(target.bucket, now).objects.get(target.key)
        _check_writable(call.headers, present)
        body, checksums = content_of(call)
        tags = dict(parse_qsl(call.headers.get("x-amz-tagging", ""), keep_blank_values=True))
        stored = Stored(body, etag_of(body), kept_headers(call.headers), checksums, _object_tags(tags), now)
        self._store.put(target.bucket, target.key, stored)
        return Answer(200, b"", {"etag": stored.etag, **_checksum_headers(stored)})

    def _get_object(self, call: Call, target: Target, now: float) -> Answer:
        if call.method == "HEAD" and target.key not in self._store.bucket(target.bucket, now).objects:
            raise Refusal("NotFound", "Not Found", 404)
        stored = self._store.object(target.bucket, target.key, now)
        unchanged = _unchanged(call.headers, stored)
        headers = {
            "content-type": "binary/octet-stream",
            "last-modified": xml.http_date(stored.modified),
            "etag": stored.etag,
            "accept-ranges": "bytes",
            "x-amz-server-side-encryption": "AES256",
            **stored.headers,
        }
        if stored.tags:
            headers["x-amz-tagging-count"] = str(len(stored.tags))
        if unchanged:
            return Answer(304, b"", headers)
        span = span_of(call.headers.get("range", ""), len(stored.body))
        if isinstance(span, Span):
            return Answer(206, stored.body[span.begin : span.end], {**headers, "content-range": span.text()})
        if call.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
            headers |= _checksum_headers(stored)
        return Answer(200, stored.body, headers)

    def _delete_object(self, _: Call, target: Target, now: float) -> Answer:
        self._store.bucket(target.bucket, now).delete(target.key)
        return NO_CONTENT

    def _get_object_tags(self, _: Call, target: Target, now: float) -> Answer:
        return xml.document(xml.tagging(self._store.object(target.bucket, target.key, now).tags))

    def _put_object_tags(self, call: Call, target: Target, now: float) -> Answer:
        deleted = call.method == "DELETE"
        tags = {} if deleted else _object_tags(xml.tags_in(xml.parsed(checked_content(call), "Tagging")))
        self._store.retag(target.bucket, target.key, tags, now)
        return NO_CONTENT if deleted else Answer(200)


def _check_writable(headers: Mapping[str, str], present: Stored | None) -> None:
    """Raise Refusal when a condition of a PutObject does not hold."""
    wanted = headers.get("if-match")
    if wanted is not None and present is None:
        raise Refusal("NoSuchKey", "The specified key does not exist.", 404)
    if (wanted is not None and present is not None and wanted != present.etag) or (
        headers.get("if-none-match") == "*" and present is not None
    ):
        raise _precondition_failed()


def _unchanged(headers: Mapping[str, str], stored: Stored) -> bool:
    """Tell whether the reader has the object already. Raises Refusal when it wants another one."""
    if headers.get("if-match", stored.etag) not in (stored.etag, "*"):
        raise _precondition_failed()
    return headers.get("if-none-match") in (stored.etag, "*")


def _precondition_failed() -> Refusal:
    return Refusal("PreconditionFailed", "At least one of the pre-conditions you specified did not hold", 412)


def _object_tags(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MAX_OBJECT_TAGS:
        raise Refusal("BadRequest", f"Object tags cannot be greater than {MAX_OBJECT_TAGS}")
    return xml.checked_tags(tags)


def _checksum_headers(stored: Stored) -> dict[str, str]:
    return {**stored.checksums, f"{CHECKSUM}type": "FULL_OBJECT"} if stored.checksums else {}
