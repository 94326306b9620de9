"""Finds policies by name among the installed entry points."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import cast

from scaler.errors import ScalerError, UsageError
from scaler.policy.view import Allocation, ScalingPolicy

ENTRY_POINT_GROUP = "scaler.scaling_policies"


def load_policy(policy_engine_type: str, policy_content: str) -> ScalingPolicy:
    """Make the policy that is installed under this name.

    Raises UsageError for an unknown name, bad content, and a policy that cannot be loaded or is none.
    """
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if policy_engine_type not in found:
        raise UsageError(unknown("policy_engine_type", policy_engine_type, found))
    entry = found[policy_engine_type]
    try:
        policy: object = entry.load()(policy_content)
    except ScalerError:
        raise
    except Exception as error:  # a user's code
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"policy_engine_type {policy_engine_type!r}: {entry.value} cannot be made with policy_content "
            f"{policy_content!r}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        ) from error
    if not isinstance(getattr(policy, "allocation", None), Allocation) or not callable(getattr(policy, "plan", None)):
        raise UsageError(
            f"policy_engine_type {policy_engine_type!r}: {entry.value} makes a {type(policy).__name__}, which is no "
            f"policy: it needs an attribute allocation (an Allocation) and a method plan(view)"
        )
    return cast("ScalingPolicy", policy)


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """Return the text of an error about a word that is not among the known ones; it names the nearest."""
    names = sorted(known)
    nearest = get_close_matches(given, names, n=1)
    hint = f"; did you mean {str(nearest[0])!r}?" if nearest else ""
    return f"{what} {given!r} is unknown{hint} (known: {', '.join(names)})"
