"""Collects the times that traced tasks spent in the scheduler. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaler.extensions.changes import Command, Now, Perform, TasksArrived, TasksEnded
from scaler.extensions.interface import SchedulerPart
from scaler.extensions.telemetry import TelemetrySettings
from scaler.protocol.messages import Outcome

MAX_TASKS = 100_000
"""Maximum number of traced tasks whose arrival times are kept."""


class QueuedTask(NamedTuple):
    """A task that ended. Times in Unix seconds. began_at: start of its last run, or its end if it never ran."""

    context: str
    task: bytes
    name: str
    arrived_at: float
    began_at: float
    attributes: dict[str, str | int]
    errors: list[str]


class QueueTimes(SchedulerPart):
    changes = (TasksArrived, TasksEnded)

    def __init__(self) -> None:
        self._arrived: OrderedDict[bytes, float] = OrderedDict()
        """Unix seconds, by task."""

    def on_changes(self, changes: Sequence[TasksArrived | TasksEnded], now: Now) -> Iterable[Command]:
        ended: list[QueuedTask] = []
        for change in changes:
            if type(change) is TasksEnded:
                if self._arrived:
                    ended += self._ended(change, now)
            else:
                for task in change.ids:
                    self._arrived.setdefault(task, now.unix)
                while len(self._arrived) > MAX_TASKS:
                    self._arrived.popitem(last=False)  # for example, a rejected task
        return [Perform("telemetry", ended)] if ended else ()

    def _ended(self, ended: TasksEnded, now: Now) -> Iterable[QueuedTask]:
        for index, task in enumerate(ended.ids):
            arrived_at = self._arrived.pop(task, None)
            if arrived_at is None:
                continue
            (group, worker), ran = ended.run_of(index), ended.ran(index)
            began_at = now.unix
            if ran is not None and ran[0].began_us and ran[0].clock.offset_seconds is not None:
                began_at += ran[0].began_us[ran[1]] / 1e6 + ran[0].clock.offset_seconds - now.clock
            began_at = min(max(began_at, arrived_at), now.unix)  # the estimates of the worker's clock differ
            record = ended.record_of(index)
            attributes: dict[str, str | int] = {
                "scaler.task.id": task.hex(),
                "scaler.worker": worker,
                "scaler.outcome": Outcome(ended.outcomes[index]).name.lower(),
                "scaler.attempts": record.attempt,
            }
            spec = group.spec
            yield QueuedTask(spec.context, task, spec.name, arrived_at, began_at, attributes, record.texts)


def queue_times(config: TelemetrySettings) -> SchedulerPart:
    """Return the part, which subscribes to no changes if the scheduler sends no spans."""
    return QueueTimes() if config.telemetry_endpoint else SchedulerPart()
