"""Schedulers that are killed at random times, with the real cores of agents, and without a journal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler.protocol.messages import Outcome
from scaler.scheduler.core.recovery import Recovery
from scaler.scheduler.core.tasks import Tasks
from scaler.testing.simulation import Chances
from scaler.testing.simulation.actors import CALM
from scaler.worker.agent.retained import RetainedResults
from tests.simulation.planting import Fault, plant
from tests.simulation.restarts import RestartingWorld

ROUGH = Chances(
    processor_deaths=0.01,
    once=0.3,
    worker_crashes_per_second=0.3,
    worker_freezes_per_second=0.1,
    client_crashes_per_second=0.0,
    client_freezes_per_second=0.0,
    cancels=0.05,
    dependencies=0.5,
    stored_results=0.1,
)
STEADY = replace(CALM, once=0.3, dependencies=0.4, long_tasks=0.1, stored_results=0.0)
"""Nothing goes wrong but that the scheduler is killed."""

NOTICED = "started twice|started 2 times|still wait|more slots than it has"

FAULTS: dict[str, Fault] = {
    "an agent drops its results when the scheduler was restarted": Fault(
        RetainedResults,
        "take_all",
        "found = [done for done, _ in self._batches.values()]",
        "found = []",
        NOTICED,
    ),
    "results are released before anything has got them": Fault(Tasks, "settle", "if not batch.left and", "if", NOTICED),
    "tasks run again before workers had time to report": Fault(
        Recovery, "hold", "max(self._opens_at, now + SETTLE_SECONDS)", "now", NOTICED
    ),
    "a report is forgotten when its client has not come yet": Fault(
        Recovery,
        "_reported_all",
        "self.claims[identifier] = Claim(",
        "_ = Claim(",
        NOTICED,
    ),
}
"""Each one makes a task start twice, or never end, in a world where only the scheduler is killed."""


def world(seed: int, chances: Chances, rate: float) -> RestartingWorld:
    return RestartingWorld(
        scheduler_restarts_per_second=rate,
        seed=seed,
        workers=4,
        clients=2,
        tasks=250,
        chances=chances,
        burst=8,
        slots=2 + seed % 2,
        limit_seconds=900.0,
        settle_seconds=3.0,
    )


@pytest.mark.timeout(3600)
def test_when_only_the_scheduler_is_killed_every_task_starts_once_and_succeeds(soak: bool) -> None:
    for seed in range(300 if soak else 4):
        steady = world(seed, STEADY, 0.3)
        try:
            report = steady.run()
            assert report.outcomes[Outcome.SUCCESS] == 250
            assert set(steady.starts.values()) == {1}
            assert steady.restarts
        except Exception as error:
            error.add_note(f"in the world of seed {seed}")
            raise


@pytest.mark.timeout(3600)
def test_every_future_has_one_right_outcome_when_workers_are_lost_too(soak: bool) -> None:
    for seed in range(300 if soak else 3):
        try:
            world(seed, ROUGH, 0.2).run()
        except Exception as error:
            error.add_note(f"in the world of seed {seed}")
            raise


def run_all() -> None:
    for seed in range(4):
        steady = world(seed, STEADY, 1.0)
        steady.run()
        assert set(steady.starts.values()) == {1}, "a task started twice"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_the_simulation_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(FAULTS[name], monkeypatch)
    with pytest.raises(AssertionError, match=FAULTS[name].words):
        run_all()
