"""Calls to AWS: one client per service, with short timeouts, few attempts, and errors with what to do about them.

Back-off is the caller's. The text of an error is the same whenever its cause is.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as NoConnectionError

from scaler._version import __version__
from scaler.errors import UsageError
from scaler.worker_manager.backend import BackendError

MAX_MESSAGE_CHARACTERS = 300
CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 10

ATTEMPTS = 2
CONNECTIONS = 16
"""Calls that one client can make at the same time."""
_NAMES = {
    "batch": "AWS Batch",
    "ec2": "EC2",
    "ecs": "ECS",
    "iam": "IAM",
    "logs": "CloudWatch Logs",
    "s3": "S3",
    "sts": "STS",
}

ErrorKind = Literal["throttled", "credentials", "denied", "unanswered", "broken", "refused"]
"""unanswered: no reply came. broken: the service failed. refused: the service refuses this request."""

_THROTTLED = re.compile(
    "BandwidthLimitExceeded|EC2ThrottledException|PriorRequestNotComplete|RequestLimitExceeded|"
    "RequestThrottled(Exception)?|SlowDown|ThrottledException|Throttling(Exception)?|TooManyRequestsException"
)
_EXPIRED = re.compile("ExpiredToken(Exception)?|RequestExpired|TokenRefreshRequired")
_BAD_CREDENTIALS = re.compile(
    "AuthFailure|IncompleteSignature|InvalidAccessKeyId|InvalidClientTokenId|InvalidSignatureException|InvalidToken|"
    "MissingAuthenticationToken(Exception)?|SignatureDoesNotMatch|UnrecognizedClientException"
)
_SKEWED = re.compile("RequestTimeTooSkewed|RequestInTheFuture")
_DENIED = re.compile("AccessDenied(Exception)?|UnauthorizedOperation|UnauthorizedException")
_IDS = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32,}\b", re.IGNORECASE)
_HOST = re.compile(r"https?://[^/]+")


class AwsError(BackendError):
    """A call failed. code: the service's own name of the error, empty when it did not answer.

    is_uncertain: the service may have done it nevertheless.
    """

    def __init__(self, text: str, kind: ErrorKind, code: str = "", message: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.code = code
        self.message = message
        """The service's own text."""
        self.is_temporary = kind in ("throttled", "unanswered", "broken")
        self.is_uncertain = kind in ("unanswered", "broken")


def aws_error(service: str, operation: str, error: BotoCoreError | ClientError) -> AwsError:
    """Convert an error of boto3 or botocore. service: its display name, such as ECS."""
    call = f"{service} {operation}"
    if isinstance(error, ClientError):
        return _answered(call, error)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return AwsError(
            f"no AWS credentials for {call} ({type(error).__name__}): give aws_profile, set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or run where the machine has a role",
            "credentials",
        )
    if isinstance(error, CredentialRetrievalError | TokenRetrievalError | SSOError):
        text = f"AWS credentials cannot be renewed ({type(error).__name__}: {steady(str(error))}): log in again"
        return AwsError(text, "credentials")
    if isinstance(error, HTTPClientError | NoConnectionError | IncompleteReadError):
        return AwsError(f"{call}: {_no_answer(error)}", "unanswered")
    return AwsError(f"{call} cannot be asked ({type(error).__name__}): {steady(str(error))}", "refused")


def steady(message: str) -> str:
    """Return a message without the ids of requests and tasks, which differ each time."""
    text = " ".join(_IDS.sub("...", message).split())
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 3] + "..."


