"""The policy `waterfall_v1`: a ladder of worker managers that is filled from its first step and emptied from its last.

Its content has one entry per manager, on lines of their own or separated by `;`::

    priority,worker_manager_id,max_task_concurrency
    1,local,8
    2,cloud,-1

The smallest priority is filled first; managers of one priority are filled in the order in which they are written. A
manager gets what those before it cannot take, up to max_task_concurrency slots (-1: up to its own limit). Managers that
are not in the ladder start nothing. The first line of the example and text after `#` may stand there and say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaler.errors import UsageError
from scaler.needs import Needs
from scaler.policy.sizing import Choice, Sizing
from scaler.policy.view import NO_LIMIT, Allocation, ClusterView, ManagerView, Wanted
from scaler.policy.work import demanded

COLUMNS = "priority,worker_manager_id,max_task_concurrency"


@dataclass(frozen=True, slots=True)
class Step:
    """One manager of the ladder."""

    priority: int
    manager_id: str
    max_task_concurrency: int


class WaterfallPolicy:
    """See the module. Raises UsageError on content that it does not understand."""

    def __init__(self, policy_content: str) -> None:
        self.allocation = Allocation()
        self._ladder = parse(policy_content)
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        choices = self._choices(view)
        return self._sizing.plan(
            view, {needs: [choice for choice in choices if _fits(needs, choice)] for needs in demanded(view)}
        )

    def _choices(self, view: ClusterView) -> list[Choice]:
        managers = {manager.manager_id: manager for manager in view.managers}
        ladder = [
            Choice(managers[step.manager_id], _limit_units(managers[step.manager_id], step.max_task_concurrency))
            for step in self._ladder
            if step.manager_id in managers
        ]
        on_ladder = {step.manager_id for step in self._ladder}
        return ladder + [Choice(manager, 0) for manager in view.managers if manager.manager_id not in on_ladder]


def parse(policy_content: str) -> tuple[Step, ...]:
    """Return the steps in the order in which they are filled. Raises UsageError that quotes the entry at fault."""
    steps: list[Step] = []
    for entry in policy_content.replace(";", "\n").splitlines():
        text = entry.partition("#")[0].strip()
        fields = [part.strip() for part in text.split(",")]
        if not text or ",".join(fields) == COLUMNS:
            continue
        if len(fields) != 3 or not fields[1]:
            raise UsageError(f"policy_content {text!r}: write {COLUMNS}, such as 1,local,8")
        priority = _number(text, "priority", fields[0])
        slots = _number(text, "max_task_concurrency", fields[2])
        if slots < 1 and slots != NO_LIMIT:
            raise UsageError(f"policy_content {text!r}: max_task_concurrency must be at least 1, or -1 for no limit")
        if any(step.manager_id == fields[1] for step in steps):
            raise UsageError(f"policy_content {text!r}: worker manager {fields[1]!r} is in the ladder already")
        steps.append(Step(priority, fields[1], slots))
    if not steps:
        raise UsageError(f"policy_content is empty: waterfall_v1 needs a line {COLUMNS} for each worker manager")
    return tuple(sorted(steps, key=lambda step: step.priority))


def _number(entry: str, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"policy_content {entry!r}: {name} {text!r} is not a whole number") from None


def _fits(needs: Needs, choice: Choice) -> bool:
    return needs.fits(choice.manager.offers)


def _limit_units(manager: ManagerView, max_task_concurrency: int) -> int | None:
    if max_task_concurrency == NO_LIMIT:
        return manager.max_units
    units = max_task_concurrency // manager.unit_slots
    return units if manager.max_units is None else min(units, manager.max_units)
