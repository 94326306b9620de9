"""AWS calls with short timeouts. Error texts are stable and name a remedy. Callers handle backoff."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeVar

import boto3
import botocore
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.utils import InstanceMetadataRegionFetcher

from scaler._version import __version__
from scaler.errors import ScalerError, UsageError
from scaler.worker_manager.aws import AwsSettings
from scaler.worker_manager.backend import BackendError, short

CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 10

ATTEMPTS = 2
CONNECTIONS = 16
_NAMES = {"batch": "AWS Batch", "logs": "CloudWatch Logs", "ssm": "Systems Manager"}

_Settings = TypeVar("_Settings", bound=AwsSettings)

Fields = dict[str, Any]
ErrorKind = Literal["throttled", "credentials", "denied", "unanswered", "broken", "refused"]
"""unanswered: no reply. broken: the service failed. refused: the service rejected this request."""

_ANSWERS: tuple[tuple[str, ErrorKind, str], ...] = (
    (
        "BandwidthLimitExceeded|PriorRequestNotComplete|RequestLimitExceeded|SlowDown|Throttl|TooManyRequests",
        "throttled",
        "throttled by {call} ({code})",
    ),
    (
        (
            "AccessKeyId|AuthFailure|AuthenticationToken|ClientTokenId|ExpiredToken|InvalidToken|RequestExpired|"
            "RequestInTheFuture|RequestTimeTooSkewed|Signature|TokenRefreshRequired|UnrecognizedClient"
        ),
        "credentials",
        "AWS rejects these credentials ({code}): renew them, or check aws_profile and this machine's clock",
    ),
    ("AccessDenied|Unauthorized", "denied", "not allowed to call {call} ({code}): {message}"),
)
"""Pattern of the error code, kind, and text. The first match applies."""
_BROKEN: tuple[ErrorKind, str] = "broken", "{call} failed on the service's side ({code}, status {status})"
_REFUSED: tuple[ErrorKind, str] = "refused", "{call} refused ({code}): {message}"
_NO_CREDENTIALS = (
    "no AWS credentials for {call} ({type}: {message}): log in again, set aws_profile, or set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)
_FAILURES: tuple[tuple[tuple[type[Exception], ...], ErrorKind, str], ...] = (
    (
        (
            *(exceptions.NoCredentialsError, exceptions.PartialCredentialsError),
            *(exceptions.CredentialRetrievalError, exceptions.TokenRetrievalError, exceptions.SSOError),
        ),
        "credentials",
        _NO_CREDENTIALS,
    ),
    (
        (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError),
        "unanswered",
        "{call}: no answer{where} ({type}): check the network, aws_region and aws_endpoint_url",
    ),
    ((BotoCoreError,), "refused", "{call} cannot be called ({type}): {message}"),
    ((RuntimeError, ValueError, OSError), "credentials", _NO_CREDENTIALS),  # from `credential_process`
)
"""Errors raised by boto3 itself; the first match applies."""
_IDS = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32,}\b", re.IGNORECASE)
_HOST = re.compile(r"https?://[^/]+")


class AwsError(BackendError):
    """A failed call. code: AWS's error name, or empty. is_uncertain: the service may have executed the call."""

    def __init__(self, text: str, kind: ErrorKind, code: str = "", message: str = "") -> None:
        super().__init__(text, is_temporary=kind in ("throttled", "unanswered", "broken"))
        self.kind = kind
        self.code = code
        self.message = message
        self.is_uncertain = kind in ("unanswered", "broken")


