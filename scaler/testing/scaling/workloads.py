"""Workloads for comparing policies. Each has its own seed, so every run sees the same tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

Capabilities = tuple[tuple[str, float], ...]
GPU: Capabilities = (("gpu", 1.0),)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Tasks of one function that are submitted together, with the duration (seconds) of each."""

    at: float
    function: str
    seconds: tuple[float, ...]
    needs: Capabilities = ()


@dataclass(frozen=True, slots=True)
class UnitPool:
    """The units available to one worker manager.

    startup_seconds: from start to the connected worker. None: the start-up time of the simulation. dies_starting:
    share of units that die halfway through their start. life_seconds: mean time until a unit is lost. reclaimed_at:
    time at which every second running unit is lost at once. queue_seconds: minimum and maximum time in a shared
    queue before the start, which costs nothing. minimum_seconds: minimum paid time of a unit. price: cost of a unit
    per second. known_startup: the manager's type declares a typical start-up time. dispatch_seconds: delay until a
    task starts on a free slot. minimum_units, warm_units, buffer_units: warm capacity.
    """

    manager_id: str
    max_units: int
    capabilities: Capabilities = ()
    startup_seconds: float | None = None
    dies_starting: float = 0.0
    life_seconds: float | None = None
    reclaimed_at: float | None = None
    queue_seconds: tuple[float, float] | None = None
    minimum_seconds: float = 0.0
    price: float = 1.0
    known_startup: bool = False
    unit_slots: int = 1
    dispatch_seconds: float = 0.0
    minimum_units: int = 0
    warm_units: int = 0
    buffer_units: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks, and the units for them. bursts: times at which new work begins. Changes of direction are counted between
    bursts. startups: start-up times to simulate.
    """

    name: str
    arrivals: tuple[Arrival, ...]
    pools: tuple[UnitPool, ...]
    bursts: tuple[float, ...] = (0.0,)
    startups: tuple[float, ...] = (1.0, 60.0, 180.0)
    tasks: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", sum(len(arrival.seconds) for arrival in self.arrivals))


def _around(seconds: float, count: int, seed: int) -> tuple[float, ...]:
    """Durations that vary by about a quarter, like those of similar tasks."""
    random = Random(seed)  # noqa: S311 (a simulation must repeat itself)
    return tuple(seconds * random.lognormvariate(-0.03, 0.25) for _ in range(count))


def _long_tail(count: int, seed: int) -> tuple[float, ...]:
    """Mostly a second. One in twenty-five takes up to two minutes."""
    random = Random(seed)  # noqa: S311
    return tuple(
        random.uniform(10.0, 120.0) if random.random() < 0.04 else random.uniform(0.5, 1.5) for _ in range(count)
    )


def _pareto(shortest: float, count: int, seed: int) -> tuple[float, ...]:
    """A few tasks are much longer than the rest: shape 1.3, at most 300 times the shortest."""
    random = Random(seed)  # noqa: S311
    return tuple(min(300 * shortest, shortest * random.paretovariate(1.3)) for _ in range(count))


def _mixed(counts: dict[float, int], seed: int) -> tuple[float, ...]:
    seconds = [each for each, count in counts.items() for _ in range(count)]
    Random(seed).shuffle(seconds)  # noqa: S311
    return tuple(seconds)


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

SHORT = (1.0, 60.0)
EVERY_90 = tuple(90.0 * number for number in range(8))
MORE_WORKLOADS = (
    Workload("Pareto tail", (Arrival(0.0, "work", _pareto(0.5, 800, 11)),), ANY, startups=SHORT),
    Workload(
        "a burst each 90 s",
        tuple(Arrival(at, "work", _around(2.0, 200, 100 + int(at))) for at in EVERY_90),
        ANY,
        bursts=EVERY_90,
        startups=SHORT,
    ),
    Workload("0.01 s and 60 s", (Arrival(0.0, "work", _mixed({0.01: 2000, 60.0: 40}, 12)),), ANY, startups=SHORT),
    Workload("one long task", (Arrival(0.0, "work", (600.0,)),), ANY, startups=SHORT),
    Workload(
        "a fifth fails",
        (Arrival(0.0, "work", _around(5.0, 800, 13)),),
        (UnitPool("cloud", 32, dies_starting=0.2),),
        startups=SHORT,
    ),
    Workload(
        "half is reclaimed",
        (Arrival(0.0, "work", _around(5.0, 1200, 14)),),
        (UnitPool("cloud", 32, reclaimed_at=120.0),),
        startups=SHORT,
    ),
    Workload(
        "laptop and cloud",
        tuple(Arrival(at, "work", _around(1.0, count, 15)) for at, count in ((0.0, 60), (120.0, 1500))),
        (UnitPool("laptop", 4, startup_seconds=1.0, price=0.0), UnitPool("cloud", 28, known_startup=True)),
        bursts=(0.0, 120.0),
        startups=SHORT,
    ),
    Workload(
        "paid for a minute",
        tuple(Arrival(at, "work", _around(1.0, 150, 200 + int(at))) for at in (0.0, 240.0, 480.0)),
        (UnitPool("cloud", 32, minimum_seconds=60.0),),
        bursts=(0.0, 240.0, 480.0),
        startups=SHORT,
    ),
    Workload(
        "minutes in a queue",
        (Arrival(0.0, "work", _around(20.0, 400, 16)),),
        (UnitPool("queue", 32, queue_seconds=(60.0, 600.0)),),
        startups=SHORT,
    ),
    Workload(
        "hours in a queue",
        (Arrival(0.0, "work", _around(120.0, 300, 17)),),
        (UnitPool("queue", 32, queue_seconds=(600.0, 7200.0)),),
        startups=SHORT,
    ),
)
"""Workloads that each defeat a simple rule: long tails, recurrence, mixtures, failures, prices, queues."""
