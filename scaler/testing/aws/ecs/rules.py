"""Limits, rates, and times of ECS, and the refusals that many operations share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scaler.testing.aws.faults import ServiceError

MAX_RUN_COUNT = 10
MAX_OVERRIDES_CHARACTERS = 8192
MAX_TAGS = 50
MAX_DESCRIBED = 100
MAX_LISTED = 100
MAX_CLIENT_TOKEN_CHARACTERS = 64
MAX_SUBNETS = 16
MAX_SECURITY_GROUPS = 5
STARTED_BY = re.compile(r"[A-Za-z0-9/_-]{1,128}")
CAPACITY_PROVIDERS = ("FARGATE", "FARGATE_SPOT")
DEFAULT_STOP_SECONDS = 30
MAX_STOP_SECONDS = 120
"""Limit on Fargate."""
FARGATE_MEMORY_MIB: dict[float, frozenset[int]] = {
    256: frozenset({512, 1024, 2048}),
    512: frozenset(range(1024, 4097, 1024)),
    1024: frozenset(range(2048, 8193, 1024)),
    2048: frozenset(range(4096, 16385, 1024)),
    4096: frozenset(range(8192, 30721, 1024)),
    8192: frozenset(range(16384, 61441, 4096)),
    16384: frozenset(range(32768, 122881, 8192)),
}
"""Allowed memory in MiB by CPU units. Source: the ECS developer guide, task size."""

Fields = dict[str, Any]


@dataclass(slots=True)
class EcsTimes:
    """Durations in seconds. The defaults are short for tests. The service's own durations are in brackets."""

    provisioning: float = 0.02
    """In state PROVISIONING (10 to 30)."""
    pending: float = 0.02
    """In state PENDING, where the image is pulled (5 to 120)."""
    deactivating: float = 0.01
    """In state DEACTIVATING (0 to 10)."""
    deprovisioning: float = 0.02
    """In state DEPROVISIONING (10 to 30)."""
    hidden: float = 0.0
    """Delay until ListTasks and DescribeTasks show a task that RunTask has returned (0 to 5)."""
    spot_notice: float = 120.0
    """From a spot notice's SIGTERM to SIGKILL."""
    stopped_visible: float = 3600.0
    """How long stopped tasks are shown."""


@dataclass(slots=True)
class EcsRates:
    """Rate limits per second, and burst sizes."""

    run_calls_per_second: float = 20
    run_calls_at_once: float = 20
    launches_per_second: float = 20
    launches_at_once: float = 100


class RateLimit:
    """A token bucket, initially full. `now`: seconds of any monotonic clock."""

    __slots__ = ("_at", "_level")

    def __init__(self, full: float) -> None:
        self._level = full
        self._at = 0.0

    def take(self, count: float, now: float, per_second: float, full: float) -> bool:
        self._level = min(full, self._level + max(0.0, now - self._at) * per_second)
        self._at = now
        if count > self._level:
            return False
        self._level -= count
        return True


invalid = partial(ServiceError, "InvalidParameterException")
"""Error for an invalid parameter."""
client_fault = partial(ServiceError, "ClientException")
"""Error for most other refused requests."""


def throttled() -> ServiceError:
    return ServiceError("ThrottlingException", "Rate exceeded")


def checked_tags(pairs: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
    tags = {pair["key"]: pair.get("value", "") for pair in pairs or ()}
    if len(tags) > MAX_TAGS:
        raise invalid(f"Tags can not contain more than {MAX_TAGS} items.")
    if any(not 1 <= len(key) <= 128 or len(value) > 256 for key, value in tags.items()):
        raise invalid("A tag's key has 1 to 128 characters and its value at most 256.")
    return tags


def tag_pairs(tags: Mapping[str, str]) -> list[Fields]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def page(names: Sequence[str], request: Fields) -> tuple[list[str], Fields]:
    size = request.get("maxResults") or MAX_LISTED
    if not 1 <= size <= MAX_LISTED:
        raise invalid(f"maxResults must be between 1 and {MAX_LISTED}.")
    token = request.get("nextToken") or "0"
    if not token.isdigit():
        raise invalid("Invalid token.")
    end = int(token) + size
    return list(names[int(token) : end]), {"nextToken": str(end)} if end < len(names) else {}
