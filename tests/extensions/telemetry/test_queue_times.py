"""The scheduler's part: times of traced tasks, from changes. Simulated."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from scaler.extensions.changes import Now, Perform, TasksArrived, TasksEnded
from scaler.extensions.telemetry import TelemetrySettings
from scaler.extensions.telemetry.core import MAX_TASKS, QueuedTask, QueueTimes, queue_times

IDS = [bytes([number]) * 16 for number in range(3)]


def ended(ids: list[bytes], began_us: list[int] | None = None, offset_seconds: float | None = 0.0) -> TasksEnded:
    group: Any = SimpleNamespace(spec=SimpleNamespace(context="traced", name="price"))
    ran = SimpleNamespace(ids=ids, began_us=began_us or [], clock=SimpleNamespace(offset_seconds=offset_seconds))
    state: Any = SimpleNamespace(worker="w1", ran=None if began_us is None else ran)
    return TasksEnded(ids, [0] * len(ids), [1] * len(ids), [], [], {}, 0.0, [0], [group], [state])


def queued(times: QueueTimes, change: TasksEnded, now: Now) -> list[QueuedTask]:
    commands = [*times.on_changes([change], now)]
    assert all(isinstance(command, Perform) for command in commands)
    return [row for command in commands if isinstance(command, Perform) for row in command.work]


def test_times_are_converted_from_the_workers_clock() -> None:
    times = QueueTimes()
    assert not [*times.on_changes([TasksArrived(IDS[:2])], Now(100.0, 1_000.0))]
    rows = queued(times, ended(IDS, [51_000_000, 52_000_000, 53_000_000], 50.5), Now(110.0, 1_010.0))
    assert [(row.task, row.arrived_at, row.began_at) for row in rows] == [
        (IDS[0], 1_000.0, 1_001.5),
        (IDS[1], 1_000.0, 1_002.5),
    ]
    attributes = {"scaler.worker": "w1", "scaler.outcome": "success", "scaler.attempts": 1}
    assert (rows[0].name, rows[0].attributes) == ("price", {"scaler.task.id": IDS[0].hex(), **attributes})
    assert not queued(times, ended(IDS), Now(120.0, 1_020.0)), "each task is reported once"


def test_a_task_that_never_ran_was_queued_until_its_end() -> None:
    times = QueueTimes()
    times.on_changes([TasksArrived(IDS)], Now(100.0, 1_000.0))
    assert {row.began_at for row in queued(times, ended(IDS), Now(110.0, 1_010.0))} == {1_010.0}


def test_imprecise_clocks_yield_no_negative_times() -> None:
    times = QueueTimes()
    times.on_changes([TasksArrived(IDS[:2])], Now(100.0, 1_000.0))
    rows = queued(times, ended(IDS[:2], [99_000_000, 111_000_000]), Now(110.0, 1_010.0))
    assert [row.began_at for row in rows] == [1_000.0, 1_010.0]


def test_remembered_tasks_are_limited() -> None:
    times = QueueTimes()
    many = [number.to_bytes(16) for number in range(MAX_TASKS + 1)]
    times.on_changes([TasksArrived(many[:-1]), TasksArrived(many[-1:])], Now(100.0, 1_000.0))
    rows = queued(times, ended([many[0], many[1], many[-1]]), Now(110.0, 1_010.0))
    assert [row.task for row in rows] == [many[1], many[-1]]


def test_submissions_do_not_read_the_ids_of_all_waiting_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreadable(OrderedDict[bytes, float]):
        def __iter__(self) -> Iterator[bytes]:
            raise AssertionError

    monkeypatch.setattr("scaler.extensions.telemetry.core.OrderedDict", Unreadable)
    times = QueueTimes()
    times.on_changes([TasksArrived(IDS)], Now(100.0, 1_000.0))
    assert len(queued(times, ended(IDS), Now(110.0, 1_010.0))) == 3


def test_scheduler_without_an_endpoint_needs_no_changes() -> None:
    assert not queue_times(TelemetrySettings()).changes
