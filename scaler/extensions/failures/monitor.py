"""Keeps the most recent failed tasks and groups them by function and message. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar
from zlib import crc32

from scaler.monitor.cluster_rows import FailureRow, Status, TaskRow
from scaler.monitor.model import Model, MonitorPart, TaskKey
from scaler.monitor.rows import view
from scaler.monitor.top.formats import Panel
from scaler.texts import pattern

MAX_FAILURES = 1_000
"""Same limit as the scheduler's."""
MAX_TEXT = 300


def failure_key(task: TaskRow) -> str:
    if not _is_own(task):
        return ""
    return f"{crc32(f'{task.function} {pattern(task.text)}'.encode('utf-8', 'replace')):08x}"


def failure_groups(tasks: Iterable[TaskRow]) -> list[FailureRow]:
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
    """The most recent failed tasks, however many tasks end otherwise. Tracebacks stay in the scheduler."""

    keys: ClassVar[Mapping[str, TaskKey]] = {"failure": TaskKey("The key of a group of failures.", failure_key)}

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._failed: OrderedDict[str, TaskRow] = OrderedDict()

    def on_events(self, _document: Mapping[str, Any], rows: Sequence[TaskRow]) -> None:
        for row in filter(_is_own, rows):
            self._failed[row.id] = row._replace(traceback="")
            self._failed.move_to_end(row.id)
            if len(self._failed) > MAX_FAILURES:
                self._failed.popitem(last=False)

    def kept(self) -> dict[str, TaskRow]:
        return self._failed

    def groups(self) -> list[FailureRow]:
        return failure_groups(self._failed.values())

    def panels(self, _status: Status) -> Iterable[Panel]:
        pairs = [(f"{row.function}: {row.text}", f"{row.times:,}") for row in self.groups()]
        return [Panel("failures", pairs, 38, 44)]

    def document(self) -> Mapping[str, Any]:
        return {"failures": [view(row) for row in self.groups()]}
