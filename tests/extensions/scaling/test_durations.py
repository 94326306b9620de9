"""Measured durations of tasks, and estimates for running ones."""

from __future__ import annotations

import random

import pytest

from scaler.extensions.scaling.demand import TaskTimes, forecast, remaining_seconds
from scaler.monitor.reports.status import spread
from scaler.scheduler.core.state import MOST_WEIGHT, Timing


def timing(*seconds: float) -> Timing:
    made = Timing()
    for each in seconds:
        made.add(int(each * 1e6)).refresh()
    return made


def test_changed_function_is_soon_estimated_by_its_new_duration() -> None:
    changed = timing(*[0.01] * 2_000, *[1.0] * (2 * MOST_WEIGHT))
    assert changed.seconds > 0.85
    assert changed.measured < MOST_WEIGHT


def test_task_outliving_short_ones_is_expected_to_take_as_long_as_long_ones() -> None:
    mixed = timing(*[0.01] * 95, *[60.0] * 5)
    fresh, old, oldest = remaining_seconds(mixed, [0.0, 1.0, 500.0])
    assert fresh == pytest.approx(mixed.seconds, rel=0.5)
    assert 30 < old < 90
    assert oldest == 500.0, "no task took longer, so this one counts as half done"


@pytest.mark.parametrize(("elapsed", "left"), [(0.0, 4.0), (1.0, 3.0), (3.0, 1.0), (3.9, 0.1)])
def test_running_task_is_expected_to_take_as_long_as_finished_ones(elapsed: float, left: float) -> None:
    assert remaining_seconds(timing(*[4.0] * 8), [elapsed]) == [pytest.approx(left)]


def test_quantiles_are_accurate_within_a_factor_of_two() -> None:
    draw = random.Random(3)
    seconds = [draw.lognormvariate(-2.0, 1.5) for _ in range(1000)]
    found = spread([timing(*seconds[:400]), timing(*seconds[400:])])
    exact = sorted(seconds)
    assert 0.5 < found.p50_seconds / exact[500] < 2
    assert 0.5 < found.p95_seconds / exact[950] < 2
    assert found.max_seconds == pytest.approx(exact[-1], abs=1e-6)


def test_longest_task_is_remembered_while_others_lose_weight() -> None:
    found = spread([timing(9.0, *[0.01] * 20 * MOST_WEIGHT)])
    assert found.p95_seconds < 0.02
    assert found.max_seconds == 9.0


def test_unusually_long_running_tasks_count_before_they_end() -> None:
    task_seconds, *seconds = forecast([timing(*[0.01] * 100)], [(20.0, 8)], None)
    assert task_seconds == pytest.approx((100 * 0.01 + 8 * 40.0) / 108)
    assert seconds == [20.0, 160.0]


def test_cluster_median_is_near_the_functions_with_most_tasks() -> None:
    times = TaskTimes()
    assert times.median_seconds is None
    times.add(2_000_000, 900)
    times.add(300, 200)
    assert times.median_seconds == pytest.approx(2.0, rel=0.5)
