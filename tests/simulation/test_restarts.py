"""Servers that exit at random times, with the real cores of agents and without journals."""

from __future__ import annotations

import pytest

from scaler.extensions.durability.recovery import Recovery
from scaler.scheduler.core.state import ResultBatch
from scaler.worker.agent.base import RetainedResults
from tests.short_forms import short_form
from tests.simulation.planting import Fault, plant
from tests.simulation.worlds import KILLS, STEADY, restarting_world, run

NOTICED = "started twice|started [23] times|still wait|more slots than it has|starts after"

FAULTS: dict[str, Fault] = {
    "a task that may start once does not wait for reports": Fault(
        Recovery, "_may_run", "return spec.losses <= 1 or task.group.assigned > 0", "return False", NOTICED
    ),
    "an agent drops its results after a scheduler restart": Fault(
        RetainedResults, "take_all", "found = [done for done, _ in self._batches.values()]", "found = []", NOTICED
    ),
    "results are released before they are received": Fault(
        ResultBatch, "settle", "if not self.left and", "if", NOTICED
    ),
    "tasks run again before workers can report": Fault(
        Recovery, "hold", "max(self._opens_at, now + SETTLE_SECONDS)", "now", NOTICED
    ),
    "a report is forgotten if its client has not connected yet": Fault(
        Recovery, "_keep", "self.claims[identifier] = claim", "pass", NOTICED
    ),
    "a report that arrived before its client is ignored": Fault(
        Recovery, "hold", "if task.id in self.claims:", "if False:", NOTICED
    ),
}
"""Faults that make a task start twice or never end when the scheduler and workers are killed."""


@pytest.mark.parametrize("seeds", short_form([range(2), range(2, 6)]), ids=str)
@pytest.mark.parametrize("kind", ["the scheduler loses everything", "scheduler and workers lose everything"])
def test_every_future_has_one_correct_outcome(kind: str, seeds: range) -> None:
    run(seeds, kind)


def test_scheduler_is_killed_often_enough() -> None:
    world = restarting_world(1, STEADY, KILLS)
    assert world.run().happened["scheduler killed"] > 1


@pytest.mark.long
def test_simulation_detects_a_planted_fault(fault_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(FAULTS[fault_name], monkeypatch)
    with pytest.raises(AssertionError, match=FAULTS[fault_name].words):
        run([32, *range(12)], "the scheduler loses everything", "scheduler and workers lose everything")
