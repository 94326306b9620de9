"""What an emulated service is for the server: it reads calls and writes answers, and knows nothing of sockets.

Beside it the common part of those that step a core of their own.
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
    parameter: Callable[[str], str | None]
    """Returns the value of a parameter of the Parameter Store by its name; None: there is none."""

    def secrets(self, container: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables that a container gets from the Parameter Store. Raises StartError."""
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


class SteppedService:
    """Owns the lock of a service's core, and the thread that steps it: when it is due, and soon after each change."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition(threading.RLock())
        """Guards the core; notified of each change."""
        self._woken = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Start nothing more: end the thread, after the step under way."""
        self._closed = True
        self._woken.set()
        self._thread.join()

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait until a condition holds; it is checked after each change. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_seconds):
                raise TimeoutError(f"the condition does not hold after {timeout_seconds:g} s: {self._states()}")

    def _states(self) -> list[str]:
        """Return what is shown when a condition does not hold in time."""
        raise NotImplementedError

    def _step(self, now: float) -> float | None:
        """Do what is due, and return when to step next, in Unix seconds; None: when woken."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._closed:
            self._woken.clear()
            due = self._step(time.time())
            self._woken.wait(None if due is None else max(0.0, due - time.time()))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the core, and let the thread do what follows from the change."""
        with self._changed:
            yield
            self._changed.notify_all()
        self._woken.set()
