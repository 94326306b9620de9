"""The policy `waterfall_v1`: a list of worker managers that is filled from its first and emptied from its last. Pure.

Its content has one entry per manager, on lines of their own or separated by `;`::

    priority,worker_manager_id,max_task_concurrency
    1,local,8
    2,cloud,-1

The smallest priority is filled first; managers of one priority are filled in the order in which they are written. A
manager gets what those before it cannot take, up to max_task_concurrency slots (-1: up to its own limit). Managers that
are not listed start nothing. The first line of the example and text after `#` are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaler.errors import UsageError
from scaler.policy.load import entries
from scaler.policy.sizing import Sizing
from scaler.policy.view import NO_LIMIT, Allocation, ClusterView, ManagerView, Wanted

COLUMNS = "priority,worker_manager_id,max_task_concurrency"


@dataclass(frozen=True, slots=True)
class LadderStep:
    """One manager of the list."""

    priority: int
    manager_id: str
    max_task_concurrency: int

    def limit_units(self, manager: ManagerView) -> int | None:
        if self.max_task_concurrency == NO_LIMIT:
            return manager.max_units
        units = self.max_task_concurrency // manager.unit_slots
        return units if manager.max_units is None else min(units, manager.max_units)


class WaterfallPolicy:
    """See the module. Raises UsageError on content that it does not understand."""

    def __init__(self, policy_content: str) -> None:
        self.allocation = Allocation()
        self._ladder = parse(policy_content)
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        managers = {manager.manager_id: manager for manager in view.managers}
        ladder = [(step, managers[step.manager_id]) for step in self._ladder if step.manager_id in managers]
        limits = {step.manager_id: step.limit_units(manager) for step, manager in ladder}
        return self._sizing.plan(view, limits | {key: 0 for key in managers if key not in limits})


def parse(policy_content: str) -> tuple[LadderStep, ...]:
    """Return the steps in the order in which they are filled. Raises UsageError that quotes the entry at fault."""
    steps: list[LadderStep] = []
    for entry in entries(policy_content):
        fields = [part.strip() for part in entry.split(",")]
        if ",".join(fields) == COLUMNS:
            continue
        if len(fields) != 3 or not fields[1]:
            raise UsageError(f"policy_content {entry!r}: write {COLUMNS}, such as 1,local,8")
        priority = _number(entry, "priority", fields[0])
        slots = _number(entry, "max_task_concurrency", fields[2])
        if slots < 1 and slots != NO_LIMIT:
            raise UsageError(f"policy_content {entry!r}: max_task_concurrency must be at least 1, or -1 for no limit")
        if any(step.manager_id == fields[1] for step in steps):
            raise UsageError(f"policy_content {entry!r}: worker manager {fields[1]!r} is listed twice")
        steps.append(LadderStep(priority, fields[1], slots))
    if not steps:
        raise UsageError(f"policy_content is empty: waterfall_v1 needs a line {COLUMNS} for each worker manager")
    return tuple(sorted(steps, key=lambda step: step.priority))


def _number(entry: str, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"policy_content {entry!r}: {name} {text!r} is not a whole number") from None
