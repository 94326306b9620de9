"""The policy `waterfall_v1`: fills worker managers in a fixed order. Pure."""

from __future__ import annotations

from operator import itemgetter

from scaler.errors import UsageError
from scaler.policy.load import entries
from scaler.policy.sizing import Sizing
from scaler.policy.view import NO_LIMIT, Allocation, ClusterView, Wanted

COLUMNS = "priority,worker_manager_id,max_task_concurrency"


class WaterfallPolicy:
    """A list of worker managers, filled from the first and drained from the last.

    The content has one entry per manager, on separate lines or separated by `;`::

        priority,worker_manager_id,max_task_concurrency
        1,local,8
        2,cloud,-1

    Managers are filled by increasing priority. Equal priorities follow the order of the entries. A manager gets the
    work that its predecessors cannot take, up to max_task_concurrency slots (-1: its own limit). Unlisted managers
    start nothing. The first line of the example and text after `#` are ignored.
    """

    def __init__(self, policy_content: str) -> None:
        self.allocation = Allocation()
        self._most_slots = _parse(policy_content)
        self.named_managers = frozenset(self._most_slots)
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        managers = {manager.manager_id: manager for manager in view.managers}
        limits: dict[str, int | None] = {}
        for key, slots in self._most_slots.items():
            if key in managers:
                own, given = managers[key].max_units, slots // managers[key].unit_slots
                limits[key] = own if slots == NO_LIMIT else given if own is None else min(given, own)
        unlisted = {key: 0 for key in managers if key not in limits}
        wanted = self._sizing.plan(view, limits | unlisted)
        for key in unlisted & wanted.keys():
            text = f"the policy does not include this worker manager; it includes {', '.join(self._most_slots)}"
            wanted[key] = Wanted(wanted[key].units, text, 0)
        return wanted


def _parse(policy_content: str) -> dict[str, int]:
    """Return maximum slots by manager, in filling order. Raises UsageError that quotes the invalid entry."""
    steps: list[tuple[int, str, int]] = []
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
        if any(manager_id == fields[1] for _, manager_id, _ in steps):
            raise UsageError(f"policy_content {entry!r}: worker manager {fields[1]!r} is listed twice")
        steps.append((priority, fields[1], slots))
    if not steps:
        raise UsageError(f"policy_content is empty: waterfall_v1 needs a line {COLUMNS} for each worker manager")
    return {manager_id: slots for _, manager_id, slots in sorted(steps, key=itemgetter(0))}


def _number(entry: str, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"policy_content {entry!r}: {name} {text!r} is not a whole number") from None