def aws_error(service: str, operation: str, error: Exception) -> AwsError:
    facts = {"call": f"{service} {operation}", "type": type(error).__name__}
    if not isinstance(error, ClientError):
        kind, text = next((kind, text) for types, kind, text in _FAILURES if isinstance(error, types))
        host = _HOST.match(str(getattr(error, "kwargs", {}).get("endpoint_url", "")))
        where = f" at {host.group()}" if host else ""
        return AwsError(text.format(**facts, where=where, message=steady(str(error))), kind)
    fault = error.response.get("Error", {})
    code = str(fault.get("Code", "")) or "unknown error"
    message = str(fault.get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    other = _BROKEN if status >= 500 else _REFUSED
    kind, text = next(((kind, text) for codes, kind, text in _ANSWERS if re.search(codes, code)), other)
    return AwsError(text.format(**facts, code=code, status=status, message=steady(message)), kind, code, message)


def steady(message: str) -> str:
    """Remove request and task ids, so that messages about the same problem are equal."""
    return short(_IDS.sub("...", message))


def seconds_between(begin: datetime | None, end: datetime) -> float:
    return 0.0 if begin is None else max(0.0, (end - begin).total_seconds())


def aws_session(settings: AwsSettings) -> boto3.session.Session:
    try:
        return boto3.session.Session(profile_name=settings.aws_profile, region_name=settings.aws_region or None)
    except exceptions.ProfileNotFound as error:
        raise UsageError(f"aws_profile = {settings.aws_profile!r}: {error}") from error


def with_region(settings: _Settings) -> _Settings:
    """Fill in the region from the environment, profile, or instance. Raises UsageError if there is no region."""
    if settings.aws_region:
        return settings
    # boto3 reads only AWS_DEFAULT_REGION; other AWS tools, Fargate, and Lambda set AWS_REGION.
    region = os.environ.get("AWS_REGION") or aws_session(settings).region_name
    region = region or InstanceMetadataRegionFetcher(timeout=1, num_attempts=1).retrieve_region()
    if not region:
        raise UsageError(
            "aws_region is missing, and neither AWS_REGION, AWS_DEFAULT_REGION, the AWS profile, nor the "
            "instance metadata names a region: set aws_region, such as eu-central-1"
        )
    return replace(settings, aws_region=region)


class AwsClient:
    """A client for one service. Thread-safe. Raises UsageError for a wrong profile or region."""

    def __init__(
        self,
        settings: AwsSettings,
        service: str,
        *,
        session: boto3.session.Session | None = None,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        """attempts: 1 for operations that must not run twice."""
        self.name = _NAMES.get(service, service.upper())
        self._settings = settings = with_region(settings)
        self._service = service
        self._config = Config(
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            read_timeout=read_timeout_seconds,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=CONNECTIONS,
            user_agent_extra=f"scaler/{__version__}",
            # Emulators and private endpoints rarely have a host name per bucket.
            s3={"addressing_style": "path"} if settings.aws_endpoint_url else None,
        )
        self._lock = threading.Lock()
        self._raw: Any = None  # None without accepted credentials; `raw` makes a client with new credentials
        with suppress(AwsError):
            self._raw = self._made(session or aws_session(settings))

    @property
    def raw(self) -> Any:
        """The boto3 client. Use it inside `errors`."""
        with self._lock:
            if (made := self._raw) is None:
                made = self._raw = self._made(aws_session(self._settings))
            return made

    def _made(self, session: boto3.session.Session) -> Any:
        endpoint, region = self._settings.aws_endpoint_url, self._settings.aws_region
        with self.errors("client"):
            session.get_credentials()
        try:
            return session.client(self._service, region, endpoint_url=endpoint, config=self._config)
        except (exceptions.InvalidRegionError, exceptions.NoRegionError, ValueError) as error:
            raise UsageError(f"aws_region = {region!r}, aws_endpoint_url = {endpoint!r}: {error}") from error
        except BotoCoreError as error:
            raise aws_error(self.name, "client", error) from error

    def call(self, operation: str, **parameters: Any) -> Fields:
        """Call an operation by its AWS name, such as RunTask. Raises AwsError."""
        with self.errors(operation):
            answer: Fields = getattr(self.raw, botocore.xform_name(operation))(**parameters)
            return answer

    def find(self, operation: str, *absent: str, **parameters: Any) -> Fields | None:
        """Call an operation; return None if it fails with one of the absent codes. Raises AwsError."""
        try:
            return self.call(operation, **parameters)
        except AwsError as error:
            if error.code not in absent:
                raise
            return None

    def items(self, operation: str, member: str, **parameters: Any) -> Iterator[Any]:
        with self.errors(operation):
            for page in self.raw.get_paginator(botocore.xform_name(operation)).paginate(**parameters):
                yield from page.get(member, ())

    def read(self, **parameters: Any) -> bytes:
        answer = self.call("GetObject", **parameters)
        with self.errors("GetObject"):
            return bytes(answer["Body"].read())

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()

    @contextmanager
    def errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except ScalerError:
            raise
        except (BotoCoreError, ClientError, RuntimeError, ValueError, OSError) as error:
            ours = aws_error(self.name, operation, error)
            if ours.kind == "credentials":
                self._raw = None
            raise ours from error


def owner_tags(manager: str, cluster: str) -> dict[str, str]:
    """Return the tags of a manager's units, within AWS's limits on length and characters."""
    tags = {"scaler:manager": manager, "scaler:cluster": cluster}
    return {key: re.sub(r"[^\w .:/=+@-]", "_", text, flags=re.ASCII)[:256] for key, text in tags.items()}
