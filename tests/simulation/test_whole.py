"""The simulated world with the cores of agents and of the storage, and faults planted in them and in sessions."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scaler.errors import ProtocolError
from scaler.object_storage.objects import StorageTable
from scaler.protocol.messages import Outcome
from scaler.protocol.session import GapError, Session
from scaler.scheduler.core.objects import ObjectTable
from scaler.scheduler.core.recovery import Recovery
from scaler.testing.simulation import Chances
from scaler.testing.simulation.actors import CALM
from scaler.worker.agent.core import AgentCore
from scaler.worker.agent.pool import PooledProcessor, ProcessorPool
from scaler.worker.agent.state import ExecutorBase
from tests.simulation.planting import Fault, plant
from tests.simulation.whole import WholeWorld

ROUGH = Chances(
    breaks_per_second=5.0,
    processor_deaths=0.05,
    once=0.2,
    worker_crashes_per_second=1.0,
    worker_freezes_per_second=0.3,
    client_crashes_per_second=0.1,
    client_freezes_per_second=0.0,
    cancels=0.1,
    dependencies=0.5,
    stored_results=0.3,
)
QUIET = replace(CALM, breaks_per_second=5.0, repeats=0.1, processor_deaths=0.05, stored_results=0.3)
"""Nothing ends that could leave a result behind: the storage must be empty at the end."""

RESTARTING = replace(ROUGH, worker_crashes_per_second=0.0, worker_freezes_per_second=0.0, client_crashes_per_second=0.0)
"""Where nothing else is lost, each task has its own outcome."""

FAULTS: dict[str, Fault] = {
    "a repeated envelope is delivered again": Fault(
        Session, "receive", "if sequence <= self.received:", "if False:", "come in order|ended twice|runs again"
    ),
    "what was in flight when a connection broke is not repeated": Fault(
        Session,
        "disconnect",
        "self._in_flight.extend(self._waiting)",
        "self._in_flight = deque(self._waiting)",
        "cannot go on|wait|in the world",
    ),
    "a resumed session drops what the other side does not have": Fault(
        Session, "resume", "and self._waiting[0].sequence <= acknowledged", "", "cannot go on|wait|in the world"
    ),
    "an agent forgets what it has taken back from a processor": Fault(
        ProcessorPool, "_reclaimed", "self.queue.put_back(back)", "pass", "in the world"
    ),
    "an agent does not read the results of a dead processor": Fault(
        ProcessorPool,
        "_reclaimed",
        "for results, sent in answer.results:",
        "for results, sent in ():",
        "may start once|wait|runs again",
    ),
    "an agent gives a task the result of the task behind it": Fault(
        ProcessorPool, "_take_results", "at += size", "at += 0", "own value"
    ),
    "an agent counts the results of a page twice": Fault(
        PooledProcessor,
        "new_rows",
        "2**32 if sent else max(taken, len(results.rows))",
        "0",
        "no task or client needs|once|wait",
    ),
    "an agent reports another attempt": Fault(
        ExecutorBase, "ended", "done.attempts.append(item.attempt)", "done.attempts.append(item.attempt + 1)", "wait"
    ),
    "an agent does not answer a recall": Fault(
        AgentCore,
        "_recall",
        "self.executor.give_back([item for item in here if not item.executor])",
        "pass",
        "runs again",
    ),
    "the storage forgets nothing": Fault(
        StorageTable, "forget", "return self.drop(object_id)", "return []", "no task or client needs"
    ),
    "the scheduler has a stored result forgotten while it is used": Fault(
        ObjectTable,
        "_settle",
        "if entry.pins or entry.uses:",
        "if entry.pins:",
        "^b|inputs|is kept until|nothing is lost|is there while",
    ),
    "the scheduler keeps what no task uses any more": Fault(
        ObjectTable, "unuse", "self._settle(identifier, entry)", "pass", "is kept for nothing"
    ),
    "the scheduler forgets what a client has not released": Fault(
        ObjectTable, "_settle", "if entry.pins or entry.uses:", "if entry.uses:", " counts "
    ),
}

RESTART_FAULTS: dict[str, Fault] = {
    "a restarted scheduler ignores reports that came before their clients": Fault(
        Recovery,
        "hold",
        "if claim is not None and claim.is_known:",
        "if False:",
        "may start once|wait|runs again|starts after",
    ),
    "a restarted scheduler ignores what workers report": Fault(
        Recovery,
        "_reported_all",
        "self.claims[identifier] = Claim(worker, attempt, once, suspended, gpus)",
        "pass",
        "may start once|wait|runs again|starts after",
    ),
}


def small_world(
    seed: int, chances: Chances, storage_restarts: float = 0.0, scheduler_restarts: float = 0.0
) -> WholeWorld:
    """Return a world whose size follows from the seed. The last two are rates a second."""
    random = Random(seed)
    return WholeWorld(
        seed=seed,
        workers=random.choice((3, 8)),
        clients=3,
        tasks=200,
        chances=chances,
        burst=10,
        slots=random.choice((2, 3)),  # some tasks need two
        check_every=5,
        settle_seconds=6.0,  # a client acknowledges its last results with its second heartbeat
        limit_seconds=300.0,
        storage_restarts_per_second=storage_restarts,
        scheduler_restarts_per_second=scheduler_restarts,
    )


def run_all(seeds: range) -> None:
    for seed in seeds:
        for chances in (ROUGH, QUIET):
            world = small_world(seed, chances)
            try:
                report = world.run()
            except Exception as error:
                error.add_note(f"in the world of seed {seed}")
                raise
            assert not report.outcomes[Outcome.NOT_STARTED]
            if chances is QUIET:
                assert not world.unused_bytes(), "the storage keeps what no task or client needs"


@pytest.mark.long
@pytest.mark.timeout(36000)
def test_every_task_has_one_right_outcome_with_agents_and_a_storage(soak: bool) -> None:
    run_all(range(5000 if soak else 4))


@pytest.mark.long
@pytest.mark.timeout(36000)
def test_a_storage_that_loses_everything_costs_no_task(soak: bool) -> None:
    for seed in range(5000 if soak else 4):
        report = small_world(seed, replace(ROUGH, stored_results=0.6), storage_restarts=1.0).run()
        assert not report.outcomes[Outcome.OBJECT_LOST]


@pytest.mark.long
@pytest.mark.timeout(36000)
def test_a_scheduler_that_forgets_everything_costs_no_task(soak: bool) -> None:
    run_restarts(range(5000 if soak else 4))


def run_restarts(seeds: range) -> None:
    for seed in seeds:
        try:
            small_world(seed, RESTARTING, scheduler_restarts=0.3).run()
        except Exception as error:
            error.add_note(f"in the world of seed {seed}")
            raise


@pytest.mark.parametrize("name", RESTART_FAULTS)
def test_the_simulation_of_restarts_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = RESTART_FAULTS[name]
    plant(fault, monkeypatch)
    with pytest.raises((AssertionError, KeyError), match=fault.words):
        run_restarts(range(16))


@pytest.mark.parametrize("name", FAULTS)
def test_the_simulation_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    plant(fault, monkeypatch)
    with pytest.raises((AssertionError, KeyError, ProtocolError, GapError), match=fault.words):
        run_all(range(6))
