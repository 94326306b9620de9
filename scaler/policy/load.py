"""Loads policies by name, guards calls to them, and parses entries of `policy_content`."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import cast

from scaler.errors import ScalerError, UsageError, nearest
from scaler.plugins import POLICIES, load
from scaler.policy.view import Allocation, ClusterView, ScalingPolicy, Wanted
from scaler.policy.warm import WarmCapacity
from scaler.texts import shown


def load_policy(policy_engine_type: str, policy_content: str) -> ScalingPolicy:
    """Return the policy with this name. Raises UsageError for an unknown name, bad content, or an invalid object."""
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
            f"policy_engine_type {policy_engine_type!r}: {reference} cannot be created with policy_content "
            f"{policy_content!r}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        ) from error
    if not isinstance(getattr(policy, "allocation", None), Allocation) or not callable(getattr(policy, "plan", None)):
        raise UsageError(
            f"policy_engine_type {policy_engine_type!r}: {reference} returned {type(policy).__name__}, which is not a "
            f"policy: a policy has an attribute allocation (an Allocation) and a method plan(view)"
        )
    return cast("ScalingPolicy", policy)


def check_managers(policy: ScalingPolicy, known: list[str], scaled: list[str]) -> None:
    """Raise UsageError if a policy seems to misspell the id of a worker manager."""
    from difflib import get_close_matches  # noqa: PLC0415 (for errors only)

    named = frozenset(getattr(policy, "named_managers", ()))
    unnamed = [name for name in scaled if name not in named]
    for name in sorted(named.difference(known)):
        if get_close_matches(name, unnamed) or (scaled and unnamed == scaled):
            raise UsageError(unknown("policy_content: worker manager", name, known))


def entries(policy_content: str) -> Iterator[str]:
    """Yield the entries of a policy_content without comments. Entries are separated by newlines or `;`."""
    for line in policy_content.splitlines():
        for entry in line.partition("#")[0].split(";"):
            if text := entry.strip():
                yield text


def key_value(entry: str, known: Iterable[str], examples: str) -> tuple[str, str, str]:
    """Split `key=value` or `prefix.key=value` into prefix, key, and value. Raises UsageError with the examples."""
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
    return f"{what} {given!r} is unknown{nearest(given, sorted(known))}"


MAX_UNITS = 1_000_000  # no sensible policy exceeds this limit
MAX_REASON_CHARACTERS = 500
SAY_AGAIN_SECONDS = 60.0  # minimum interval between equal complaints: policies are called twice a second
MISSING_SECONDS = 10.0  # grace period before a named worker manager is reported as missing
_FRAMES_SHOWN = 20


class GuardedPolicy:
    """Calls a scaling policy, possibly a user's, and validates its answers: whole numbers of units, at least 0, for
    managers that are not fixed. A manager with an invalid answer keeps its last valid one. Adds warm capacity.
    """

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self._name = type(policy).__name__
        self._good: dict[str, Wanted] = {}
        self._warm = WarmCapacity()
        self._complained = ("", -math.inf)
        self._began: float | None = None
        self._reported: frozenset[str] = frozenset()

    def plan(self, view: ClusterView) -> tuple[dict[str, Wanted], str]:
        """Return each manager's wanted units, and a complaint about the policy ("" if there is no new complaint)."""
        try:
            answer, wrong = self._check(self._policy.plan(view), view)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a user's code must not stop the scheduler)
            return self.failed(error, view)
        self._good = answer
        raised, conflict = self._warm.added(view, answer)
        wrong = f"answered {wrong}" if wrong else self._missing(view) or conflict
        return raised, self._complaint(wrong, f"the scaling policy {self._name} {wrong}", view.now)

    def failed(self, error: BaseException, view: ClusterView) -> tuple[dict[str, Wanted], str]:
        inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
        lines = traceback.format_exception(type(error), error, inner, limit=-_FRAMES_SHOWN)
        text = f"the scaling policy {self._name} raised in plan(); its last valid answer remains in effect:\n"
        complaint = self._complaint(f"{type(error).__name__}", (text + "".join(lines)).rstrip(), view.now)
        return self._warm.added(view, self._good)[0], complaint

    def _check(self, answer: object, view: ClusterView) -> tuple[dict[str, Wanted], str]:
        """Return an answer with invalid entries replaced by earlier valid ones, and a description of the errors."""
        if not isinstance(answer, Mapping):
            wrong_type = f"{shown(answer)}, which is not a dict from manager ids to Wanted"
            return self._good, f"{wrong_type}; its last valid answer remains in effect"
        here = {manager.manager_id: manager for manager in view.managers}
        good: dict[str, Wanted] = {}
        wrong: list[str] = []
        for manager_id, wanted in answer.items():
            manager = here.get(manager_id) if isinstance(manager_id, str) else None
            if manager is None:
                ids = ", ".join(sorted(here)) or "none"
                wrong.append(f"for the worker manager {shown(manager_id)}, which has not joined (joined: {ids})")
            elif manager.fixed:
                wrong.append(f"for the worker manager {manager_id!r}, which runs a fixed number of units")
            elif problem := _problem(wanted):
                wrong.append(f"{shown(wanted)} for the worker manager {manager_id!r}: {problem}")
                if manager_id in self._good:
                    good[manager_id] = self._good[manager_id]
            else:
                limits = [units for units in (manager.max_units, wanted.most_units) if units is not None]
                reason = wanted.reason[:MAX_REASON_CHARACTERS]
                good[manager_id] = replace(wanted, reason=reason, most_units=min(limits, default=None), kept=0)
        return good, "; ".join(wrong)

    def _missing(self, view: ClusterView) -> str:
        self._began = view.now if self._began is None else self._began
        here = {manager.manager_id for manager in view.managers}
        missing = frozenset(getattr(self._policy, "named_managers", ())) - here - self._reported
        if not missing or view.now - self._began < MISSING_SECONDS:
            return ""
        self._reported |= missing
        names, joined = ", ".join(map(repr, sorted(missing))), ", ".join(sorted(here)) or "none"
        return f"names {names}, but no such worker manager has joined (joined: {joined}): correct the name or start it"

    def _complaint(self, cause: str, text: str, now: float) -> str:
        last_cause, last_at = self._complained
        if not cause or (cause == last_cause and now - last_at < SAY_AGAIN_SECONDS):
            return ""
        self._complained = (cause, now)
        return text


def _problem(wanted: object) -> str:
    if not isinstance(wanted, Wanted):
        return "not a Wanted object"
    for name in ("units", "most_units", "together"):
        units: object = getattr(wanted, name)
        if units is None and name == "most_units":
            continue
        if not isinstance(units, int) or isinstance(units, bool):
            return f"{name} is not a whole number"
        if not 0 <= units <= MAX_UNITS:
            return f"{name} is not between 0 and {MAX_UNITS}"
    reason: object = wanted.reason
    return "" if isinstance(reason, str) else "reason is not a string"
