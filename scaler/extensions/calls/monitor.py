"""Computes the progress of calls from successive statuses. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaler.monitor.cluster_rows import Status
from scaler.monitor.data_rows import CallRow
from scaler.monitor.model import Model, MonitorPart
from scaler.monitor.progress import JobProgress
from scaler.monitor.top import formats
from scaler.monitor.top.formats import COUNTS, Panel, counts


class CallsProgress(MonitorPart):
    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._progress = JobProgress[CallRow]()

    def on_status(self, _before: Status) -> None:
        status = self.model.status
        self.model.status = status._replace(calls=self._progress.follow(status, status.calls))

    def panels(self, status: Status) -> Iterable[Panel]:
        calls = [(_call_text(row), counts(row)) for row in status.calls if row.live]
        return [Panel("calls", calls, 38, 60, COUNTS)]


def _call_text(row: CallRow) -> str:
    left = "" if row.left_seconds is None else f" {formats.duration(row.left_seconds)} left"
    percent = "" if row.progress_percent is None else f" {row.progress_percent:.0f}%"
    return f"{row.call} {row.name}{percent}{left}"
