"""Calls to AWS: one client per service, with short timeouts and few attempts, for back-off is done above them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    InvalidRegionError,
    NoRegionError,
    ProfileNotFound,
)

from scaler._version import __version__
from scaler.errors import UsageError
from scaler.worker_manager.aws.errors import CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS, aws_error

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


class AwsSettings(Protocol):
    """What is read of a manager's configuration."""

    @property
    def aws_region(self) -> str: ...
    @property
    def aws_endpoint_url(self) -> str | None: ...
    @property
    def aws_profile(self) -> str | None: ...


class AwsCalls(Protocol):
    """One service of AWS."""

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Call an operation by AWS's own spelling, such as RunTask. Raises AwsError."""

    def pages(self, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Call an operation that answers in pages. Raises AwsError."""

    def close(self) -> None:
        """Close its connections."""


def aws_session(settings: AwsSettings) -> boto3.session.Session:
    """Return what clients are made from. Raises UsageError for a profile that is not there."""
    try:
        return boto3.session.Session(profile_name=settings.aws_profile, region_name=settings.aws_region)
    except ProfileNotFound as error:
        raise UsageError(f"aws_profile = {settings.aws_profile!r}: {error}") from error


class AwsClient:
    """`AwsCalls` by boto3. Its methods may be called from any thread.

    Raises UsageError when region or profile cannot be.
    """

    def __init__(
        self,
        settings: AwsSettings,
        service: str,
        *,
        session: boto3.session.Session | None = None,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        """session: from `aws_session`, for several clients: they are made faster with one.

        attempts: 1 for a service that would do twice what is repeated after a lost answer.
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
        """The credentials were; they may have been renewed since, which a client does not notice by itself."""

    @property
    def raw(self) -> Any:
        """The client of boto3; what it raises is turned into ours with `errors`."""
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
        """Turn what boto3 raises inside into AwsError."""
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            ours = aws_error(self.name, operation, error)
            self._is_refused = self._is_refused or ours.kind == "credentials"
            raise ours from error


def tag_value(text: str) -> str:
    """Return a text with every character replaced that AWS does not allow in the value of a tag, 256 at most."""
    return re.sub(r"[^\w .:/=+@-]", "_", text, flags=re.ASCII)[:256]
