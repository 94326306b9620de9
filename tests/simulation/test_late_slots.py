"""A laptop with a batch service that runs each task as a job, which starts 45 s after its submission."""

from __future__ import annotations

import pytest

from scaler.policy.waterfall import WaterfallPolicy
from scaler.testing.scaling import ScalingOutcome, simulate
from scaler.testing.scaling.workloads import Arrival, UnitPool, Workload

LAPTOP = UnitPool("laptop", 2, startup_seconds=1.0)
JOBS = UnitPool("cloud", 1, startup_seconds=1.0, unit_slots=100, dispatch_seconds=45.0)


def run(tasks: int, seconds: float, *pools: UnitPool) -> ScalingOutcome:
    workload = Workload("burst", (Arrival(0.0, "work", (seconds,) * tasks),), pools)
    content = ";".join(f"{number},{pool.manager_id},-1" for number, pool in enumerate(pools))
    return simulate(workload, WaterfallPolicy(content), 1.0, ends_at_once=True, check_every=20)


@pytest.mark.parametrize(
    ("tasks", "seconds"), [(60, 1.0), (20, 4.0), pytest.param(2_000, 0.02, marks=pytest.mark.full)]
)
def test_work_that_the_laptop_finishes_as_soon_stays_there(tasks: int, seconds: float) -> None:
    alone, both = run(tasks, seconds, LAPTOP), run(tasks, seconds, LAPTOP, JOBS)
    assert both.given_late == 0
    assert both.makespan_seconds <= 1.05 * alone.makespan_seconds


@pytest.mark.parametrize(("tasks", "seconds"), [(150, 1.0), (200, 1.0), (60, 10.0)])
def test_work_that_ends_sooner_with_jobs_gets_only_as_many_as_needed(tasks: int, seconds: float) -> None:
    alone, both = run(tasks, seconds, LAPTOP), run(tasks, seconds, LAPTOP, JOBS)
    assert both.makespan_seconds <= 0.8 * alone.makespan_seconds
    # Jobs run at least the work that the laptop has left when they end, and at most a tenth of all work in addition.
    by_the_laptop = int(2 * both.makespan_seconds / seconds)
    assert tasks - by_the_laptop <= both.given_late <= tasks - by_the_laptop + 0.1 * tasks


def test_all_tasks_become_jobs_without_other_slots() -> None:
    both = run(60, 1.0, JOBS)
    assert both.given_late == 60
    assert both.makespan_seconds < 50
