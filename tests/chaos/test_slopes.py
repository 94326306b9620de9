"""Slopes of figures."""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.slopes import slope

MIB = 1024 * 1024


def samples(growth_per_hour: float, noise: float, hours: float = 1.0) -> list[tuple[float, float]]:
    random = Random(2)
    times = [second * 2.0 for second in range(int(hours * 1800))]
    return [(at, 100 * MIB + growth_per_hour * at / 3600 + random.gauss(0, noise)) for at in times]


def test_steady_figure_has_no_slope() -> None:
    found = slope(samples(0, 0))
    assert found is not None
    assert found.per_hour == pytest.approx(0)
    assert found.mean == pytest.approx(100 * MIB)
    assert not found.is_above(1.0)


@pytest.mark.parametrize("noise", [0.0, 5 * MIB])
def test_growing_figure_exceeds_only_limits_below_its_growth(noise: float) -> None:
    found = slope(samples(40 * MIB, noise))
    assert found is not None
    assert found.per_hour == pytest.approx(40 * MIB, abs=1 * MIB + 3 * found.error)
    assert found.is_above(30 * MIB)
    assert not found.is_above(50 * MIB)


def test_slope_within_its_error_does_not_exceed_the_limit() -> None:
    found = slope(samples(20 * MIB, 200 * MIB, hours=0.1))
    assert found is not None
    assert found.error > 20 * MIB
    assert not found.is_above(10 * MIB)


def test_initial_fill_does_not_count_as_growth() -> None:
    filling = [(at, figure if at > 800 else at * MIB) for at, figure in samples(0, 0)]
    found = slope(filling)
    assert found is not None
    assert not found.is_above(1.0)


def test_single_step_does_not_count_as_growth() -> None:
    found = slope([(at, figure + (20 * MIB if at > 2000 else 0)) for at, figure in samples(0, MIB)])
    assert found is not None
    assert not found.is_above(16 * MIB)


def test_too_few_samples_have_no_slope() -> None:
    assert slope([(0.0, 1.0)] * 10) is None
