"""Which tasks are worth dispatching to late slots: figures of a laptop with AWS Batch."""

from __future__ import annotations

import pytest

from scaler.policy.capacity import SlotBatch, tasks_worth_giving

JOBS = SlotBatch(100, 0.0, dispatch_seconds=45.0)


def given(tasks: int, task_seconds: float, slots: int, jobs: SlotBatch = JOBS) -> int:
    return tasks_worth_giving(tasks, tasks, task_seconds, [SlotBatch(slots, 0.0)], [jobs])


@pytest.mark.parametrize(("tasks", "seconds", "slots"), [(60, 1.0, 2), (16, 1.0, 1), (10_000, 0.01, 2), (1, 600.0, 1)])
def test_late_slots_get_no_tasks_that_other_slots_finish_as_soon(tasks: int, seconds: float, slots: int) -> None:
    assert given(tasks, seconds, slots) == 0


def test_late_slots_get_tasks_that_others_do_not_finish_in_time() -> None:
    assert given(16, 4.0, 1) == 4
    assert 95 <= given(200, 1.0, 2) <= 100


def test_late_slots_get_all_tasks_without_other_slots() -> None:
    assert given(60, 1.0, 0) == 60
    assert given(600, 1.0, 0) == 100
