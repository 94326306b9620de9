"""Downsampling of a history, for any minutes with any gaps."""

from __future__ import annotations

import math
import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.history.minutes import MAX_POINTS, MinuteRow, thinned
from scaler.monitor.history_rows import PointRow

GAPS = [0.0] * 12 + [3.0, 61.0, 900.0, 86_400.0]


@st.composite
def histories(draw: st.DrawFn) -> list[MinuteRow]:
    chance = random.Random(draw(st.integers(0, 2**32)))
    at, rows = chance.uniform(1e9, 2e9), []
    for _ in range(draw(st.integers(1, 120))):
        at += chance.choice(GAPS)
        seconds = chance.choice([60.0, 60.0, 60.0, 7.5])
        counts, figures = ([chance.randrange(10**6) for _ in range(count)] for count in (6, 4))
        values = [at, seconds, *counts, round(chance.uniform(0, 9), 6), chance.uniform(0, 9), *figures]
        rows.append(MinuteRow._make(values))
        at += seconds
    return rows


SUMS = ("done", "failed", "cancelled", "cost")
HIGHEST = ("living", "queued", "running", "slots", "workers", "managers", "memory_bytes", "lag_seconds")
LOWEST = ("queued", "running", "slots", "workers", "memory_bytes")


def column(rows: list[MinuteRow] | list[PointRow], name: str) -> list[float]:
    return [getattr(row, name) for row in rows]


@given(histories(), st.integers(8, 100))
def test_sums_peaks_and_lows_match_the_minutes_at_any_resolution(rows: list[MinuteRow], most: int) -> None:
    points = thinned(rows, most)
    assert len(points) <= most
    for name in SUMS:
        assert math.isclose(sum(column(points, name)), sum(column(rows, name)), abs_tol=1e-6)
    for name in HIGHEST:
        assert max(column(points, name)) == max(column(rows, name))
    for name in LOWEST:
        assert min(column(points, f"{name}_least")) == min(column(rows, name))
    rates = [(row.done + row.failed + row.cancelled) / row.seconds for row in rows]
    assert math.isclose(max(column(points, "tasks_per_second")), max(rates), abs_tol=0.001)
    assert math.isclose(min(column(points, "tasks_per_second_least")), min(rates), abs_tol=0.001)


@given(histories(), st.integers(8, 100))
def test_scheduler_downtime_stays_a_gap_unless_shorter_than_a_point(rows: list[MinuteRow], most: int) -> None:
    points = thinned(rows, most)
    span = rows[-1].at + rows[-1].seconds - rows[0].at
    width = 0.0 if len(points) == len(rows) else max(120.0, 4 * span / (most - 1))
    for before, after in pairwise(rows):
        end = before.at + before.seconds
        if after.at - end > width + 1:
            assert not [point for point in points if point.at < end and point.at + point.seconds > after.at], points


@given(histories(), st.integers(8, 100))
def test_points_are_ordered_and_never_overlap(rows: list[MinuteRow], most: int) -> None:
    points = thinned(rows, most)
    for before, after in pairwise(points):
        assert before.at + before.seconds <= after.at + 0.01


def test_month_of_minutes_stays_within_the_point_limit() -> None:
    rows = [
        MinuteRow(1e9 + 60 * number, 60.0, 1, 0, 0, 1, 1, 1, 0.0, 0.0, 4, number % 7, 3, 9) for number in range(43_200)
    ]
    points = thinned(rows)
    assert MAX_POINTS / 3 < len(points) <= MAX_POINTS
    assert {point.running for point in points} == {6}
    assert thinned([]) == []
