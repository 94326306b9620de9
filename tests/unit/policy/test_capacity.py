"""Completion times of work, and the best of them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.capacity import DECISION_SECONDS, SlotBatch, best_seconds, soonest_seconds, tasks_done

BATCHES = st.lists(st.builds(SlotBatch, st.integers(0, 50), st.floats(0, 300)), min_size=1, max_size=5)
TASKS = st.integers(1, 10_000)
TASK_SECONDS = st.floats(1e-4, 1e4)


def test_slot_runs_only_whole_tasks_and_only_once_it_exists() -> None:
    batch = SlotBatch(3, 10.0)
    assert [batch.tasks_each(4.0, within) for within in (5.0, 10.0, 13.9, 14.0, 22.0)] == [0, 0, 0, 1, 3]
    assert tasks_done([batch, SlotBatch(1, 0.0)], 4.0, 14.0) == 3 + 3


@given(BATCHES, TASKS, TASK_SECONDS)
def test_soonest_end_is_in_time_and_slightly_earlier_is_not(
    batches: list[SlotBatch], tasks: int, task_seconds: float
) -> None:
    soonest = soonest_seconds(batches, tasks, task_seconds)
    if math.isinf(soonest):
        assert not any(batch.slots for batch in batches)
    else:
        assert tasks_done(batches, task_seconds, soonest * (1 + 1e-9)) >= tasks
        assert tasks_done(batches, task_seconds, soonest * 0.98) < tasks or soonest < task_seconds * 1e-6


def units_for(here: list[SlotBatch], more: SlotBatch, tasks: int, task_seconds: float) -> int:
    within = best_seconds(here, [more], tasks, task_seconds, idle_seconds=10.0)
    return more.slots_for(tasks - tasks_done(here, task_seconds, within), task_seconds, within)


def test_fewer_units_start_the_longer_a_start_takes_relative_to_the_work() -> None:
    started = [units_for([], SlotBatch(1_000, startup), 600, 4.0) for startup in (1.0, 20.0, 60.0, 180.0, 600.0)]
    assert started == sorted(started, reverse=True)
    assert started[0] > 200
    assert started[-1] < 15


@given(BATCHES, BATCHES, TASKS, TASK_SECONDS, st.floats(0, 600))
def test_best_time_is_between_the_soonest_end_and_that_without_new_slots(
    here: list[SlotBatch], more: list[SlotBatch], tasks: int, task_seconds: float, idle_seconds: float
) -> None:
    best = best_seconds(here, more, tasks, task_seconds, idle_seconds)
    soonest = soonest_seconds([*here, *more], tasks, task_seconds)
    if math.isinf(soonest):
        assert math.isinf(best)
    else:
        assert soonest <= best * 1.01, "the soonest end is at most 1 % too late"
        assert best <= max(soonest, soonest_seconds(here, tasks, task_seconds)) + DECISION_SECONDS + 1e-6 * best
        assert tasks_done([*here, *more], task_seconds, best) >= tasks
