"""Finds policies by name and makes them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import cast

from scaler.errors import ScalerError, UsageError
from scaler.plugins import POLICIES, load
from scaler.policy.view import Allocation, ScalingPolicy


def load_policy(policy_engine_type: str, policy_content: str) -> ScalingPolicy:
    """Make the policy that is installed under this name.

    Raises UsageError for an unknown name, bad content, and a policy that cannot be loaded or is none.
    """
    reference = POLICIES.reference(policy_engine_type)
    if reference is None:
        raise UsageError(unknown("policy_engine_type", policy_engine_type, POLICIES.names()))
    try:
        policy = cast("Callable[[str], object]", load(reference))(policy_content)
    except ScalerError:
        raise
    except Exception as error:  # a user's code
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"policy_engine_type {policy_engine_type!r}: {reference} cannot be made with policy_content "
            f"{policy_content!r}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        ) from error
    if not isinstance(getattr(policy, "allocation", None), Allocation) or not callable(getattr(policy, "plan", None)):
        raise UsageError(
            f"policy_engine_type {policy_engine_type!r}: {reference} makes a {type(policy).__name__}, which is no "
            f"policy: it needs an attribute allocation (an Allocation) and a method plan(view)"
        )
    return cast("ScalingPolicy", policy)


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """Return the text of an error about a word that is not among the known ones; it names the nearest."""
    from difflib import get_close_matches  # noqa: PLC0415 (on the way of an error only)

    names = sorted(known)
    nearest = get_close_matches(given, names, n=1)
    hint = f"; did you mean {str(nearest[0])!r}?" if nearest else ""
    return f"{what} {given!r} is unknown{hint} (known: {', '.join(names)})"
