"""The built-in policies in simulated time, on the real core and the real reconciler: their costs and benefits.

`make soak` runs all workloads with all start-up times, and all comparisons with Dask.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from scaler.policy.simple import SimplePolicy
from scaler.policy.target import TargetPolicy
from scaler.policy.view import Allocation, ClusterView, Wanted
from scaler.policy.waterfall import WaterfallPolicy
from scaler.testing.scaling import MORE_WORKLOADS, WORKLOADS, Arrival, UnitPool, Workload, simulate
from scaler.testing.scaling.comparison import DASK, DEFAULT, FORMULA, Cell, cell, duel, mean_cost, summary, table

STARTUP_SECONDS = (1.0, 60.0, 180.0)
NAMES = {workload.name: workload for workload in WORKLOADS + MORE_WORKLOADS}
AGAINST_DASK = (
    ("one burst", 60.0),
    ("drip", 60.0),
    ("few long", 60.0),
    ("paid for a minute", 60.0),
    ("three bursts", 180.0),
    ("many tiny", 1.0),
    ("a burst each 90 s", 60.0),
    ("0.01 s and 60 s", 60.0),
    ("a fifth fails", 60.0),
    ("laptop and cloud", 60.0),
)
"""Rows of the table that show every way in which a policy can be slow or expensive."""
SOME_WORKLOADS = [NAMES[name] for name in ("one burst", "few long", "mixed capabilities")]


@pytest.fixture(scope="module")
def cells(soak: bool) -> list[Cell]:
    """Cells of the default policy."""
    return [
        cell(DEFAULT, workload, startup)
        for number, workload in enumerate(WORKLOADS if soak else SOME_WORKLOADS)
        for place, startup in enumerate(workload.startups)
        if soak or place == number % len(workload.startups)
    ]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_scaling_down_loses_no_task_and_does_not_restart_units_soon(cells: list[Cell]) -> None:
    for each in cells:
        outcome, where = each.outcome, (each.workload.name, each.startup_seconds)
        assert (outcome.scaled_down, outcome.lost, outcome.restarts) == (0, 0, 0), where


@pytest.mark.long
def test_default_policy_is_nearly_as_fast_as_all_units_for_far_less_money(cells: list[Cell]) -> None:
    whole = summary(cells)
    assert max(whole.makespan, whole.makespan_of_sums, whole.response) <= 1.15
    assert max(whole.cost, whole.cost_of_sums) <= 0.60


@pytest.mark.long
@pytest.mark.timeout(180)
def test_default_policy_is_as_fast_as_dasks_costs_less_and_never_flaps(soak: bool) -> None:
    rows = AGAINST_DASK if soak else AGAINST_DASK[:4]
    found = [duel(DEFAULT, DASK, NAMES[name], startup) for name, startup in rows]
    assert [each.workload.name for each in found if each.makespan > 1.05] == []
    assert [each.workload.name for each in found if each.restarts] == []
    assert mean_cost(found) <= 0.9


def test_laptop_with_a_slow_cloud_does_not_pay_for_a_burst_it_finishes_alone() -> None:
    burst = (Arrival(0.0, "work", (1.0,) * 60),)
    laptop = UnitPool("laptop", 2, startup_seconds=1.0, price=0.0)
    cloud = UnitPool("cloud", 100, startup_seconds=45.0, known_startup=True, minimum_seconds=60.0)
    alone, both = (
        simulate(Workload("burst", burst, pools), WaterfallPolicy(content), 45.0)
        for pools, content in (((laptop,), "1,laptop,-1"), ((laptop, cloud), "1,laptop,-1; 2,cloud,100"))
    )
    assert both.makespan_seconds <= 1.05 * alone.makespan_seconds
    assert (both.unit_seconds, both.most_units) == (0.0, 2)


@pytest.mark.long
def test_one_in_five_units_dying_at_startup_does_not_delay_the_rest(soak: bool) -> None:
    for startup_seconds in STARTUP_SECONDS if soak else STARTUP_SECONDS[:1]:
        assert cell(DEFAULT, NAMES["failing units"], startup_seconds).makespan < 1.45


@pytest.mark.long
@pytest.mark.parametrize("policy", ["simple, vanilla", "waterfall_v1"])
def test_simpler_policies_beat_the_common_formula(policy: str, soak: bool) -> None:
    some = [NAMES[name] for name in (("one burst", "few long", "two tiers") if soak else ("few long",))]
    ours, formula = summary(table(policy, some)), summary(table(FORMULA, some))
    assert ours.makespan < formula.makespan
    assert ours.cost < formula.cost
    assert ours.scaled_down + ours.lost == 0


def test_work_finishes_and_the_fleet_recovers_after_half_is_reclaimed() -> None:
    calm = replace(NAMES["one burst"], pools=(UnitPool("cloud", 16),))
    hit = replace(calm, pools=(UnitPool("cloud", 16, reclaimed_at=100.0),))
    before, after = (simulate(workload, TargetPolicy(""), 20.0) for workload in (calm, hit))
    assert after.lost == after.scaled_down == 0
    assert after.most_units == 16
    assert before.makespan_seconds + 5 < after.makespan_seconds < 1.3 * before.makespan_seconds


class Wish:
    """Requests a given number of units at each time."""

    allocation = Allocation()

    def __init__(self, units: Callable[[float], int]) -> None:
        self._units = units

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {manager.manager_id: Wanted(self._units(view.now), "a wish") for manager in view.managers}


def test_target_that_flips_on_every_plan_starts_no_duplicate_units() -> None:
    workload = Workload("long", (Arrival(0.0, "work", (3.0,) * 40),), (UnitPool("cloud", 8),))
    flips = itertools.cycle((8, 1))
    outcome = simulate(workload, Wish(lambda now: next(flips) if now < 150 else 0), 1.0, check_every=50)
    assert (outcome.lost, outcome.scaled_down) == (0, 0)
    assert outcome.most_units <= 8


class Recorded:
    """A policy that records each new decision: units and reason."""

    def __init__(self, policy: SimplePolicy) -> None:
        self.allocation = policy.allocation
        self.decisions: list[tuple[float, int, str]] = []
        self._policy = policy

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        answer = self._policy.plan(view)
        for wanted in answer.values():
            if not self.decisions or (wanted.units, wanted.reason) != self.decisions[-1][1:]:
                self.decisions.append((view.now, wanted.units, wanted.reason))
        return answer


def test_no_decision_claims_idleness_during_ten_thousand_tasks_a_second() -> None:
    seconds, tick = 8, 0.02
    ticks = (Arrival(1.0 + tick * number, "tick", (0.00005,) * 200) for number in range(round(seconds / tick)))
    policy = Recorded(SimplePolicy(""))
    simulate(Workload("ticks", tuple(ticks), (UnitPool("cloud", 4),)), policy, startup_seconds=1.0)
    during = [(units, reason) for at, units, reason in policy.decisions if 1.0 <= at <= 1.0 + seconds]
    assert not [reason for _, reason in during if "no work" in reason]
    assert during[-1] == (2, "about 10,000 tasks of tick() per second")
    assert policy.decisions[-1][1:] == (0, "no work")
