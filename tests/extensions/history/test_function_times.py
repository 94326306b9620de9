"""Durations of each function's tasks by interval, and the trend against the previous day."""

from __future__ import annotations

import pytest

from scaler.extensions.history.minutes import DAY_SECONDS, MAX_FUNCTIONS, STARTED, Before, FunctionTimes, typical
from scaler.monitor.history_rows import EventRow, FunctionTimesRow
from tests.extensions.history.recorded import Recorded

NOW = 10 * DAY_SECONDS
START = EventRow(0.0, STARTED, "scheduler", "")


def run(cluster: Recorded, client: str, name: str, us: int, count: int = 1) -> None:
    """Finish tasks of a function with these durations in microseconds."""
    cluster.submit(client, count, name=name)
    while tasks := cluster.on("w"):
        cluster.finish("w", *tasks, seconds=us / 1e6)


def row(name: str, at: float, p50: float, ended: int = 10) -> FunctionTimesRow:
    return FunctionTimesRow(at, 300.0, name, ended, 0, p50, 2 * p50)


def test_interval_contains_its_ended_tasks_with_their_times(cluster: Recorded, client: str) -> None:
    cluster.worker("w", slots=4)
    run(cluster, client, "f", 1_000_000, 20)
    times = FunctionTimes(600.0, cluster.state)
    run(cluster, client, "f", 16_000_000, 20)
    run(cluster, client, "g", 1_000, 3)
    assert times.take(899.0) == []
    first, second = times.take(900.0)
    assert (first.at, first.seconds, first.function, first.ended, first.failed) == (600.0, 300.0, "f", 20, 0)
    assert 8 < first.p50_seconds < 32
    assert (second.function, second.ended) == ("g", 3)
    assert times.take(1_200.0) == []


def test_keeps_the_functions_with_the_most_total_time(cluster: Recorded, client: str) -> None:
    cluster.worker("w", slots=4)
    times = FunctionTimes(600.0, cluster.state)
    for number in range(MAX_FUNCTIONS + 5):
        run(cluster, client, f"f{number}", 1_000 * (number + 1))
    assert {each.function for each in times.take(900.0)} == {f"f{number}" for number in range(5, MAX_FUNCTIONS + 5)}


@pytest.mark.parametrize(
    ("values", "median"),
    [([], None), ([(0.0, 5)], None), ([(1.0, 1), (9.0, 1)], 1.0), ([(1.0, 3), (5.0, 2), (9.0, 9)], 9.0)],
)
def test_typical_time_is_the_median_of_the_tasks(values: list[tuple[float, int]], median: float | None) -> None:
    assert typical(values) == median


def test_function_is_compared_with_its_previous_day() -> None:
    before = Before()
    before.load([START, row("f", NOW - DAY_SECONDS, 1.0), row("f", NOW - DAY_SECONDS + 3_600, 2.0, ended=50)])
    before.add([row("f", NOW - 600, 40.0)])
    assert before.p50(NOW) == {"f": 2.0}


def test_function_absent_from_a_run_is_compared_with_its_last_run() -> None:
    before = Before()
    before.load(
        [
            *(START, row("f", NOW - 5 * DAY_SECONDS, 8.0), row("g", NOW - 5 * DAY_SECONDS, 6.0)),
            *(START, row("f", NOW - 7_200, 1.0), row("f", NOW - 6_900, 3.0, ended=99), START),
        ]
    )
    assert before.p50(NOW) == {"f": 3.0, "g": 6.0}
    before.add([row("h", NOW, 1.0)])
    assert "h" not in before.p50(NOW + 60)
