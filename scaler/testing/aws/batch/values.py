"""Validates and parses the parts of requests to AWS Batch. Invalid parts raise Invalid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from scaler.testing.aws.ecs.rules import FARGATE_MEMORY_MIB

T = TypeVar("T")
JSON = dict[str, Any]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
RESERVED = "AWS_BATCH"
"""Prefix of the variables that Batch sets itself."""
MIN_ARRAY_SIZE, MAX_ARRAY_SIZE = 2, 10_000
MIN_TIMEOUT_SECONDS = 60
MAX_ATTEMPTS = 10
MAX_EXIT_RULES = 5
MAX_PATTERN_LENGTH = 512
MAX_REASON_LENGTH = 1024
MAX_TAGS = 50
MIN_MEMORY_MIB = 4
FARGATE = ("FARGATE", "FARGATE_SPOT")
RESOURCE_TYPES = ("EC2", "SPOT", *FARGATE)
EC2_ONLY = ("allocationStrategy", "minvCpus", "desiredvCpus", "instanceTypes", "imageId", "ec2KeyPair", "instanceRole")
"""Members of compute resources that do not apply to Fargate."""
MIN_ACTION_SECONDS, MAX_ACTION_SECONDS = 600, 86_400


class Invalid(Exception):  # noqa: N818 (the client's mistake, not a fault of this program)
    """A request that Batch rejects. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a container. vcpus may be fractional on Fargate."""

    vcpus: float
    memory_mib: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class ExitRule:
    """A rule of evaluateOnExit. None: pattern not given."""

    retry: bool
    status_reason: str | None
    reason: str | None
    exit_code: str | None

    def matches(self, status_reason: str, reason: str, exit_code: int | None) -> bool:
        code = "" if exit_code is None else str(exit_code)
        known = ((self.status_reason, status_reason), (self.reason, reason), (self.exit_code, code))
        return all(pattern is None or fits(pattern, text) for pattern, text in known)


@dataclass(frozen=True, slots=True)
class Retries:
    attempts: int = 1
    rules: tuple[ExitRule, ...] = ()

    def again(self, made: int, status_reason: str, reason: str, exit_code: int | None) -> bool:
        """Return whether a job runs again after its last of `made` attempts failed. Default: yes."""
        if made >= self.attempts:
            return False
        for rule in self.rules:
            if rule.matches(status_reason, reason, exit_code):
                return rule.retry
        return True


def need(request: Mapping[str, Any], name: str) -> Any:
    value = request.get(name)
    if value is None or value in ("", []):
        raise Invalid(f"{name} must be provided.")
    return value


def refuse_members(request: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if request.get(name):
            raise Invalid(f"the emulator has no {name}")


def checked_name(request: Mapping[str, Any], member: str) -> str:
    name = need(request, member)
    if not NAME.fullmatch(name):
        raise Invalid(f"{member} should match valid pattern: {NAME.pattern}")
    return str(name)


def one_of(request: Mapping[str, Any], member: str, allowed: Sequence[str], default: str) -> str:
    value = request.get(member, default)
    if value not in allowed:
        raise Invalid(f"{member} {value} must be one of {' | '.join(allowed)}")
    return str(value)


def array_size(request: Mapping[str, Any]) -> int | None:
    properties = request.get("arrayProperties")
    if not properties:
        return None
    size = need(properties, "size")
    if not MIN_ARRAY_SIZE <= size <= MAX_ARRAY_SIZE:
        raise Invalid(f"array size must be between {MIN_ARRAY_SIZE} and {MAX_ARRAY_SIZE}, got {size}")
    return int(size)


def timeout_seconds(request: Mapping[str, Any]) -> int | None:
    seconds = (request.get("timeout") or {}).get("attemptDurationSeconds")
    if seconds is not None and seconds < MIN_TIMEOUT_SECONDS:
        raise Invalid(f"attemptDurationSeconds must be at least {MIN_TIMEOUT_SECONDS}, got {seconds}")
    return seconds


def retries(strategy: Mapping[str, Any] | None) -> Retries:
    if not strategy:
        return Retries()
    attempts = strategy.get("attempts", 1)
    if not 1 <= attempts <= MAX_ATTEMPTS:
        raise Invalid(f"retry attempts must be between 1 and {MAX_ATTEMPTS}, got {attempts}")
    rules = strategy.get("evaluateOnExit") or []
    if len(rules) > MAX_EXIT_RULES:
        raise Invalid(f"evaluateOnExit has at most {MAX_EXIT_RULES} rules, got {len(rules)}")
    if rules and "attempts" not in strategy:
        raise Invalid("attempts must be provided with evaluateOnExit")
    return Retries(attempts, tuple(_exit_rule(rule) for rule in rules))


def environment(pairs: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
    variables = {need(pair, "name"): pair.get("value", "") for pair in pairs or ()}
    for name in variables:
        if name.startswith(RESERVED):
            raise Invalid(f"environment variable {name}: names that begin with {RESERVED} are reserved")
    return variables


def resources(container: Mapping[str, Any], overrides: Mapping[str, Any], *, fargate: bool) -> Resources:
    found: dict[str, str] = {}
    for source in (container, overrides):
        for legacy, kind in (("vcpus", "VCPU"), ("memory", "MEMORY")):
            if source.get(legacy) is not None:
                found[kind] = str(source[legacy])
        for requirement in source.get("resourceRequirements") or ():
            found[one_of(requirement, "type", ("VCPU", "MEMORY", "GPU"), "")] = need(requirement, "value")
    try:
        vcpus = float(found["VCPU"])
        taken = Resources(vcpus, int(found["MEMORY"]), int(found.get("GPU", "0")))
    except KeyError as error:
        raise Invalid(f"resourceRequirements must contain {error.args[0]}") from error
    except ValueError as error:
        raise Invalid(f"resourceRequirements contains a value that is not a number: {error}") from error
    if fargate:
        _check_fargate(taken)
    elif taken.vcpus < 1 or taken.vcpus != int(taken.vcpus):
        raise Invalid(f"VCPU must be a whole number of at least 1, got {taken.vcpus:g}")
    if taken.memory_mib < MIN_MEMORY_MIB:
        raise Invalid(f"MEMORY must be at least {MIN_MEMORY_MIB} MiB, got {taken.memory_mib}")
    return taken


def tags(given: Mapping[str, str] | None, present: Mapping[str, str] | None = None) -> dict[str, str]:
    merged = {**(present or {}), **(given or {})}
    if len(merged) > MAX_TAGS:
        raise Invalid(f"at most {MAX_TAGS} tags are allowed, got {len(merged)}")
    for key in given or {}:
        if not 0 < len(key) <= 128 or len(merged[key]) > 256 or key.lower().startswith("aws:"):
            raise Invalid(f"tag {key!r}: a key has 1 to 128 characters and does not begin with aws:, a value up to 256")
    return merged


def reason(request: Mapping[str, Any]) -> str:
    text = str(need(request, "reason"))
    if len(text) > MAX_REASON_LENGTH:
        raise Invalid(f"reason has at most {MAX_REASON_LENGTH} characters, got {len(text)}")
    return text


def check_compute_resources(resources: Mapping[str, Any]) -> None:
    kind = one_of(resources, "type", RESOURCE_TYPES, "")
    need(resources, "subnets")
    if need(resources, "maxvCpus") < 1:
        raise Invalid("maxvCpus must be at least 1")
    if kind in FARGATE:
        need(resources, "securityGroupIds")
        for member in EC2_ONLY:
            if member in resources:
                raise Invalid(f"{member} is not applicable to Fargate")
    else:
        need(resources, "instanceRole")
        need(resources, "instanceTypes")
        if resources.get("minvCpus", 0) > resources["maxvCpus"]:
            raise Invalid("minvCpus must not be greater than maxvCpus")


def time_limit_actions(request: Mapping[str, Any]) -> list[JSON]:
    actions = list(request.get("jobStateTimeLimitActions") or ())
    for action in actions:
        need(action, "reason")
        one_of(action, "state", ("RUNNABLE",), "")
        one_of(action, "action", ("CANCEL",), "")
        if not MIN_ACTION_SECONDS <= need(action, "maxTimeSeconds") <= MAX_ACTION_SECONDS:
            raise Invalid(f"maxTimeSeconds must be between {MIN_ACTION_SECONDS} and {MAX_ACTION_SECONDS}")
    return actions


def _exit_rule(rule: Mapping[str, Any]) -> ExitRule:
    action = str(need(rule, "action")).upper()
    if action not in ("RETRY", "EXIT"):
        raise Invalid(f"action {rule['action']} must be one of RETRY | EXIT")
    patterns = [rule.get(member) for member in ("onStatusReason", "onReason", "onExitCode")]
    if not any(patterns):
        raise Invalid("a rule of evaluateOnExit must have onStatusReason, onReason or onExitCode")
    if any(len(pattern) > MAX_PATTERN_LENGTH or "*" in pattern[:-1] for pattern in patterns if pattern):
        raise Invalid(f"a pattern has at most {MAX_PATTERN_LENGTH} characters, and * only at its end")
    return ExitRule(action == "RETRY", *patterns)


def fits(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def _check_fargate(taken: Resources) -> None:
    if taken.gpus:
        raise Invalid("GPU is not supported on Fargate")
    if taken.memory_mib not in FARGATE_MEMORY_MIB.get(taken.vcpus * 1024, ()):
        raise Invalid(f"Fargate has no size of {taken.vcpus:g} vCPU with {taken.memory_mib} MiB of memory")


def page(found: Iterable[T], key: Callable[[T], int], request: Mapping[str, Any], most: int) -> tuple[list[T], JSON]:
    """Return the requested page, with a `nextToken` if there is more. Raises Invalid.

    found: ordered by `key`. Items added or removed between two requests do not shift other items between pages.
    """
    wanted = request.get("maxResults", most)
    if wanted < 1:
        raise Invalid(f"maxResults must be at least 1, got {wanted}")
    token = request.get("nextToken")
    if token is not None:
        try:
            last = int(token)
        except ValueError as error:
            raise Invalid("nextToken is not one of this service") from error
        found = (each for each in found if key(each) > last)
    size = min(wanted, most)
    shown = list(islice(found, size + 1))
    more = len(shown) > size
    return shown[:size], {"nextToken": str(key(shown[size - 1]))} if more else {}
