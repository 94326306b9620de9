"""ListObjectsV2 of the emulated S3."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import quote

from scaler.testing.aws.faults import Refusal
from scaler.testing.aws.s3.requests import CHECKSUM
from scaler.testing.aws.s3.store import Bucket, Stored
from scaler.testing.aws.s3.xml import Element, element, iso, texts

MAX_KEYS = 1000
LAST_CHARACTER = "\U0010ffff"


def list_objects(bucket: Bucket, query: Mapping[str, str]) -> Element:
    """Answer with a page of a bucket's keys. Raises Refusal."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    size = _size(query)
    url = query.get("encoding-type") == "url"

    def coded(text: str) -> str:
        return quote(text, safe="/") if url else text

    shown: list[Element] = []
    groups: list[str] = []
    resumed = _last(query)
    last_shown = resumed or query.get("start-after", "")
    more = False
    for key in bucket.after(last_shown, prefix):
        group = _group(key, prefix, delimiter)
        if group and (group == resumed or groups[-1:] == [group]):
            continue  # shown already, on the page before or on this one
        if len(shown) + len(groups) == size:
            more = True
            break
        last_shown = group or key
        if group:
            groups.append(group)
        else:
            shown.append(_content(coded(key), bucket.objects[key]))
    head: dict[str, str | int | bool] = {
        "Name": bucket.name,
        "Prefix": coded(prefix),
        "KeyCount": len(shown) + len(groups),
        "MaxKeys": size,
        "IsTruncated": more and size > 0,
    }
    for name, parameter in (("Delimiter", "delimiter"), ("StartAfter", "start-after")):
        if parameter in query:
            head[name] = coded(query[parameter])
    if url:
        head["EncodingType"] = "url"
    if "continuation-token" in query:
        head["ContinuationToken"] = query["continuation-token"]
    if more and size > 0:
        head["NextContinuationToken"] = base64.urlsafe_b64encode(last_shown.encode()).decode()
    prefixes = [element("CommonPrefixes", *texts({"Prefix": coded(group)})) for group in groups]
    return element("ListBucketResult", *texts(head), *shown, *prefixes)


def _group(key: str, prefix: str, delimiter: str) -> str:
    """Return the common prefix under which a key is shown. Empty: it is shown itself."""
    if not delimiter:
        return ""
    end = key.find(delimiter, len(prefix))
    return key[: end + len(delimiter)] if end >= 0 else ""


def _content(key: str, stored: Stored) -> Element:
    described: dict[str, str | int | bool] = {
        "Key": key,
        "LastModified": iso(stored.modified),
        "ETag": stored.etag,
        "Size": len(stored.body),
        "StorageClass": "STANDARD",
    }
    kinds = [name.removeprefix(CHECKSUM).upper() for name in stored.checksums]
    checksums = [("ChecksumAlgorithm", kind) for kind in kinds] + [("ChecksumType", "FULL_OBJECT")] * bool(kinds)
    return element("Contents", *texts(described), *(element(name, text=text) for name, text in checksums))


def _size(query: Mapping[str, str]) -> int:
    size = query.get("max-keys", str(MAX_KEYS))
    if not size.isdecimal():
        raise Refusal("InvalidArgument", "Provided max-keys not an integer or within integer range")
    return min(int(size), MAX_KEYS)


def _last(query: Mapping[str, str]) -> str:
    """Return what the page before ended with; keys below it, when it was a common prefix, sort behind it."""
    try:
        return base64.urlsafe_b64decode(query.get("continuation-token", "").encode()).decode()
    except (binascii.Error, ValueError) as error:
        raise Refusal("InvalidArgument", "The continuation token provided is incorrect") from error
