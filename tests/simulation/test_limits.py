"""Cluster-wide limits in simulated time, with losses, retries, cancellations, reconnects, and planted faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from scaler.extensions.resources import LimitSettings
from scaler.extensions.resources.core import Counted
from scaler.extensions.resources.stocks import LimitStock
from scaler.needs import LIMIT, Needs
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.resources import Claims
from scaler.scheduler.core.rooms import Rooms
from scaler.testing.simulation import Chances, World, actors
from scaler.testing.simulation.actors import SimulatedWorker
from scaler.testing.simulation.stepping import built_in
from tests.simulation.planting import Fault, plant

LIMITS = {"db": 3.0, "licence": 1.0}
NEEDS = (
    *(((),) * 3),
    ((LIMIT + "db", 1.0),),
    ((LIMIT + "db", 2.5),),
    ((LIMIT + "licence", 0.5),),
    ((LIMIT + "db", 1.0), (LIMIT + "licence", 1.0)),
    (("gpu", 0.5), (LIMIT + "db", 0.5)),
    ((LIMIT + "db", 1.0), ("memory", 3.0)),
    (("cpus", 2.0), (LIMIT + "licence", 1.0)),
)
ROUGH = Chances(
    processor_deaths=0.03,
    once=0.2,
    worker_crashes_per_second=1.0,
    worker_freezes_per_second=0.2,
    client_crashes_per_second=0.1,
    client_freezes_per_second=0.05,
    cancels=0.1,
    dependencies=0.3,
)


class LimitedWorld(World):
    """Compares the tasks that run on workers with the limits, at every start of a task."""

    def __init__(self, seed: int, chances: Chances = ROUGH) -> None:
        self._needs: dict[bytes, Needs] = {}
        self.most: Counter[str] = Counter()
        rooms = Rooms([*built_in("durability", "sharing"), Counted(LimitSettings(limits=LIMITS))])
        super().__init__(
            seed=seed, workers=6, clients=3, tasks=400, chances=chances, slots=2, burst=30, check_every=5, rooms=rooms
        )

    def started(self, task: bytes) -> None:
        super().started(task)
        known = self.core.state.living_task(task)
        self._needs[task] = known.needs if known is not None else Needs()
        used: Counter[str] = Counter()
        for worker in self._actors.values():
            if isinstance(worker, SimulatedWorker) and worker.alive and worker.id in self.core.state.workers:
                for each in worker._running:  # noqa: SLF001 (the tasks that really run)
                    used.update({name: amount for name, amount in self._needs[each].claims if name.startswith(LIMIT)})
                if worker.running == worker.slots and (record := self.core.state.workers.get(worker.id)):
                    behind = [each for _, each, _ in worker._queue if each in record.tasks]  # noqa: SLF001
                    waiting = [each for each in behind if record.tasks[each].needs.is_limited]
                    assert not waiting, "a task waits behind others with a limit"
        for name, amount in used.items():
            assert amount <= 1000 * LIMITS[name.removeprefix(LIMIT)], f"{name} is exceeded: {amount}"
            self.most[name] = max(self.most[name], amount)


@pytest.fixture(autouse=True)
def limited_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "NEEDS", tuple(tuple(sorted(each)) for each in NEEDS))


def run(seeds: Iterable[int]) -> Counter[str]:
    """Run these simulations, and return the largest use of each limit."""
    most: Counter[str] = Counter()
    for seed in seeds:
        world = LimitedWorld(seed)
        assert world.run().worker_losses > 5
        most |= world.most
    return most


@pytest.mark.timeout(3600)
def test_limits_are_never_exceeded_and_no_task_starves(soak: bool) -> None:
    most = run(range(100 if soak else 2))
    assert most == {LIMIT + name: 1000 * amount for name, amount in LIMITS.items()}


FAULTS: dict[str, tuple[Any, str, str, str, str]] = {
    "a batch exceeds the limit": (
        Placement,
        "_room",
        "share = min(share, worker.count(queue.needs, queue))",
        "share = share if worker.count(queue.needs, queue) else 0",
        "is exceeded|are taken of a stock",
    ),
    "a lost worker's tasks still count": (
        Claims,
        "release",
        "self._give_back(*self.by_task.pop(task))",
        "self.by_task.pop(task)",
        "a stock counts",
    ),
    "tasks with a limit are prefetched": (
        Placement,
        "_is_held_back",
        " or group.needs.is_limited",
        "",
        "waits behind others",
    ),
    "a limit counts per worker": (
        Counted,
        "joined",
        "self.limits)",
        "{name: LimitStock(each.total, name=name, is_open=True) for name, each in self.limits.items()})",
        "is exceeded",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(*FAULTS[name])
    monkeypatch.setattr("scaler.extensions.resources.core.LimitStock", LimitStock, raising=False)
    plant(fault, monkeypatch)
    with pytest.raises(AssertionError, match=fault.words):
        run(range(4))
