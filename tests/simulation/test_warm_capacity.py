"""Warm capacity in simulated time: the real scheduler core and reconciler, with every policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random

import pytest

from scaler.policy.simple import SimplePolicy
from scaler.policy.target import TargetPolicy
from scaler.policy.view import Allocation, ClusterView, ScalingPolicy, Wanted
from scaler.policy.waterfall import WaterfallPolicy
from scaler.testing.scaling.workloads import Arrival, UnitPool, Workload
from scaler.testing.scaling.world import ScalingWorld

STARTUP_SECONDS = 20.0
COOLDOWN_SECONDS = 3 * 1.1 * STARTUP_SECONDS
REACTION_SECONDS = 1.0
"""Maximum time from a change until the manager starts or stops a unit: a plan, a round, and a heartbeat."""


class Tasks:
    """A third-party policy with one unit per task, and no decision without tasks."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        tasks = sum(row.tasks for row in view.demand)
        return {each.manager_id: Wanted(tasks, f"{tasks} tasks") for each in view.managers}


class Silent:
    """A third-party policy that never decides for any manager."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {}


POLICIES: dict[str, Callable[[], ScalingPolicy]] = {
    "simple": lambda: SimplePolicy(""),
    "target_v1": lambda: TargetPolicy(""),
    "waterfall_v1": lambda: WaterfallPolicy("1,cloud,-1"),
    "third-party": Tasks,
}
every_policy = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)


class Stage(ScalingWorld):
    """A pool of units that records their number after every event."""

    def __init__(self, pool: UnitPool, policy: ScalingPolicy, arrivals: Sequence[Arrival] = ()) -> None:
        super().__init__(Workload("warm", tuple(arrivals), (pool,)), policy, STARTUP_SECONDS, check_every=50)
        self.series: list[tuple[float, int]] = [(0.0, 0)]
        (self._cloud,) = self._managers.values()
        self.open_managers()

    def until(self, at: float) -> None:
        while self.now < at:
            self._advance()
            alive = self._cloud.alive
            if alive != self.series[-1][1]:
                self.series.append((self.now, alive))
        self.series.append((at, self.series[-1][1]))

    def lose_oldest(self) -> None:
        self._cloud.lose_oldest()

    @property
    def units(self) -> int:
        return self.series[-1][1]

    @property
    def starts(self) -> int:
        return self._cloud.starts

    @property
    def ended_tasks(self) -> int:
        return self._ended

    def most(self, since: float = 0.0) -> int:
        return max(units for at, units in self.series if at >= since)

    def below(self, units: int, since: float) -> float:
        """Return the longest time with fewer than this many units."""
        longest = 0.0
        for (begin, here), (end, _) in itertools.pairwise(self.series):
            if here < units and begin >= since:
                longest = max(longest, end - begin)
        return longest


def burst(at: float, count: int, seconds: float) -> Arrival:
    return Arrival(at, "f", (seconds,) * count)


def steady(until: float, every: float, seconds: float, seed: int = 1) -> list[Arrival]:
    """Return tasks that arrive at random, with about seconds / every running at a time."""
    random, at, found = Random(seed), 0.0, []
    while (at := at + random.expovariate(1 / every)) < until:
        found.append(Arrival(at, "f", (seconds * random.uniform(0.5, 1.5),)))
    return found


@pytest.mark.parametrize("make", [*POLICIES.values(), Silent], ids=[*POLICIES, "silent"])
def test_minimum_exists_without_work_and_is_refilled_after_losses(make: Callable[[], ScalingPolicy]) -> None:
    stage = Stage(UnitPool("cloud", 5, minimum_units=3), make())
    for at in range(100, 3600, 100):
        stage.later(at, stage.lose_oldest)
    stage.until(3600.0)
    assert stage.starts == 3 + 35
    assert stage.most() == 3
    assert stage.below(3, since=REACTION_SECONDS) <= REACTION_SECONDS


def test_spot_interruption_refills_the_minimum() -> None:
    stage = Stage(UnitPool("cloud", 5, minimum_units=4, reclaimed_at=100.0), SimplePolicy(""))
    stage.until(99.0)
    assert (stage.units, stage.starts) == (4, 4)
    stage.until(102.0)
    assert (stage.units, stage.starts) == (4, 6)


@every_policy
def test_warm_units_remain_after_work_but_none_starts_for_them(make: Callable[[], ScalingPolicy]) -> None:
    stage = Stage(UnitPool("cloud", 8, warm_units=2), make(), [burst(300.0, 6, 60.0)])
    stage.until(300.0)
    assert stage.starts == 0
    stage.until(600.0)
    assert (stage.ended_tasks, stage.units) == (6, 2)
    starts = stage.starts
    stage.until(4000.0)
    assert (stage.starts, stage.units) == (starts, 2)


def test_lost_warm_unit_is_not_replaced_without_work() -> None:
    pool = UnitPool("cloud", 8, warm_units=3, reclaimed_at=1000.0)
    stage = Stage(pool, SimplePolicy(""), [burst(0.0, 6, 60.0)])
    stage.until(999.0)
    assert stage.units == 3
    stage.until(2000.0)
    assert stage.units == 1


@every_policy
def test_buffer_is_free_during_work_and_stops_after_it(make: Callable[[], ScalingPolicy]) -> None:
    stage = Stage(UnitPool("cloud", 9, buffer_units=2), make(), [burst(300.0, 3, 400.0)])
    stage.until(300.0)
    assert stage.starts == 0
    stage.until(450.0)
    assert stage.units == 5
    stage.until(300.0 + STARTUP_SECONDS * 1.1 + 400.0 + COOLDOWN_SECONDS + 2 * REACTION_SECONDS)
    assert (stage.ended_tasks, stage.units) == (3, 0)
    assert stage.starts == 5


def test_burst_within_the_buffer_waits_for_no_unit() -> None:
    pool = UnitPool("cloud", 20, buffer_units=3)
    stage = Stage(pool, SimplePolicy(""), [burst(0.0, 4, 1000.0), burst(300.0, 3, 50.0)])
    stage.until(351.0)
    assert stage.ended_tasks == 3
    assert stage.units == 10


@every_policy
def test_units_never_exceed_the_maximum(make: Callable[[], ScalingPolicy]) -> None:
    pool = UnitPool("cloud", 6, minimum_units=2, warm_units=4, buffer_units=5, life_seconds=300.0)
    stage = Stage(pool, make(), steady(2000.0, 5.0, 25.0))
    stage.until(3000.0)
    assert stage.most() == 6
    assert stage.below(2, since=REACTION_SECONDS) <= REACTION_SECONDS


@every_policy
def test_buffer_starts_fewer_units_under_a_steady_load_than_none(make: Callable[[], ScalingPolicy]) -> None:
    starts = []
    for units in (0, 3):
        stage = Stage(UnitPool("cloud", 30, buffer_units=units), make(), steady(3600.0, 5.0, 25.0))
        stage.until(3600.0)
        starts.append(stage.starts)
    assert starts[1] < min(100, starts[0])


def test_units_in_a_queue_are_requested_once() -> None:
    pool = UnitPool("cloud", 20, minimum_units=2, buffer_units=1, queue_seconds=(60.0, 300.0), unit_slots=4)
    stage = Stage(pool, SimplePolicy(""), [burst(1000.0, 8, 2000.0)])
    stage.until(999.0)
    assert (stage.starts, stage.units) == (2, 2)
    stage.until(3000.0)
    assert (stage.starts, stage.units) == (3, 3)


def test_backlog_does_not_grow_the_buffer() -> None:
    policy = TargetPolicy("finish_seconds=600")
    plain = Stage(UnitPool("cloud", 100), policy, [burst(0.0, 1000, 5.0)])
    buffered = Stage(
        UnitPool("cloud", 100, buffer_units=2), TargetPolicy("finish_seconds=600"), [burst(0.0, 1000, 5.0)]
    )
    for stage in (plain, buffered):
        stage.until(900.0)
        assert stage.ended_tasks == 1000
    assert buffered.most() <= plain.most() + 2 < 30


def test_buffer_counts_free_slots_where_units_have_several() -> None:
    # Eight long tasks are spread over all units, so no unit is idle.
    pool = UnitPool("cloud", 10, unit_slots=4, buffer_units=1)
    stage = Stage(pool, SimplePolicy(""), [burst(at, 1, 900.0) for at in (0.0, *range(100, 800, 100))])
    stage.until(850.0)
    assert stage.units == 3


def test_recurring_short_bursts_find_their_buffer_running() -> None:
    stage = Stage(UnitPool("cloud", 30, buffer_units=2), SimplePolicy(""), [burst(40.0 * n, 3, 5.0) for n in range(90)])
    stage.until(3600.0)
    assert stage.ended_tasks == 270
    assert stage.starts <= 12
