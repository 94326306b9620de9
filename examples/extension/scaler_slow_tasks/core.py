"""Counts slow tasks inside the scheduler. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import Annotated, Any

from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import Seconds
from scaler.extensions.changes import Command, Now, TasksEnded
from scaler.extensions.interface import SchedulerPart
from scaler_slow_tasks.rows import SlowTaskRow

MAX_FUNCTIONS = 1_000


@dataclass(frozen=True, kw_only=True)
class SlowTaskSettings(SettingsModel):
    """Slow tasks."""

    slow_seconds: Annotated[Seconds, Setting(metavar="SECONDS")] = 60.0
    """Duration from which a task is slow."""


class SlowTasks(SchedulerPart):
    changes = (TasksEnded,)

    def __init__(self, config: SlowTaskSettings) -> None:
        self._least_us = config.slow_seconds * 1e6
        self._rows: dict[tuple[str, str], SlowTaskRow] = {}
        """Rows by the client's key and the function."""

    def on_changes(self, changes: Sequence[TasksEnded], _now: Now) -> Iterable[Command]:
        for ended in changes:
            for index, duration_us in enumerate(ended.duration_us):
                if duration_us >= self._least_us:
                    group, _worker = ended.run_of(index)
                    self._add(group.client.account.key, group.function.name, duration_us / 1e6)
        return ()

    def _add(self, key: str, function: str, seconds: float) -> None:
        known = self._rows.pop((key, function), SlowTaskRow(function))
        longest = max(known.longest_seconds, seconds)
        self._rows[key, function] = known._replace(tasks=known.tasks + 1, longest_seconds=longest)
        if len(self._rows) > MAX_FUNCTIONS:
            del self._rows[next(iter(self._rows))]

    def rows(self, _table: str, search: str, most: int, client: Any, _state: Any) -> Iterable[SlowTaskRow]:
        seen = [row for (key, _), row in self._rows.items() if client.identity.may_see(key) and search in row.function]
        return nlargest(most, seen, key=attrgetter("longest_seconds"))
