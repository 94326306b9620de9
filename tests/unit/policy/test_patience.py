"""For how long units stay that are not needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.patience import MAX_DOUBLED_SECONDS, REMEMBERED_SECONDS, Patience, usual_seconds

USUAL = 40.0


def levels(patience: Patience, needed: int, *times: float) -> list[int]:
    return [patience.level(needed, USUAL, now) for now in times]


def test_what_was_needed_sinks_by_a_quarter_each_quarter_of_the_patience() -> None:
    assert levels(Patience(8, 0.0), 0, 0, 9.9, 10, 20, 30, 39.9, 40) == [8, 8, 6, 4, 2, 2, 0]


def test_the_last_one_stays_until_the_end() -> None:
    assert levels(Patience(1, 0.0), 0, 0, 39.9, 40) == [1, 1, 0]


def test_a_lower_need_that_came_later_is_remembered_for_as_long() -> None:
    patience = Patience(8, 0.0)
    assert levels(patience, 2, 30) == [2]
    assert levels(patience, 0, 40, 49, 50, 69, 70) == [2, 2, 1, 1, 0]


def test_a_need_that_comes_and_goes_keeps_its_units() -> None:
    patience = Patience(0, 0.0)
    for second in range(0, 300, 5):
        assert levels(patience, 3, second) == [3]
        assert levels(patience, 0, second + 2.5) == [3]


def test_units_that_are_missed_soon_after_others_left_double_the_patience_for_a_while() -> None:
    patience = Patience(0, 0.0)
    patience.grew(USUAL, 0.0)
    assert patience.seconds(USUAL) == USUAL
    patience.left(100.0)
    patience.grew(USUAL, 181.0)
    assert patience.seconds(USUAL) == USUAL
    patience.left(200.0)
    patience.grew(USUAL, 280.0)
    patience.grew(USUAL, 281.0)
    assert patience.seconds(USUAL) == 2 * USUAL
    patience.level(0, USUAL, 281.0 + REMEMBERED_SECONDS)
    assert patience.seconds(USUAL) == USUAL


def test_patience_is_bounded_unless_it_was_asked_to_be_longer() -> None:
    patience = Patience(0, 0.0)
    for now in range(30):
        patience.left(float(now))
        patience.grew(USUAL, float(now))
    assert patience.seconds(USUAL) == MAX_DOUBLED_SECONDS
    assert patience.seconds(10_000.0) == 10_000.0


def test_units_that_start_slowly_are_kept_for_longer() -> None:
    assert [usual_seconds(startup) for startup in (0.3, 60.0, 900.0)] == [20.0, 60.0, 120.0]


@given(
    st.integers(0, 100),
    st.floats(0, 100),
    st.lists(st.tuples(st.floats(0, 50), st.integers(0, 100)), min_size=1, max_size=50),
)
def test_the_level_rises_only_with_need_and_is_gone_after_the_patience(
    units: int, usual: float, steps: list[tuple[float, int]]
) -> None:
    patience = Patience(units, 0.0)
    now, before = 0.0, units
    for seconds, needed in steps:
        now += seconds
        level = patience.level(needed, usual, now)
        assert needed <= level <= max(before, needed)
        before = level
    assert patience.level(0, usual, now + usual + 1e-6) == 0
