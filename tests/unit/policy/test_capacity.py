"""Completion times of work."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.capacity import SlotBatch, soonest_seconds, tasks_done

BATCHES = st.lists(st.builds(SlotBatch, st.integers(0, 50), st.floats(0, 300)), min_size=1, max_size=5)
TASKS = st.integers(1, 10_000)
TASK_SECONDS = st.floats(1e-4, 1e4)


def test_slot_runs_only_whole_tasks_and_only_after_it_exists() -> None:
    batch = SlotBatch(3, 10.0)
    assert [batch.tasks_each(4.0, within) for within in (5.0, 10.0, 13.9, 14.0, 22.0)] == [0, 0, 0, 1, 3]
    assert tasks_done([batch, SlotBatch(1, 0.0)], 4.0, 14.0) == 3 + 3


@given(BATCHES, TASKS, TASK_SECONDS)
def test_soonest_completion_time_suffices_and_a_slightly_shorter_one_does_not(
    batches: list[SlotBatch], tasks: int, task_seconds: float
) -> None:
    soonest = soonest_seconds(batches, tasks, task_seconds)
    if math.isinf(soonest):
        assert not any(batch.slots for batch in batches)
    else:
        assert tasks_done(batches, task_seconds, soonest * (1 + 1e-9)) >= tasks
        assert tasks_done(batches, task_seconds, soonest * 0.98) < tasks or soonest < task_seconds * 1e-6
