"""Properties of the health check: chance blames no worker, and a bad worker is found."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.health.core import Health, WorkerFigures, judge
from scaler.extensions.health.paces import WorkerPaces
from scaler.scheduler.core.state import Timing

SPREADS = st.floats(0.0, 1.0)
"""Standard deviation of log durations: with 1, the longest of a thousand takes twenty times the median."""


def judged(seed: int, spread: float, factors: Sequence[float], rounds: int, failing: float = 0.0) -> list[Health]:
    """Return the health of workers that alternately run equally many tasks. factors: slowness of each worker."""
    draw = random.Random(seed)
    timing = Timing()
    paces, workers = WorkerPaces(), [b"%d" % number for number in range(len(factors))]
    for _ in range(rounds):
        for worker, factor in zip(workers, factors, strict=True):
            for _ in range(draw.randint(1, 4)):
                timing.add(int(factor * draw.lognormvariate(10.0, spread)))
                if draw.random() < failing:
                    paces.failed(worker, timing, has_run=True)
            paces.measured(worker, timing, *timing.refresh())
    return judge([WorkerFigures(paces.by_worker[worker]) for worker in workers], {timing: "f"})


@given(st.integers(0, 10_000), SPREADS, st.integers(4, 40), st.integers(2, 60), st.floats(0.0, 1.0))
def test_similar_workers_are_not_reported(seed: int, spread: float, count: int, rounds: int, failing: float) -> None:
    found = judged(seed, spread, [1.0] * count, rounds, failing)
    assert [each.worst for each in found] == [0] * count


@given(st.integers(0, 10_000), st.floats(0.0, 0.5), st.integers(5, 30), st.data())
def test_worker_that_is_three_times_slower_is_the_worst(
    seed: int, spread: float, count: int, data: st.DataObject
) -> None:
    slow = data.draw(st.integers(0, count - 1))
    found = judged(seed, spread, [3.0 if place == slow else 1.0 for place in range(count)], 50)
    assert found[slow].slowness
    assert [each.slowness for place, each in enumerate(found) if place != slow] == [0] * (count - 1)
