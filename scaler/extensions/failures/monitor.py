"""Groups the most recent failed tasks by function and message. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar
from zlib import crc32

from scaler.monitor.cluster_rows import FailureRow, Status, TaskRow
from scaler.monitor.model import MAX_FAILURES, MAX_TASKS, MonitorPart, TaskKey
from scaler.monitor.rows import view
from scaler.monitor.top.formats import Panel
from scaler.texts import pattern

MAX_TEXT = 300


def failure_key(task: TaskRow) -> str:
    if not _is_own(task):
        return ""
    return f"{crc32(f'{task.function} {pattern(task.text)}'.encode('utf-8', 'replace')):08x}"


def failure_groups(tasks: Iterable[TaskRow]) -> list[FailureRow]:
    """Return the groups, newest first. tasks: oldest first."""
    groups: dict[str, FailureRow] = {}
    for task in tasks:
        key, at = failure_key(task), task.ended_at or 0.0
        row = FailureRow(key, 1, task.text[:MAX_TEXT], task.function, at, at, task.id)
        known = groups.pop(key, None)
        groups[key] = known.joined(row) if known is not None else row
    return list(reversed(groups.values()))


def _is_own(task: TaskRow) -> bool:
    return task.failed and not task.failed_input


class FailedTasks(MonitorPart):
    keys: ClassVar[Mapping[str, TaskKey]] = {"failure": TaskKey("The key of a group of failures.", failure_key)}

    def groups(self) -> list[FailureRow]:
        failed = self.model.tasks(state="failed", limit=MAX_TASKS + MAX_FAILURES)
        return failure_groups(reversed([*islice(filter(_is_own, failed), MAX_FAILURES)]))

    def panels(self, _status: Status) -> Iterable[Panel]:
        pairs = [(f"{row.function}: {row.text}", f"{row.times:,}") for row in self.groups()]
        return [Panel("failures", pairs, 38, 44)]

    def document(self) -> Mapping[str, Any]:
        return {"failures": [view(row) for row in self.groups()]}
