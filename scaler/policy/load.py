"""Finds policies by name among the installed entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import cast

from scaler.errors import UsageError
from scaler.policy.view import ScalingPolicy

ENTRY_POINT_GROUP = "scaler.scaling_policies"


def load_policy(policy_engine_type: str, policy_content: str) -> ScalingPolicy:
    """Make the policy that is installed under this name. Raises UsageError for an unknown name or bad content."""
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if policy_engine_type not in found:
        raise UsageError(unknown("policy_engine_type", policy_engine_type, found))
    make = cast("Callable[[str], ScalingPolicy]", found[policy_engine_type].load())
    return make(policy_content)


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """Return the text of an error about a word that is not among the known ones; it names the nearest."""
    names = sorted(known)
    nearest = get_close_matches(given, names, n=1)
    hint = f"; did you mean {str(nearest[0])!r}?" if nearest else ""
    return f"{what} {given!r} is unknown{hint} (known: {', '.join(names)})"
