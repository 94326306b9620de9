"""Groups failed tasks by function and message. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from scaler.protocol.monitor_rows import FailureRow, TaskRow
from scaler.texts import pattern

MAX_TEXT = 300


def failure_key(task: TaskRow) -> str:
    return f"{crc32(f'{task.function} {pattern(task.text)}'.encode('utf-8', 'replace')):08x}"


def failure_groups(tasks: Iterable[TaskRow]) -> list[FailureRow]:
    """Return the groups of tasks, the oldest of which come first; the group with the newest one first."""
    groups: dict[str, FailureRow] = {}
    for task in tasks:
        key, at = failure_key(task), task.ended_at or task.reported_at
        known = groups.pop(key, None)
        text = task.text[:MAX_TEXT] if known is None or known.text == task.text[:MAX_TEXT] else pattern(task.text)
        first_at, times = (at, 0) if known is None else (known.first_at, known.times)
        groups[key] = FailureRow(key, times + 1, text, task.function, first_at, at, task.id)
    return list(reversed(groups.values()))
