"""A monitor of the simulated world: folds reports into the model, and compares the model with the core's state."""

from __future__ import annotations

import json

from scaler.ids import owner_of
from scaler.monitor.cluster_rows import LIVE, SchedulerRow, StorageRow
from scaler.monitor.messages import MonitorEvents, MonitorStatus
from scaler.monitor.model import Model
from scaler.monitor.reports import events as limits
from scaler.monitor.reports.events import Events
from scaler.monitor.reports.status import ServerStatus, status
from scaler.protocol.codec import encode
from scaler.protocol.messages import Finished, Message
from scaler.scheduler.core.changes import Change
from scaler.scheduler.core.cluster import ClusterState

REPORT_SECONDS = 1.0


class SimulatedMonitor:
    """Watches a core from its start. Raises AssertionError if a report differs from the state."""

    def __init__(self, state: ClusterState) -> None:
        self.model = Model()
        self.rows = 0
        """Ended tasks with a row in a report."""
        self._state = state
        self._events = Events()
        self._next_at = 0.0
        self._finished = 0

    def hear(self, message: Message) -> None:
        if isinstance(message, Finished):
            self._finished += len(message.ids)

    def add(self, changes: list[Change], now: float) -> None:
        self._events.add(changes, now)

    def report(self, now: float) -> None:
        if now >= self._next_at:
            self._next_at = now + REPORT_SECONDS
            self._report(now)

    def judge(self, now: float) -> None:
        """Check that every end was reported or counted as dropped, and that no ended task is shown as live."""
        for _ in range(10):  # ends that do not fit into one report appear in later reports
            self._report(now)
        reported = self.rows + self.model.dropped
        every = sum(self._state.counts.ended.values())
        assert self._finished <= reported <= every, (
            f"{reported} of {every} ends were reported, and {self._finished} to clients"
        )
        for task in self.model.tasks(limit=1_000_000):
            if task.state in LIVE:
                identifier = bytes.fromhex(task.id)
                client = self._state.clients.get(owner_of(identifier))
                assert client is not None, f"task {task.id} is shown as {task.state}, but its client has left"
                assert identifier in client.tasks, f"task {task.id} is shown as {task.state}, but has ended"

    def _report(self, now: float) -> None:
        around = ServerStatus(now, 1, SchedulerRow(), StorageRow(), {}, {})
        document = status(self._state, around)
        encode(MonitorStatus(document))
        self.model.apply_status(json.loads(document))
        counts = self.model.status.tasks
        living = sum(len(client.tasks) for client in self._state.clients.values())
        leaving = sum(len(client.tasks) for client in self._state.departed)
        shown = counts.waiting + counts.ready + counts.assigned + counts.suspended
        assert shown == living + leaving, f"{shown} tasks are shown, but {living} + {leaving} exist"
        report = self._events.report(now)
        if report is None:
            return
        encode(MonitorEvents(report.document()))
        events = json.loads(report.document())
        rows = events["tasks"]["rows"]
        assert len(rows) <= limits.MAX_TASK_ROWS, "a report is bounded"
        self.rows += sum(row[1] not in LIVE for row in rows)
        self.model.apply_events(events)
