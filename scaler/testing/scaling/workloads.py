"""Workloads that policies are compared on. Each follows from a seed of its own, so every run sees the same tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

Capabilities = tuple[tuple[str, float], ...]
GPU: Capabilities = (("gpu", 1.0),)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Tasks of one function that are submitted together: the seconds that each of them runs."""

    at: float
    function: str
    seconds: tuple[float, ...]
    needs: Capabilities = ()


@dataclass(frozen=True, slots=True)
class UnitPool:
    """The units that one worker manager may have.

    startup_seconds: from start to the connected worker; None for what the simulation is run with. dies_starting: the
    share of units that end half way through their start. life_seconds: after how long on average a unit is lost.
    reclaimed_at: when every second running unit is lost, all at once.
    """

    manager_id: str
    max_units: int
    capabilities: Capabilities = ()
    startup_seconds: float | None = None
    dies_starting: float = 0.0
    life_seconds: float | None = None
    reclaimed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks, and the units that they may run on. bursts: when something new begins; flaps are counted in between."""

    name: str
    arrivals: tuple[Arrival, ...]
    pools: tuple[UnitPool, ...]
    bursts: tuple[float, ...] = (0.0,)
    tasks: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", sum(len(arrival.seconds) for arrival in self.arrivals))


def _around(seconds: float, count: int, seed: int) -> tuple[float, ...]:
    """Durations that differ as those of like tasks do: by a quarter."""
    random = Random(seed)  # noqa: S311 (a simulation must repeat itself)
    return tuple(seconds * random.lognormvariate(-0.03, 0.25) for _ in range(count))


def _long_tail(count: int, seed: int) -> tuple[float, ...]:
    """Mostly a second; one in twenty-five takes up to two minutes."""
    random = Random(seed)  # noqa: S311
    return tuple(
        random.uniform(10.0, 120.0) if random.random() < 0.04 else random.uniform(0.5, 1.5) for _ in range(count)
    )


def _rise_and_fall(seconds: float, every: float, most: int) -> tuple[Arrival, ...]:
    steps = int(seconds / every)
    counts = [round(most * min(step, steps - step) * 2 / steps) for step in range(1, steps)]
    return tuple(Arrival(step * every, "work", _around(2.0, count, step)) for step, count in enumerate(counts) if count)


ANY = (UnitPool("cloud", 32),)

WORKLOADS = (
    Workload("one burst", (Arrival(0.0, "work", _around(4.0, 600, 1)),), ANY),
    Workload(
        "three bursts",
        tuple(Arrival(at, "work", _around(2.0, 300, int(at))) for at in (0.0, 300.0, 600.0)),
        ANY,
        bursts=(0.0, 300.0, 600.0),
    ),
    Workload("long tail", (Arrival(0.0, "work", _long_tail(400, 2)),), ANY),
    Workload("drip", tuple(Arrival(5.0 * step, "work", _around(3.0, 1, step)) for step in range(120)), ANY),
    Workload("many tiny", (Arrival(0.0, "work", _around(0.03, 10_000, 3)),), ANY),
    Workload("few long", (Arrival(0.0, "work", _around(300.0, 6, 4)),), ANY),
    Workload(
        "mixed capabilities",
        (Arrival(0.0, "plain", _around(3.0, 400, 5)), Arrival(0.0, "training", _around(20.0, 30, 6), GPU)),
        (UnitPool("gpu", 8, GPU), UnitPool("cpu", 24)),
    ),
    Workload(
        "two tiers",
        (Arrival(0.0, "work", _around(4.0, 500, 7)),),
        (UnitPool("own", 8, startup_seconds=1.0), UnitPool("cloud", 24)),
    ),
    Workload(
        "failing units",
        (Arrival(0.0, "work", _around(4.0, 500, 8)),),
        (UnitPool("cloud", 32, dies_starting=0.2, life_seconds=300.0),),
    ),
    Workload("rise and fall", _rise_and_fall(900.0, 10.0, 60), ANY),
)
