"""Buckets and objects of the emulated S3, in memory. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from scaler.testing.aws.faults import Refusal

BUCKET_NAME = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
MAX_KEY_BYTES = 1024
MAX_OBJECT_BYTES = 5 * 1024**3
MAX_STORED_BYTES = 4 * 1024**3
"""What the emulator keeps in all; the service has no such limit."""

LIFECYCLE_SECONDS = 60
DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Stored:
    """An object. headers: what it hands back beside the content."""

    body: bytes
    etag: str
    headers: Mapping[str, str]
    checksums: Mapping[str, str]
    tags: Mapping[str, str]
    modified: float


@dataclass(frozen=True, slots=True)
class Expiry:
    """A lifecycle rule: objects below a prefix that have these tags are deleted after some days."""

    prefix: str
    tags: Mapping[str, str]
    days: int

    def over(self, key: str, stored: Stored, now: float) -> bool:
        """Tell whether an object's time is over: days after its creation, at the next midnight (UTC)."""
        if not key.startswith(self.prefix) or not self.tags.items() <= stored.tags.items():
            return False
        return now >= -(-(stored.modified + self.days * DAY_SECONDS) // DAY_SECONDS) * DAY_SECONDS


@dataclass(slots=True, eq=False)
class Bucket:
    """A bucket. keys are sorted by their UTF-8 bytes, which is the order of their characters."""

    name: str
    created: float
    keys: list[str] = field(default_factory=list)
    objects: dict[str, Stored] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    expiries: list[Expiry] = field(default_factory=list)
    size_bytes: int = 0
    expired_at: float = 0.0

    def put(self, key: str, stored: Stored) -> None:
        """Store or replace an object."""
        if key not in self.objects:
            insort(self.keys, key)
            self.size_bytes += len(stored.body)
        else:
            self.size_bytes += len(stored.body) - len(self.objects[key].body)
        self.objects[key] = stored

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        stored = self.objects.pop(key, None)
        if stored is not None:
            self.size_bytes -= len(stored.body)
            del self.keys[bisect_left(self.keys, key)]

    def after(self, last: str, prefix: str) -> Iterator[str]:
        """Yield the keys behind `last` that begin with a prefix, in their order."""
        index = max(bisect_right(self.keys, last) if last else 0, bisect_left(self.keys, prefix))
        while index < len(self.keys) and self.keys[index].startswith(prefix):
            yield self.keys[index]
            index += 1

    def expire(self, now: float) -> None:
        """Delete what the lifecycle rules say. Looks no more often than once in LIFECYCLE_SECONDS."""
        if now < self.expired_at + LIFECYCLE_SECONDS:
            return
        self.expired_at = now
        for expiry in self.expiries:
            for key in [key for key in self.after("", expiry.prefix) if expiry.over(key, self.objects[key], now)]:
                self.delete(key)


class Store:
    """All buckets."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}

    def bucket(self, name: str, now: float) -> Bucket:
        """Return a bucket, as it is at a time. Raises Refusal."""
        bucket = self.buckets.get(name)
        if bucket is None:
            raise Refusal("NoSuchBucket", "The specified bucket does not exist", 404)
        bucket.expire(now)
        return bucket

    def object(self, bucket: str, key: str, now: float) -> Stored:
        """Return an object. Raises Refusal."""
        stored = self.bucket(bucket, now).objects.get(key)
        if stored is None:
            raise Refusal("NoSuchKey", "The specified key does not exist.", 404)
        return stored

    def create(self, name: str, now: float) -> Bucket:
        """Create and return a bucket. Raises Refusal."""
        if not BUCKET_NAME.fullmatch(name):
            raise Refusal("InvalidBucketName", "The specified bucket is not valid.")
        if name in self.buckets:
            text = "Your previous request to create the named bucket succeeded and you already own it."
            raise Refusal("BucketAlreadyOwnedByYou", text, 409)
        self.buckets[name] = Bucket(name, now)
        return self.buckets[name]

    def delete(self, name: str, now: float) -> None:
        """Delete an empty bucket. Raises Refusal."""
        if self.bucket(name, now).keys:
            raise Refusal("BucketNotEmpty", "The bucket you tried to delete is not empty", 409)
        del self.buckets[name]

    def put(self, bucket: str, key: str, stored: Stored) -> None:
        """Store an object. Raises Refusal."""
        if len(key.encode()) > MAX_KEY_BYTES:
            raise Refusal("KeyTooLongError", "Your key is too long")
        if len(stored.body) > MAX_OBJECT_BYTES:
            raise Refusal("EntityTooLarge", "Your proposed upload exceeds the maximum allowed size")
        if sum(each.size_bytes for each in self.buckets.values()) + len(stored.body) > MAX_STORED_BYTES:
            raise Refusal("InternalError", f"the emulator keeps at most {MAX_STORED_BYTES} bytes", 500)
        self.bucket(bucket, stored.modified).put(key, stored)

    def retag(self, bucket: str, key: str, tags: Mapping[str, str], now: float) -> None:
        """Replace the tags of an object. Raises Refusal."""
        stored = self.object(bucket, key, now)
        self.bucket(bucket, now).put(key, replace(stored, tags=tags))
