"""S3 of the emulator: the HTTP shell around `S3Core`."""

from __future__ import annotations

import threading
import time
import uuid

from scaler.testing.aws.faults import Partial, Refusal
from scaler.testing.aws.s3 import xml
from scaler.testing.aws.s3.core import S3Core
from scaler.testing.aws.s3.requests import operation_of
from scaler.testing.aws.s3.xml import element, texts
from scaler.testing.aws.service import Answer, Call, Surroundings


class S3:
    """S3 for clients, in path style. It must be the last service that is asked: every path may be a bucket's."""

    name = "s3"

    def __init__(self, surroundings: Surroundings) -> None:
        self._core = S3Core(surroundings.region)
        self._lock = threading.Lock()

    def name_of(self, call: Call) -> str | None:
        # S3 has no POST without a bucket: it is for STS, IAM or EC2, and came here for want of these.
        return None if (call.method, call.path) == ("POST", "/") else operation_of(call)

    def answer(self, operation: str, call: Call, partial: Partial | None) -> Answer:  # noqa: ARG002 (of RunTask only)
        with self._lock:
            return self._core.call(operation, call, time.time())

    def refuse(self, refusal: Refusal) -> Answer:
        described = {"Code": refusal.code, "Message": refusal.message, "RequestId": uuid.uuid4().hex[:16].upper()}
        return xml.document(element("Error", *texts(described)), refusal.status)

    def throttle(self) -> Refusal:
        return Refusal("SlowDown", "Please reduce your request rate.", 503)

    def close(self) -> None:
        """Nothing runs."""

    def keys(self, bucket: str) -> list[str]:
        """Return all keys of a bucket, sorted. Raises Refusal."""
        with self._lock:
            return self._core.keys(bucket, time.time())
