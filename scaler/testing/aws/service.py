"""Interface of an emulated service, which parses calls and builds answers without sockets, and a base for services with
a stepped core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from scaler.testing.aws.containers import Containers, StartError
from scaler.testing.aws.faults import Partial, ServiceError

ACCOUNT = "123456789012"


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """An HTTP request. Header names are lowercase. The path is percent-decoded and starts with a slash."""

    method: str
    path: str
    query: Mapping[str, str]
    query_string: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response. The server adds Content-Length."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EmulatorContext:
    """Shared by all services of an emulator."""

    endpoint_url: str
    region: str
    containers: Containers
    parameter: Callable[[str], str | None]
    """Returns the value of a Parameter Store parameter by name, or None."""

    def secrets(self, container: Mapping[str, Any]) -> dict[str, str]:
        """Return a container's variables from the Parameter Store. Raises StartError."""
        found = {}
        for secret in container.get("secrets") or ():
            value = self.parameter(secret["valueFrom"].rpartition(":parameter")[2])
            if value is None:
                raise StartError(
                    f"ResourceInitializationError: unable to pull secrets: {secret['valueFrom']}: not found"
                )
            found[str(secret["name"])] = value
        return found

    def arn(self, service: str, resource: str) -> str:
        return f"arn:aws:{service}:{self.region}:{ACCOUNT}:{resource}"


class Service(Protocol):
    """One service. `answer` is called concurrently from several threads, `name_of` from one thread."""

    name: str
    """Name in fault rules and endpoints, such as `ecs`."""

    def name_of(self, call: ServiceCall) -> str | None:
        """Return the called operation, such as `RunTask`, or None for calls to another service."""

    def answer(self, operation: str, call: ServiceCall, partial: Partial | None) -> Answer:
        """Perform the operation. Raises Refusal. partial: the fault of that name, if it affects the request."""

    def refuse(self, refusal: ServiceError) -> Answer:
        """Return an error in the service's wire format."""

    def throttle(self) -> ServiceError:
        """Return the service's error for too many requests."""

    def close(self) -> None:
        """Release the service's own resources, other than containers."""


class SteppedService:
    """Owns the lock of a core, and the thread that steps the core when due and soon after each change."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition(threading.RLock())
        """Guards the core. Notified of each change."""
        self._woken = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread after the current step."""
        self._closed = True
        self._woken.set()
        self._thread.join()

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait until a condition holds, checking after each change. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_seconds):
                raise TimeoutError(f"the condition does not hold after {timeout_seconds:g} s: {self._states()}")

    def _states(self) -> list[str]:
        """Return details for the error of an unmet condition."""
        raise NotImplementedError

    def _step(self, now: float) -> float | None:
        """Process due events, and return the time of the next step (Unix seconds), or None to wait for a change."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._closed:
            self._woken.clear()
            due = self._step(time.time())
            self._woken.wait(None if due is None else max(0.0, due - time.time()))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the core for a change, then wake the thread."""
        with self._changed:
            yield
            self._changed.notify_all()
        self._woken.set()
