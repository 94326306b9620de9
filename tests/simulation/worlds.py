"""Kinds of simulated worlds. Everything in a world follows from its seed. `KINDS[name](seed)` runs one, and raises
AssertionError if an invariant or a promise does not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from scaler.protocol.messages import Outcome
from scaler.testing.simulation import Chances, SimulationReport, World
from scaler.testing.simulation.actors import CALM
from tests.simulation.machine import Machine
from tests.simulation.restarts import Faults, RestartingWorld
from tests.simulation.sessions import SessionWorld
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
"""No failure can leave a result behind, so the storage must be empty at the end."""
FAITHFUL = replace(ROUGH, once=0.4, worker_crashes_per_second=0.6, worker_freezes_per_second=0.1)
"""Workers and processors are lost."""
STEADY = replace(CALM, once=0.3, dependencies=0.4, long_tasks=0.1, stored_results=0.5)
"""Only servers fail."""

CHAINS = replace(ROUGH, chains=0.9, long_tasks=0.0, processor_deaths=0.01, cancels=0.02, once=0.05)
STEADY_CHAINS = replace(STEADY, chains=0.9, long_tasks=0.0, once=0.05)
"""Most tasks run in a chain, behind another task."""

PROGRAMS = replace(STEADY, client_crashes_per_second=1.0)

KILLS = Faults(scheduler_kills=1.0)
POWER = Faults(scheduler_kills=0.5, storage_kills=0.5, power_losses=1.0)
DISKS = replace(POWER, full_disks=0.3, disk_errors=0.6)


def any_world(seed: int) -> World:
    """Make a world of simulated workers. The seed determines its size and failures."""
    random = Random(seed)
    chances = Chances(
        delay_seconds=random.choice((0.0005, 0.005, 0.05)),
        breaks_per_second=random.choice((0.5, 5.0, 20.0)),
        repeats=random.choice((0.02, 0.3)),
        worker_crashes_per_second=random.choice((0.5, 2.0, 6.0)),
        worker_freezes_per_second=random.choice((0.1, 0.5, 1.0)),
        freeze_seconds=random.choice((30.0, 90.0, 900.0)),
        client_crashes_per_second=random.choice((0.02, 0.3)),
        processor_deaths=random.choice((0.002, 0.03, 0.15)),
        exceptions=random.choice((0.01, 0.1)),
        stored_results=random.choice((0.05, 0.4)),
        cancels=random.choice((0.02, 0.2)),
        dependencies=random.choice((0.2, 0.5, 0.9)),
        once=random.choice((0.05, 0.3, 0.8)),
        long_tasks=random.choice((0.02, 0.1)),
    )
    return World(
        seed=seed,
        workers=random.choice((2, 5, 12, 30)),
        clients=random.choice((1, 4, 8)),
        tasks=random.choice((100, 300)),
        chances=chances,
        burst=random.choice((5, 30, 200)),
        slots=random.choice((1, 2, 3, 8)),
        settle_seconds=random.choice((0.0, 0.0, 65.0)),
    )


def whole_world(seed: int, chances: Chances, storage_restarts: float = 0.0, burst: int = 10) -> WholeWorld:
    """Make a world with the cores of agents and the storage. storage_restarts: rate per second."""
    random = Random(seed)
    return WholeWorld(
        seed=seed,
        workers=random.choice((3, 8)),
        clients=3,
        tasks=200,
        chances=chances,
        burst=burst,
        slots=random.choice((2, 3)),  # some tasks need two
        check_every=5,
        settle_seconds=6.0,  # a client acknowledges its last results in its second heartbeat
        limit_seconds=300.0,
        storage_restarts_per_second=storage_restarts,
    )


def restarting_world(
    seed: int,
    chances: Chances,
    faults: Faults,
    machine: Machine | None = None,
    kind: type[RestartingWorld] = RestartingWorld,
    burst: int = 8,
) -> RestartingWorld:
    """Make a world whose servers exit and restart. machine: for their journals."""
    return kind(
        faults=faults,
        machine=machine,
        seed=seed,
        workers=4,
        clients=2,
        tasks=80,
        chances=chances,
        burst=burst,
        slots=2 + seed % 2,
        check_every=3,
        limit_seconds=900.0,
        settle_seconds=3.0,
    )


def _any(seed: int) -> SimulationReport:
    return any_world(seed).run()


def _rough(seed: int) -> SimulationReport:
    report = whole_world(seed, ROUGH).run()
    assert not report.outcomes[Outcome.NOT_STARTED]
    return report


def _quiet(seed: int) -> SimulationReport:
    world = whole_world(seed, QUIET)
    report = world.run()
    assert not world.unused_bytes(), "the storage has objects that no task or client needs"
    return report


def _forgetful_storage(seed: int) -> SimulationReport:
    report = whole_world(seed, replace(ROUGH, stored_results=0.6), storage_restarts=1.0).run()
    assert not report.outcomes[Outcome.OBJECT_LOST]
    return report


def _judged(world: RestartingWorld, *, has_journal: bool = True) -> SimulationReport:
    """Run a world in which only servers and programs fail. Without journals, tasks may end as unreported."""
    report = world.run()
    assert set(world.starts.values()) == {1}, "a task started twice although no worker was lost"
    for task, (outcome, payload) in world.delivered().items():
        is_unreported = not has_journal and task not in world.starts and b"no worker has reported" in payload
        assert outcome == Outcome.SUCCESS or is_unreported, "a task failed although no worker was lost"
    return report


def _without_journals(seed: int, chances: Chances) -> SimulationReport:
    world = restarting_world(seed, chances, KILLS)
    return _judged(world, has_journal=False) if chances is STEADY else world.run()


def _journals(
    seed: int, chances: Chances, faults: Faults, kind: type[RestartingWorld] = RestartingWorld
) -> SimulationReport:
    with Machine(Random(seed)) as machine:
        world = restarting_world(seed, chances, faults, machine, kind)
        report = world.run() if faults is DISKS else _judged(world)
        report.happened += Counter({"compactions": machine.compactions, "torn bytes": machine.torn_bytes})
    return report


KINDS: dict[str, Callable[[int], SimulationReport]] = {
    "workers and clients fail": _any,
    "agents fail": _rough,
    "connections break": _quiet,
    "workers fail that run chains": lambda seed: World(
        seed=seed, workers=6, clients=3, tasks=400, chances=CHAINS, burst=50, slots=1 + seed % 3
    ).run(),
    "agents fail that run chains": lambda seed: whole_world(seed, CHAINS, burst=60).run(),
    "the scheduler loses chains": lambda seed: _judged(
        restarting_world(seed, STEADY_CHAINS, KILLS, burst=40), has_journal=False
    ),
    "the storage loses everything": _forgetful_storage,
    "the scheduler loses everything": lambda seed: _without_journals(seed, STEADY),
    "scheduler and workers lose everything": lambda seed: _without_journals(seed, FAITHFUL),
    "servers with journals lose power": lambda seed: _journals(seed, STEADY, POWER),
    "disks and workers fail, too": lambda seed: _journals(seed, FAITHFUL, DISKS),
    "programs of durable sessions end, too": lambda seed: _journals(seed, PROGRAMS, POWER, SessionWorld),
}


def run(seeds: Iterable[int], *kinds: str) -> None:
    """Run the worlds with these seeds and kinds. Exceptions name their world."""
    for seed in seeds:
        for kind in kinds:
            try:
                KINDS[kind](seed)
            except Exception as error:
                error.add_note(f"in the world of seed {seed}: {kind}")
                raise
