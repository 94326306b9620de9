"""Scripted faults of requests to the emulator. Thread-safe."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from scaler.errors import UsageError


class ServiceError(Exception):
    """A service refuses a request. The service's shell converts the error to its wire format.

    code: the service's name of the error. status: the HTTP status.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


@dataclass(frozen=True, slots=True)
class Throttle:
    """Refuse the request as throttled, with the service's own code."""


@dataclass(frozen=True, slots=True)
class Error:
    """Refuse the request with this error."""

    code: str
    message: str = "injected"
    status: int = 400


@dataclass(frozen=True, slots=True)
class Slow:
    """Serve the request after `seconds`, even if the sender has disconnected by then."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LoseReply:
    """Serve the request, but cut the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Start only `count` of the requested tasks or instances of RunTask or CreateFleet, with a reason for the rest."""

    count: int
    reason: str = "Capacity is unavailable at this time. Please try again later or in a different availability zone"


Fault = Throttle | Error | Slow | LoseReply | Partial


@dataclass(eq=False, slots=True)
class Rule:
    """A fault and the requests that it affects."""

    operation: str
    fault: Fault
    times: int | None
    used: int = 0

    @property
    def left(self) -> int | None:
        """Number of further requests to affect. None: no limit."""
        return None if self.times is None else self.times - self.used

    def matches(self, service: str, operation: str) -> bool:
        named = self.operation in ("*", operation, f"{service}:*", f"{service}:{operation}")
        return named and self.left != 0


class Faults:
    """The fault script. The first matching rule decides. Also counts all requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._calls: Counter[str] = Counter()

    def add(self, operation: str, fault: Fault, times: int | None = 1) -> Rule:
        """Add a rule behind the existing rules.

        operation: a name such as `RunTask`, a qualified name such as `ecs:TagResource` if services share the name,
        `s3:*`, or `*`. times: number of affected requests. None: all until `clear`. Raises UsageError for a Partial of
        operations other than RunTask and CreateFleet, and for times below 1.
        """
        if isinstance(fault, Partial) and operation.rpartition(":")[2] not in ("RunTask", "CreateFleet"):
            raise UsageError(f"Partial is a fault for RunTask and CreateFleet, not for {operation}")
        if times is not None and times < 1:
            raise UsageError(f"times must be at least 1, or None for all requests, but is {times}")
        rule = Rule(operation, fault, times)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def take(self, service: str, operation: str) -> Fault | None:
        """Count a request, and return the fault that affects it."""
        with self._lock:
            self._calls[operation] += 1
            for rule in self._rules:
                if rule.matches(service, operation):
                    rule.used += 1
                    return rule.fault
        return None

    def calls(self) -> Counter[str]:
        """Return the number of requests by operation, including requests with faults."""
        with self._lock:
            return Counter(self._calls)
