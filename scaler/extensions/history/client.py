"""`Client.history`: what happened between two times."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.errors import UsageError
from scaler.monitor.cluster_rows import FailureRow
from scaler.monitor.connection import Asking
from scaler.monitor.history_rows import EventRow, FunctionTimesRow, PointRow
from scaler.monitor.queries import RowTable, ask

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class HistorySnapshot:
    """The history between two times. since, until, oldest: unix seconds; no data exists before `oldest`.

    points: figures per minute, or per several minutes, at most 1,500; gaps are times without a scheduler. events:
    starts and ends of the scheduler, decisions, and incidents, at most 500; left_out: number of omitted events.
    failures: failed tasks by function and text. functions: one row per function.
    """

    since: float
    until: float
    oldest: float
    left_out: int
    points: RowTable[PointRow]
    events: RowTable[EventRow]
    failures: RowTable[FailureRow]
    functions: RowTable[FunctionTimesRow]


@hiding_frames_of_methods()
class HistoryCalls(TaskCalls):
    def history(self, start: datetime | float | None = None, end: datetime | float | None = None) -> HistorySnapshot:
        """Return what happened between two times, across restarts if the scheduler has a state_directory.

        Args:
            start: a datetime (local if it has no time zone), or Unix seconds. Default: 24 hours ago.
            end: as `start`. Default: now.

        Returns:
            Lists, each with `to_pandas()`.

        Raises:
            UsageError: A time is invalid.
            UnreachableError: The scheduler does not answer.
            RefusedError: The scheduler refuses this client as a monitor.
        """
        until = time.time() if end is None else _unix_seconds("end", end)
        since = until - DAY_SECONDS if start is None else _unix_seconds("start", start)
        if since >= until:
            raise UsageError(f"start is {start!r}, but must be before end, {end!r}")
        found = ask(self, Asking.history, since, until)
        tables: list[Any] = [RowTable(rows) for rows in found[4:]]
        return HistorySnapshot(*found[:4], *tables)


def _unix_seconds(name: str, at: datetime | float) -> float:
    if isinstance(at, datetime):
        return at.timestamp()
    if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
        raise UsageError(f"{name} is {at!r}, but must be a datetime or Unix seconds")
    return float(at)
