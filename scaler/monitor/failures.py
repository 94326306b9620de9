"""Groups failed tasks by function and message. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from zlib import crc32

from scaler.protocol.monitor_rows import FailureRow, TaskRow

MAX_PATTERN = 200
"""Characters of a message by which failures are grouped; the rest often differs."""
MAX_TEXT = 300
_VARYING = re.compile(
    r"\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9a-f-]*\d)[0-9a-f]{8}[0-9a-f-]*\b"  # ids
    r"|(?:(?<![\w.])[-+])?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def pattern(text: str) -> str:
    """Return the first line of a message with … in place of each number, id and address."""
    return _VARYING.sub("…", text.partition("\n")[0][:MAX_PATTERN])


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
