"""Over synthetic processes whose truth is known, nothing but a leak is called a leak, and every leak is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.profiles.usage import GrowthSeries

MIB = 1024**2
SECONDS = 2.0
"""From one measured task to the next."""
COLLECTED_SECONDS = 45.0
Growth = Callable[[int, random.Random], float]
"""Returns what the task of this number leaves behind, in bytes."""


def verdicts(growth: Growth, tasks: int = 400, *, seed: int = 0, others: int = 0) -> Iterator[int]:
    """Yield every answer about a process that runs these tasks, each measured one followed by `others` alike."""
    series, chance, used = GrowthSeries(COLLECTED_SECONDS), random.Random(seed), 40.0 * MIB
    number = 0
    for _ in range(tasks):
        before = used
        used = max(MIB, used + growth(number, chance))
        number += 1
        series.add(number * SECONDS, int(before), int(used))
        for _ in range(others):
            used = max(MIB, used + growth(number, chance))
            number += 1
        if series.leak_bytes is not None:
            yield series.leak_bytes


@given(
    bytes_per_task=st.sampled_from([MIB, 4 * MIB, 300_000]),
    noise=st.floats(0, 0.4),
    others=st.sampled_from([0, 0, 7]),
    seed=st.integers(0, 1_000),
)
def test_a_leak_is_found_with_its_size(bytes_per_task: int, noise: float, others: int, seed: int) -> None:
    def leak(_number: int, chance: random.Random) -> float:
        return bytes_per_task + chance.gauss(0, noise * bytes_per_task)

    *_, last = verdicts(leak, seed=seed, others=others)
    assert last == pytest.approx(bytes_per_task, rel=0.15)


@given(seed=st.integers(0, 1_000), per_step=st.sampled_from([256 * 1024, MIB]))
def test_a_leak_of_small_objects_for_which_the_allocator_takes_memory_in_steps_is_found(
    seed: int, per_step: int
) -> None:
    def leak(_number: int, chance: random.Random) -> float:
        return per_step if chance.random() < 0.1 else 0.0

    found = [each for each in verdicts(leak, tasks=3_000, seed=seed) if each]
    assert found[-1] == pytest.approx(per_step / 10, rel=0.5)


def cache(capacity: float, tasks: float) -> Growth:
    """Return the growth of a process with a cache that fills as keys come back more and more often."""
    share = 1 / tasks
    return lambda number, chance: capacity * share * (1 - share) ** number * chance.uniform(0.5, 1.5)


def steps(size: float, every: int) -> Growth:
    """Return the growth of a heap that doubles: at first often, then ever more rarely."""
    return lambda number, _chance: size * 2.0 ** (number // every) if number in (every, 3 * every, 7 * every) else 0.0


def sawtooth(size: float, every: int) -> Growth:
    """Return the growth by garbage in cycles, which is collected after a number of tasks."""
    return lambda number, _chance: -size * (every - 1) if number % every == every - 1 else size


def noise(size: float) -> Growth:
    """Return the growth of a process whose tasks keep more or less for a while."""
    kept = [0.0]

    def growth(_number: int, chance: random.Random) -> float:
        before, kept[0] = kept[0], chance.uniform(0, size)
        return kept[0] - before

    return growth


@given(
    st.one_of(
        st.builds(cache, st.sampled_from([50.0 * MIB, 2_000.0 * MIB]), st.floats(1, 20)),
        st.builds(steps, st.sampled_from([4.0 * MIB, 64.0 * MIB]), st.integers(3, 30)),
        st.builds(sawtooth, st.sampled_from([0.2 * MIB, 5.0 * MIB]), st.integers(2, 20)),
        st.builds(noise, st.sampled_from([1.0 * MIB, 500.0 * MIB])),
    ),
    st.sampled_from([0, 0, 3, 50]),
    st.integers(0, 10_000),
)
def test_caches_that_fill_steps_of_the_allocator_garbage_and_noise_are_no_leak(
    growth: Growth, others: int, seed: int
) -> None:
    assert not any(verdicts(growth, seed=seed, others=others))


def test_a_leak_that_is_corrected_is_none_any_more_and_one_that_begins_late_is_found() -> None:
    *_, corrected = verdicts(lambda number, _: MIB if number < 200 else 0.0, tasks=500)
    *_, late = verdicts(lambda number, _: MIB if number > 2_000 else 0.0, tasks=6_000)
    assert (corrected, late) == (0, MIB)
