"""What requests to S3 are: their operation, bucket and key, and the bytes that they carry."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from scaler.testing.aws.faults import Refusal
from scaler.testing.aws.service import Call

CHUNKED = "aws-chunked"
STREAMING = "STREAMING-"
CHECKSUM = "x-amz-checksum-"
CHECKSUMS = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
DOCUMENTS = {
    "lifecycle": "LifecycleConfiguration",
    "tagging": "Tagging",
    "publicAccessBlock": "PublicAccessBlock",
    "encryption": "Encryption",
    "policy": "Policy",
    "versioning": "Versioning",
    "ownershipControls": "OwnershipControls",
}
"""What a bucket has beside its objects: the word in the query, and how operations on it end."""
VERBS = {"GET": "Get", "PUT": "Put", "DELETE": "Delete"}
BUCKET_OPERATIONS = {"GET": "ListObjectsV2", "PUT": "CreateBucket", "DELETE": "DeleteBucket", "HEAD": "HeadBucket"}
OBJECT_OPERATIONS = {"GET": "GetObject", "PUT": "PutObject", "DELETE": "DeleteObject", "HEAD": "HeadObject"}
DELETE_NAMES = {"lifecycle": "DeleteBucketLifecycle"}
"""Operations that are not named after the rule."""
UNKNOWN = "NotImplemented"
"""The operation of requests that the emulator has none for."""
NOT_EMULATED = ("acl", "cors", "uploads", "uploadId", "versions", "versionId", "website", "logging", "replication")


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about. bucket or key are empty where it names none."""

    bucket: str
    key: str


def target_of(call: Call) -> Target:
    """Read a path-style path."""
    bucket, _, key = call.path.removeprefix("/").partition("/")
    return Target(bucket, key)


def operation_of(call: Call) -> str:
    """Return the name of the operation that a request asks for, or UNKNOWN."""
    target = target_of(call)
    if not target.bucket:
        return "ListBuckets" if call.method == "GET" else UNKNOWN
    if any(word in call.query for word in NOT_EMULATED) or "x-amz-copy-source" in call.headers:
        return UNKNOWN
    document = next((word for word in DOCUMENTS if word in call.query), None)
    if target.key:
        if document == "tagging" and call.method in VERBS:
            return f"{VERBS[call.method]}ObjectTagging"
        return UNKNOWN if document else OBJECT_OPERATIONS.get(call.method, UNKNOWN)
    if document:
        return _document_operation(call.method, document)
    if "location" in call.query:
        return "GetBucketLocation"
    if call.method == "POST":
        return "DeleteObjects" if "delete" in call.query else UNKNOWN
    if call.method == "GET" and call.query.get("list-type") != "2":
        return UNKNOWN
    return BUCKET_OPERATIONS.get(call.method, UNKNOWN)


def content_of(call: Call) -> tuple[bytes, dict[str, str]]:
    """Return the bytes that a request carries, and their checksums by header name, which are checked.

    CRC32C and CRC64NVME cannot be computed by Python's own libraries at a bearable speed: they are kept and handed
    back as they came. Raises Refusal.
    """
    given = {name: value for name, value in call.headers.items() if name.startswith(CHECKSUM)}
    body = call.body
    digest = call.headers.get("x-amz-content-sha256", "")
    if digest.startswith(STREAMING) or CHUNKED in call.headers.get("content-encoding", ""):
        body, trailers = _dechunked(body)
        given |= {name: value for name, value in trailers.items() if name.startswith(CHECKSUM)}
    elif len(digest) == 64 and hashlib.sha256(body).hexdigest() != digest:
        raise Refusal("XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match.")
    if "content-md5" in call.headers and call.headers["content-md5"] != _base64(_md5(body)):
        raise Refusal("BadDigest", "The Content-MD5 you specified did not match what we received.")
    checksums = {name: value for name, value in given.items() if name.removeprefix(CHECKSUM) in CHECKSUMS}
    for name, value in checksums.items():
        if value != checksum(name.removeprefix(CHECKSUM), body, value):
            kind = name.removeprefix(CHECKSUM).upper()
            raise Refusal("BadDigest", f"The {kind} you specified did not match the calculated checksum.")
    return body, checksums


def checked_content(call: Call) -> bytes:
    """Return the content of a request that must have a checksum. Raises Refusal."""
    body, checksums = content_of(call)
    if not checksums and "content-md5" not in call.headers:
        text = "Missing required header for this request: Content-MD5 OR x-amz-checksum-*"
        raise Refusal("InvalidRequest", text)
    return body


def checksum(kind: str, body: bytes, otherwise: str) -> str:
    """Return a checksum as headers carry it; `otherwise` for the kinds that are not computed."""
    match kind:
        case "crc32":
            return _base64(zlib.crc32(body).to_bytes(4, "big"))
        case "sha1":
            return _base64(hashlib.sha1(body, usedforsecurity=False).digest())
        case "sha256":
            return _base64(hashlib.sha256(body).digest())
        case _:
            return otherwise


def etag_of(body: bytes) -> str:
    """Return the entity tag of an object, with its quotes."""
    return f'"{_md5(body).hex()}"'


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that an object hands back when it is read."""
    names = ("content-type", "content-disposition", "content-language", "cache-control", "expires")
    kept = {name: value for name, value in headers.items() if name in names or name.startswith("x-amz-meta-")}
    encodings = [word.strip() for word in headers.get("content-encoding", "").split(",")]
    encoding = ",".join(word for word in encodings if word not in ("", CHUNKED))
    return {**kept, "content-encoding": encoding} if encoding else kept


def _document_operation(method: str, document: str) -> str:
    ending = DOCUMENTS[document]
    if method not in VERBS:
        return UNKNOWN
    if document == "publicAccessBlock":
        return f"{VERBS[method]}{ending}"
    if method == "DELETE":
        return DELETE_NAMES.get(document, f"DeleteBucket{ending}")
    return f"{VERBS[method]}Bucket{ending}"


def _dechunked(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Undo the aws-chunked coding: chunks of `size;extensions CRLF data CRLF`, a last one of size 0, trailers."""
    pieces: list[bytes] = []
    position = 0
    try:
        while True:
            end = body.index(b"\r\n", position)
            size = int(body[position:end].partition(b";")[0], 16)
            position = end + 2
            if size == 0:
                break
            if body[position + size : position + size + 2] != b"\r\n":
                raise ValueError("a chunk does not end where it should")
            pieces.append(body[position : position + size])
            position += size + 2
    except ValueError as error:
        raise Refusal("IncompleteBody", f"The request body is not aws-chunked: {error}") from error
    lines = body[position:].decode("latin-1").split("\r\n")
    trailers = (line.partition(":") for line in lines if ":" in line)
    return b"".join(pieces), {name.strip().lower(): value.strip() for name, _, value in trailers}


def _md5(body: bytes) -> bytes:
    return hashlib.md5(body, usedforsecurity=False).digest()


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
