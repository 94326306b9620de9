"""Progress and remaining time of a function's tasks, according to the model."""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from statistics import median, quantiles

import pytest

from scaler.monitor.cluster_rows import FunctionRow
from scaler.monitor.model import Model
from scaler.monitor.progress import MIN_ENDED, STALL_SECONDS
from scaler.monitor.reports.status import spread
from scaler.scheduler.core.state import Timing

Finish = tuple[float, float]
"""The model's predicted end of the tasks, and its error."""


class Watched:
    """A model with data about one function, second by second."""

    def __init__(self, p50: float = 1.0, p95: float = 1.0, longest: float = 1.0) -> None:
        self.model = Model()
        self.at = 1000.0
        self.measure(p50, p95, longest)

    def measure(self, p50: float, p95: float, longest: float) -> None:
        self._spread = {"p50_seconds": p50, "p95_seconds": p95, "max_seconds": longest}

    def hear(self, queued: int, running: int, ended: int, failed: int = 0, *, seconds: float = 1.0) -> FunctionRow:
        self.at += seconds
        row = {"name": "work", "queued": queued, "running": running, "ended": ended, "failed": failed, **self._spread}
        self.model.apply_status({"at": self.at, "incarnation": 1, "functions": [row]})
        return self.model.status.functions[0]


def test_job_counts_submissions_since_the_function_was_last_idle() -> None:
    watched = Watched()
    watched.hear(0, 0, ended=1000, failed=7)
    row = watched.hear(70, 10, ended=1020, failed=9)
    assert (row.job_ended, row.job_failed, row.progress_percent) == (20, 2, 18.0)
    row = watched.hear(0, 0, ended=1100, failed=9)
    assert (row.job_ended, row.progress_percent, row.left_seconds) == (100, 98.0, None)
    row = watched.hear(30, 10, ended=1100, failed=9)
    assert (row.job_ended, row.job_failed, row.progress_percent) == (0, 0, 0.0)


def test_rate_covers_the_recent_past() -> None:
    watched = Watched()
    watched.hear(10_000, 10, ended=0)
    for second in range(1, 100):
        watched.hear(10_000, 10, ended=100 * second)
    for second in range(1, 41):
        row = watched.hear(10_000, 10, ended=9900 + 10 * second)
    assert row.tasks_per_second == pytest.approx(10.0)


def test_remaining_time_is_unknown_until_tasks_end_or_are_measured() -> None:
    watched = Watched()
    watched.hear(100, 2, ended=0)
    assert watched.hear(98, 2, ended=MIN_ENDED - 1).left_seconds is None
    assert watched.hear(97, 2, ended=MIN_ENDED).left_seconds is not None
    old = Watched(p50=0.0, p95=0.0, longest=0.0)  # a scheduler that sends no histogram
    old.hear(100, 2, ended=0)
    assert old.hear(50, 2, ended=50).left_seconds is None


def test_remaining_time_is_unknown_once_no_tasks_end() -> None:
    watched = Watched()
    watched.hear(100, 2, ended=0)
    assert watched.hear(50, 2, ended=50).left_seconds is not None
    assert watched.hear(50, 2, ended=50, seconds=STALL_SECONDS - 1).left_seconds is not None
    assert watched.hear(50, 2, ended=50, seconds=2.0).left_seconds is None


@pytest.mark.parametrize(("slots", "sigma"), [(1, 0.3), (8, 0.0), (8, 1.0), (30, 0.6)])
def test_work_ends_when_predicted_within_the_models_error(slots: int, sigma: float) -> None:
    """Durations are lognormal with a median of 4 seconds. Nine of ten forecasts are right within two errors."""
    misses, seconds = [], []
    for seed in range(2):
        forecasts, finished_at = run(slots, 40 * slots, sigma, seed)
        assert len(forecasts) > finished_at / 2
        misses += [abs(at - finished_at) / error for at, error in forecasts]
        seconds += [error / finished_at for _, error in forecasts]
    assert quantiles(misses, n=10)[-1] < 2
    assert median(seconds) < 0.15, "errors are small enough to be of use"


def run(slots: int, tasks: int, sigma: float, seed: int) -> tuple[list[Finish], float]:
    """Run tasks on busy slots; return the model's forecast of each second, and the actual end."""
    draw = random.Random(seed)
    free, starts, durations = [0.0] * slots, [], []
    for _ in range(tasks):
        starts.append(free[0])
        durations.append(draw.lognormvariate(1.4, sigma))
        heapq.heapreplace(free, free[0] + durations[-1])
    ended = sorted((start + seconds, seconds) for start, seconds in zip(starts, durations, strict=True))
    watched, timing, forecasts = Watched(), Timing(), []
    begun_at, known = watched.at + 1, 0
    for at in range(int(max(free)) + 1):
        while ended[known][0] <= at:
            timing.add(int(ended[known][1] * 1e6)).refresh()
            known += 1
        begun = bisect_right(starts, at)
        watched.measure(*spread([timing]))
        row = watched.hear(tasks - begun, begun - known, known)
        if row.left_seconds is not None and row.left_error_seconds is not None:
            forecasts.append((watched.at - begun_at + row.left_seconds, row.left_error_seconds))
    return forecasts, max(free)
