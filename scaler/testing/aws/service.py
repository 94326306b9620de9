"""What an emulated service is for the server: it reads calls and writes answers, and knows nothing of sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from scaler.testing.aws.containers import Containers
from scaler.testing.aws.faults import Partial, ServiceError

ACCOUNT = "123456789012"
"""Owns everything in the emulator."""


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """An HTTP request. Header names are in small letters; the path is percent-decoded and begins with a slash."""

    method: str
    path: str
    query: Mapping[str, str]
    query_string: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response. Content-Length is added to it."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EmulatorContext:
    """What every service of an emulator shares."""

    endpoint_url: str
    region: str
    containers: Containers

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of something in this account and region."""
        return f"arn:aws:{service}:{self.region}:{ACCOUNT}:{resource}"


class Service(Protocol):
    """One service. `answer` is called from several threads at once; calls of `name_of` come from one."""

    name: str
    """How fault rules and endpoints call it: `ecs`."""

    def name_of(self, call: ServiceCall) -> str | None:
        """Return the operation that is called, such as `RunTask`. None: the call is for another service."""

    def answer(self, operation: str, call: ServiceCall, partial: Partial | None) -> Answer:
        """Do it. Raises Refusal. `partial` is the fault of that name that the request meets."""

    def refuse(self, refusal: ServiceError) -> Answer:
        """Return an error as clients of this service read it."""

    def throttle(self) -> ServiceError:
        """Return the error with which this service refuses too many requests."""

    def close(self) -> None:
        """End what the service has started of its own, other than containers."""
