"""Faults by script: what goes wrong with which request to the emulator, and how often. Threads may share it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from scaler.errors import UsageError


class ServiceError(Exception):
    """A service does not do what was asked. Its shell puts it into the form that the service's clients read.

    `code` is the name of the error as the service spells it, `status` the HTTP status.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


@dataclass(frozen=True, slots=True)
class Throttle:
    """The request is refused as too many, with the code that the service uses for that."""


@dataclass(frozen=True, slots=True)
class Error:
    """The request is refused with this error."""

    code: str
    message: str = "injected"
    status: int = 400


@dataclass(frozen=True, slots=True)
class Slow:
    """The request is served after `seconds` seconds, also when its sender has gone meanwhile."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LoseReply:
    """The request is served, and the connection is cut instead of an answer."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Only `count` of what a RunTask or CreateFleet asks for starts; for the others there is this reason."""

    count: int
    reason: str = "Capacity is unavailable at this time. Please try again later or in a different availability zone"


Fault = Throttle | Error | Slow | LoseReply | Partial


@dataclass(eq=False, slots=True)
class Rule:
    """A fault, and which requests meet it."""

    operation: str
    fault: Fault
    times: int | None
    used: int = 0
    """How many requests have met it."""

    @property
    def left(self) -> int | None:
        """How many more requests will meet it. None: all."""
        return None if self.times is None else self.times - self.used

    def matches(self, service: str, operation: str) -> bool:
        named = self.operation in ("*", operation, f"{service}:*", f"{service}:{operation}")
        return named and self.left != 0


class Faults:
    """The script: the first rule that matches a request decides. Counts all requests too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._calls: Counter[str] = Counter()

    def add(self, operation: str, fault: Fault, times: int | None = 1) -> Rule:
        """Have the next requests meet a fault, behind the existing rules.

        operation: a name such as `RunTask`, or `ecs:TagResource` where services share a name, `s3:*` or `*`.
        times: how many requests; None: all until `clear`.
        Raises UsageError for a Partial of anything but RunTask and CreateFleet, and for times below 1.
        """
        if isinstance(fault, Partial) and operation.rpartition(":")[2] not in ("RunTask", "CreateFleet"):
            raise UsageError(f"Partial is a fault of RunTask and CreateFleet, and not of {operation}")
        if times is not None and times < 1:
            raise UsageError(f"times must be at least 1, or None for all requests, and is {times}")
        rule = Rule(operation, fault, times)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def take(self, service: str, operation: str) -> Fault | None:
        """Count a request, and return the fault that it meets."""
        with self._lock:
            self._calls[operation] += 1
            for rule in self._rules:
                if rule.matches(service, operation):
                    rule.used += 1
                    return rule.fault
        return None

    def calls(self) -> Counter[str]:
        """Return how many requests have come, by operation, those with faults included."""
        with self._lock:
            return Counter(self._calls)
