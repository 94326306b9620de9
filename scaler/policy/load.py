"""Loads policies by name, and parses the entries of a `policy_content`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from scaler.errors import ScalerError, UsageError
from scaler.plugins import POLICIES, load
from scaler.policy.view import Allocation, ScalingPolicy


def load_policy(policy_engine_type: str, policy_content: str) -> ScalingPolicy:
    """Return the policy of this name. Raises UsageError for an unknown name, bad content, or an invalid object."""
    reference = POLICIES.reference(policy_engine_type)
    if reference is None:
        raise UsageError(unknown("policy_engine_type", policy_engine_type, POLICIES.names()))
    try:
        policy = cast("Callable[[str], object]", load(reference))(policy_content)
    except ScalerError:
        raise
    except Exception as error:  # user code
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"policy_engine_type {policy_engine_type!r}: {reference} cannot be made with policy_content "
            f"{policy_content!r}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        ) from error
    if not isinstance(getattr(policy, "allocation", None), Allocation) or not callable(getattr(policy, "plan", None)):
        raise UsageError(
            f"policy_engine_type {policy_engine_type!r}: {reference} makes {type(policy).__name__}, which is not a "
            f"policy: it needs an attribute allocation (an Allocation) and a method plan(view)"
        )
    return cast("ScalingPolicy", policy)


def check_managers(policy: ScalingPolicy, known: list[str], scaled: list[str]) -> None:
    """Raise UsageError if a policy names an unknown worker manager that resembles an unnamed one."""
    from difflib import get_close_matches  # noqa: PLC0415 (for errors only)

    named = frozenset(getattr(policy, "named_managers", ()))
    unnamed = [name for name in scaled if name not in named]
    for name in sorted(named.difference(known)):
        if get_close_matches(name, unnamed) or (scaled and unnamed == scaled):
            raise UsageError(unknown("policy_content: worker manager", name, known))


def entries(policy_content: str) -> Iterator[str]:
    """Yield the entries of a policy's content, without comments. Newlines or `;` separate entries."""
    for line in policy_content.splitlines():
        for entry in line.partition("#")[0].split(";"):
            if text := entry.strip():
                yield text


def key_value(entry: str, known: Iterable[str], examples: str) -> tuple[str, str, str]:
    """Return prefix, key, and value of `key=value` or `prefix.key=value`. Raises UsageError with the examples."""
    left, separator, value = (part.strip() for part in entry.partition("="))
    if not separator:
        raise UsageError(f"policy_content {entry!r}: write key=value, such as {examples}")
    prefix, dot, key = left.rpartition(".")
    if key not in known:
        raise UsageError(unknown("policy_content: key", key, known))
    if dot and not prefix:
        raise UsageError(f"policy_content {entry!r}: write {key}={value}, or a worker manager's id before the dot")
    return prefix, key, value


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 (for errors only)

    names = sorted(known)
    nearest = get_close_matches(given, names, n=1)
    hint = f"; did you mean {str(nearest[0])!r}?" if nearest else ""
    return f"{what} {given!r} is unknown{hint} (known: {', '.join(names)})"