def _answered(call: str, error: ClientError) -> AwsError:
    fault = error.response.get("Error", {})
    code = str(fault.get("Code", "")) or "unknown error"
    message = str(fault.get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    kind: ErrorKind
    if _THROTTLED.fullmatch(code):
        kind, text = "throttled", f"throttled by {call} ({code})"
    elif _EXPIRED.fullmatch(code):
        kind, text = "credentials", f"AWS credentials have expired ({code}): renew them"
    elif _BAD_CREDENTIALS.fullmatch(code):
        kind, text = "credentials", f"AWS does not know these credentials ({code}): check them and aws_profile"
    elif _SKEWED.fullmatch(code):
        kind, text = "credentials", f"AWS refuses the time of this machine ({code}): set its clock"
    elif _DENIED.fullmatch(code):
        kind, text = "denied", f"not allowed to call {call} ({code}): {steady(message)}"
    elif status >= 500:
        kind, text = "broken", f"{call} fails at the service's side ({code}, status {status})"
    else:
        kind, text = "refused", f"{call} refused ({code}): {steady(message)}"
    return AwsError(text, kind, code, message)


def _no_answer(error: BotoCoreError) -> str:
    host = _HOST.match(str(error.kwargs.get("endpoint_url", "")))
    where = f" at {host.group()}" if host else ""
    if isinstance(error, ConnectTimeoutError):
        return f"no connection{where} within {CONNECT_TIMEOUT_SECONDS} s"
    if isinstance(error, ReadTimeoutError):
        return f"no answer{where} within {READ_TIMEOUT_SECONDS} s"
    if isinstance(error, EndpointConnectionError):
        return f"cannot connect{where}: check the network, aws_region and aws_endpoint_url"
    if isinstance(error, SSLError):
        return f"no secure connection{where}: {steady(str(error))}"
    return f"the connection{where} ended without an answer ({type(error).__name__})"


class AwsAccess(Protocol):
    """The settings of a manager that clients are made from."""

    @property
    def aws_region(self) -> str: ...
    @property
    def aws_endpoint_url(self) -> str | None: ...
    @property
    def aws_profile(self) -> str | None: ...


def aws_session(settings: AwsAccess) -> boto3.session.Session:
    """Return the session that clients are made from. Raises UsageError for an unknown profile."""
    try:
        return boto3.session.Session(profile_name=settings.aws_profile, region_name=settings.aws_region)
    except ProfileNotFound as error:
        raise UsageError(f"aws_profile = {settings.aws_profile!r}: {error}") from error


class AwsClient:
    """One service of AWS, by boto3. Its methods may be called from any thread.

    Raises UsageError for an unknown region or profile.
    """

    def __init__(
        self,
        settings: AwsAccess,
        service: str,
        *,
        session: boto3.session.Session | None = None,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        """session: from `aws_session`, for several clients: they are made faster with one.

        attempts: 1 for operations that the service would do twice when they are repeated after a lost answer.
        """
        self.name = _NAMES.get(service, service)
        self._settings = settings
        self._service = service
        self._config = Config(
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            read_timeout=read_timeout_seconds,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=CONNECTIONS,
            user_agent_extra=f"scaler/{__version__}",
            # An emulator or private endpoint rarely has a host name for every bucket.
            s3={"addressing_style": "path"} if settings.aws_endpoint_url else None,
        )
        self._lock = threading.Lock()
        self._raw = self._made(session or aws_session(settings))
        self._is_refused = False
        """The credentials were refused. They may have been renewed since, which a client does not notice by itself."""

    @property
    def raw(self) -> Any:
        """The client of boto3. Use it inside `errors`."""
        with self._lock:
            if self._is_refused:
                self._raw = self._made(aws_session(self._settings))
                self._is_refused = False
            return self._raw

    def _made(self, session: boto3.session.Session) -> Any:
        endpoint, region = self._settings.aws_endpoint_url, self._settings.aws_region
        try:
            return session.client(self._service, endpoint_url=endpoint, config=self._config)
        except (InvalidRegionError, NoRegionError, ValueError) as error:
            raise UsageError(f"aws_region = {region!r}, aws_endpoint_url = {endpoint!r}: {error}") from error
        except BotoCoreError as error:
            raise aws_error(self.name, "client", error) from error

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Call an operation by AWS's own spelling, such as RunTask. Raises AwsError."""
        with self.errors(operation):
            answer: dict[str, Any] = getattr(self.raw, botocore.xform_name(operation))(**parameters)
            return answer

    def pages(self, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Call an operation that answers in pages. Raises AwsError."""
        with self.errors(operation):
            yield from self.raw.get_paginator(botocore.xform_name(operation)).paginate(**parameters)

    def close(self) -> None:
        """Close its connections."""
        self._raw.close()

    @contextmanager
    def errors(self, operation: str) -> Iterator[None]:
        """Convert what boto3 raises inside to AwsError."""
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            ours = aws_error(self.name, operation, error)
            self._is_refused = self._is_refused or ours.kind == "credentials"
            raise ours from error


def tag_value(text: str) -> str:
    """Return a text as the value of a tag: at most 256 characters, those that AWS does not allow replaced."""
    return re.sub(r"[^\w .:/=+@-]", "_", text, flags=re.ASCII)[:256]
