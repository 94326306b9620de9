"""How long unneeded units are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.capacity import SHORTAGE_SECONDS, Cooldown, cooldown_seconds

USUAL = 40.0


def levels(cooldown: Cooldown, needed: int, *times: float) -> list[int]:
    return [cooldown.level(needed, USUAL, now, has_work=needed > 0) for now in times]


def test_needed_units_are_kept_for_the_cooldown_then_stopped() -> None:
    assert levels(Cooldown(9, 0.0), 0, 0, 20, 39.9, 40) == [9, 9, 9, 0]


def test_units_outlast_the_preceding_lull_for_some_time_after_a_shortage() -> None:
    cooldown = Cooldown(0, 0.0)
    levels(cooldown, 2, 0, 10)
    levels(cooldown, 0, 60)
    cooldown.shrunk(60.0)
    levels(cooldown, 2, 130)
    cooldown.grew(USUAL, 130.0)
    assert cooldown.seconds(USUAL) == 1.5 * (130 - 10)
    levels(cooldown, 0, 131 + SHORTAGE_SECONDS)
    assert cooldown.seconds(USUAL) == USUAL


def test_slowly_starting_units_are_kept_longer() -> None:
    assert [cooldown_seconds(startup) for startup in (0.3, 60.0, 9000.0)] == [3.0, pytest.approx(40.8), 1800.0]


@given(
    st.integers(0, 100),
    st.floats(0, 100),
    st.lists(st.tuples(st.floats(0, 50), st.integers(0, 100)), min_size=1, max_size=50),
)
def test_level_rises_only_with_need_and_is_zero_after_the_cooldown(
    units: int, usual: float, steps: list[tuple[float, int]]
) -> None:
    cooldown = Cooldown(units, 0.0)
    now, before = 0.0, units
    for seconds, needed in steps:
        now += seconds
        level = cooldown.level(needed, usual, now, has_work=False)
        assert needed <= level <= max(before, needed)
        before = level
    assert cooldown.level(0, usual, now + usual + 1e-6, has_work=False) == 0
