"""Whole clusters in simulated time, in short forms with fixed seeds. `make soak` runs the long forms."""

from __future__ import annotations

from functools import partial

import pytest

from scaler.monitor.reports import events
from scaler.monitor.reports.events import MAX_TASK_ROWS
from scaler.protocol.messages import Outcome
from scaler.testing.simulation import Chances, World
from tests.short_forms import short_form

ROUGH = Chances(
    processor_deaths=0.03,
    once=0.3,
    worker_crashes_per_second=2.0,
    worker_freezes_per_second=0.5,
    client_crashes_per_second=0.2,
    client_freezes_per_second=0.1,
    cancels=0.1,
    dependencies=0.5,
)
RoughWorld = partial(World, workers=12, clients=4, chances=ROUGH, check_every=5)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_task_has_one_correct_outcome_in_harsh_simulations(soak: bool) -> None:
    for seed in range(300 if soak else 1):
        tasks = 1500 if soak else 500
        report = RoughWorld(seed=seed, tasks=tasks, burst=30, slots=1 + seed % 3).run()
        assert report.worker_losses > 10
        assert report.breaks > 5


@pytest.mark.parametrize("rows", short_form([20, MAX_TASK_ROWS]))
def test_monitor_learns_of_every_end_and_shows_no_stale_work(
    rows: int, soak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_TASK_ROWS", rows)
    for seed in range(200 if soak else 1):
        tasks = 1500 if soak else 500
        RoughWorld(seed=seed, tasks=tasks, burst=300, slots=2, watched=True).run()


def test_same_seed_gives_the_same_run() -> None:
    first, second = (RoughWorld(seed=3, tasks=200).run() for _ in range(2))
    assert first.outcomes == second.outcomes
    assert first.simulated_seconds == second.simulated_seconds
    assert first.steps == second.steps


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_large_cluster_keeps_its_invariants(soak: bool) -> None:
    workers, tasks, check_every = (10_000, 1_000_000, 5000) if soak else (100, 2_000, 100)
    report = World(
        seed=11, workers=workers, clients=20, tasks=tasks, chances=Chances(), burst=500, check_every=check_every
    ).run()
    assert sum(report.outcomes.values()) > 0.7 * tasks
    assert report.outcomes[Outcome.SUCCESS] > 0.6 * tasks
