"""S3, IAM, CloudWatch Logs, Systems Manager, STS, EC2, and ECR: moto behind the emulator's endpoint and fault script.

`docs/testing.md` lists the behaviour that comes from moto and from the emulator.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
import uuid
from typing import Any
from urllib.parse import parse_qs, quote
from xml.sax.saxutils import escape

from scaler.extras import require
from scaler.testing.aws.faults import Partial, ServiceError
from scaler.testing.aws.service import ACCOUNT, Answer, ServiceCall

_SCOPE = re.compile(r"Credential=[^/]+/\d{8}/[^/]+/([^/]+)/aws4_request")
_VERBS = {"GET": "Get", "PUT": "Put", "DELETE": "Delete", "HEAD": "Head", "POST": "Post"}
_DOCUMENTS = {
    "encryption": "BucketEncryption",
    "location": "BucketLocation",
    "policy": "BucketPolicy",
    "publicAccessBlock": "PublicAccessBlock",
    "tagging": "BucketTagging",
}
"""S3 subresources of a bucket: query parameter, and suffix of the operation name after Get, Put, or Delete."""


def service_of(call: ServiceCall) -> str:
    if "AWSAccessKeyId" in call.query:  # a presigned URL of the older kind, which only S3 has
        return "s3"
    signature = call.headers.get("authorization") or f"Credential={call.query.get('X-Amz-Credential', '')}"
    found = _SCOPE.search(signature)
    return found[1] if found else ""


def s3_operation(call: ServiceCall) -> str:
    bucket, _, key = call.path.removeprefix("/").partition("/")
    if not bucket:
        return "ListBuckets"
    if key:
        return f"{_VERBS[call.method]}Object" + ("Tagging" if "tagging" in call.query else "")
    if "lifecycle" in call.query:
        return (
            "DeleteBucketLifecycle" if call.method == "DELETE" else f"{_VERBS[call.method]}BucketLifecycleConfiguration"
        )
    for word, name in _DOCUMENTS.items():
        if word in call.query:
            return _VERBS[call.method] + name
    if call.method == "POST" and "delete" in call.query:
        return "DeleteObjects"
    return {"GET": "ListObjectsV2", "PUT": "CreateBucket", "DELETE": "DeleteBucket", "HEAD": "HeadBucket"}.get(
        call.method, "Unknown"
    )


class Moto:
    """moto in this process. moto has one state per process, which an emulator's first request clears."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """moto's backends do not support concurrent writers: exactly one of several conditional PutObjects must win."""
        self._applications: dict[str, Any] = {}

    def answer(self, service: str, call: ServiceCall, headers: list[tuple[str, str]]) -> Answer:
        with self._lock:
            application = self._application(service)
            test = importlib.import_module("werkzeug.test")  # installed with moto
            builder = test.EnvironBuilder(
                path=quote(call.path),  # a ? in the path is part of a key
                query_string=call.query_string,
                method=call.method,
                headers=headers,
                data=call.body,
            )
            try:
                chunks, status, answered = test.run_wsgi_app(application, builder.get_environ(), buffered=True)
            finally:
                builder.close()
            return Answer(int(status.split()[0]), b"".join(chunks), dict(answered))

    def keys(self, bucket: str) -> list[str]:
        """Return all keys of an S3 bucket, sorted. Raises KeyError for an unknown bucket."""
        with self._lock:
            self._application("s3")
            backends = importlib.import_module("moto.backends").get_backend("s3")
            return sorted(backends[ACCOUNT]["aws"].buckets[bucket].keys)

    def parameter(self, region: str, name: str) -> str | None:
        with self._lock:
            self._application("ssm")
            found = importlib.import_module("moto.backends").get_backend("ssm")[ACCOUNT][region].get_parameter(name)
            return None if found is None else str(found.response_object(decrypt=True)["Value"])

    def close(self) -> None:
        with self._lock:
            if self._applications:
                _reset_moto()
                self._applications.clear()

    def _application(self, service: str) -> Any:
        if service not in self._applications:
            require("moto", "the AWS emulator", "'moto[server]==5.2.*'")
            server = importlib.import_module("moto.server")
            if not self._applications:
                _reset_moto()
            if service == "iam":  # moto derives AWSServiceRoleForbatch
                importlib.import_module("moto.iam.models").SERVICE_NAME_CONVERSION["batch"] = "Batch"
            self._applications[service] = server.create_backend_app(service)
        return self._applications[service]


def _reset_moto() -> None:
    importlib.import_module("moto.moto_api._internal").moto_api_backend.reset()


class MotoService:
    def __init__(self, moto: Moto, name: str) -> None:
        """name: as in moto and in signatures: s3, iam, logs, ssm, sts, or ec2."""
        self.name = name
        self._moto = moto

    def name_of(self, call: ServiceCall) -> str | None:
        if service_of(call) != self.name:
            return None
        if self.name == "s3":
            return s3_operation(call)
        target = call.headers.get("x-amz-target", "")
        if target:
            return target.rpartition(".")[2]
        return parse_qs(call.body.decode("utf-8", "replace")).get("Action", ["Unknown"])[0]

    def answer(self, operation: str, call: ServiceCall, partial: Partial | None) -> Answer:  # noqa: ARG002 (as every service)
        # urllib declares every body a form, which moto would parse into fields.
        is_form = self.name == "s3" and call.headers.get("content-type") == "application/x-www-form-urlencoded"
        headers = [(name, value) for name, value in call.headers.items() if not (is_form and name == "content-type")]
        return self._moto.answer(self.name, call, headers)

    def refuse(self, refusal: ServiceError) -> Answer:
        if self.name in ("logs", "ssm"):
            body = json.dumps({"__type": refusal.code, "message": refusal.message}).encode()
            return Answer(refusal.status, body, {"Content-Type": "application/x-amz-json-1.1"})
        error = f"<Code>{escape(refusal.code)}</Code><Message>{escape(refusal.message)}</Message>"
        if self.name == "s3":
            text = f"<Error>{error}<RequestId>{uuid.uuid4().hex[:16].upper()}</RequestId></Error>"
        elif self.name == "ec2":
            text = f"<Response><Errors><Error>{error}</Error></Errors></Response>"
        else:
            text = f"<ErrorResponse><Error>{error}</Error></ErrorResponse>"
        return Answer(refusal.status, text.encode(), {"Content-Type": "application/xml"})

    def throttle(self) -> ServiceError:
        if self.name == "s3":
            return ServiceError("SlowDown", "Please reduce your request rate.", 503)
        code = {"ec2": "RequestLimitExceeded", "logs": "ThrottlingException", "ssm": "ThrottlingException"}.get(
            self.name, "Throttling"
        )
        return ServiceError(code, "Rate exceeded")

    def close(self) -> None:
        self._moto.close()

    def keys(self, bucket: str) -> list[str]:
        """Return all keys of an S3 bucket, sorted. Raises KeyError for an unknown bucket."""
        return self._moto.keys(bucket)
