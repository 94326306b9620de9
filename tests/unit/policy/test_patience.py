"""For how long units stay that are not needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.patience import MAX_DOUBLED_SECONDS, REMEMBERED_SECONDS, Patience, usual_seconds

USUAL = 40.0


def levels(patience: Patience, needed: int, *times: float) -> list[int]:
    return [patience.level(needed, USUAL, now) for now in times]


def test_what_was_needed_stays_for_half_of_the_patience_and_then_goes_in_thirds() -> None:
    assert levels(Patience(9, 0.0), 0, 0, 19.9, 20, 29.9, 30, 39.9, 40) == [9, 9, 6, 6, 3, 3, 0]


def test_the_last_one_stays_until_the_end() -> None:
    assert levels(Patience(1, 0.0), 0, 0, 39.9, 40) == [1, 1, 0]


def test_without_patience_only_what_is_needed_now_stays() -> None:
    patience = Patience(9, 0.0)
    assert [patience.level(3, 0.0, 1.0), patience.level(0, 0.0, 1.5)] == [3, 0]


def test_a_lower_need_that_came_later_is_remembered_for_as_long() -> None:
    patience = Patience(8, 0.0)
    assert levels(patience, 3, 30) == [3]
    assert levels(patience, 0, 40, 49.9, 50, 60, 70) == [3, 3, 2, 1, 0]


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
