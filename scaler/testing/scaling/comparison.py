"""Policies side by side: every workload with every start-up time, beside all allowed units from the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from scaler.policy.simple import SimplePolicy
from scaler.policy.target import TargetPolicy
from scaler.policy.view import Allocation, ClusterView, ManagerView, ScalingPolicy, Wanted
from scaler.policy.waterfall import WaterfallPolicy
from scaler.testing.scaling.workloads import WORKLOADS, Workload
from scaler.testing.scaling.world import ScalingOutcome, simulate

STARTUP_SECONDS = (1.0, 60.0, 180.0)
FORMULA = "formula"
HEARTBEAT_SECONDS = 2.0
GROW_ABOVE = 10
SHRINK_BELOW = 1


class AllFromTheStart:
    """All permitted units from the start. A comparison with it stops them with the last task."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {
            manager.manager_id: Wanted(manager.units if manager.max_units is None else manager.max_units, "all")
            for manager in view.managers
        }


class OnePerHeartbeat:
    """One more unit per heartbeat when tasks / workers > 10, one less when it is below 1; the first for any task.

    Workers are connected ones, as usual in such formulas: pending units are not counted. Each manager is treated
    separately, with the tasks that it could run.
    """

    allocation = Allocation()

    def __init__(self) -> None:
        self._next = -math.inf
        self._wanted: dict[str, int] = {}

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        if view.now >= self._next:
            self._next = view.now + HEARTBEAT_SECONDS
            self._wanted = {manager.manager_id: self._beat(manager, view) for manager in view.managers}
        return {
            manager.manager_id: Wanted(self._wanted.get(manager.manager_id, manager.units), "tasks / workers")
            for manager in view.managers
        }

    @staticmethod
    def _beat(manager: ManagerView, view: ClusterView) -> int:
        tasks = sum(row.queued + row.running for row in view.demand if row.needs.fits(manager.offers))
        workers = manager.units_running
        share = tasks / workers if workers else math.inf if tasks else 0.0
        if share > GROW_ABOVE:
            limit = math.inf if manager.max_units is None else manager.max_units
            return int(min(manager.units + 1, limit))
        return max(0, manager.units - 1) if share < SHRINK_BELOW else manager.units


def _ladder(workload: Workload) -> ScalingPolicy:
    """Those that offer least come first, as people write it."""
    pools = sorted(workload.pools, key=lambda pool: len(pool.capabilities))
    steps = (f"{number},{pool.manager_id},-1" for number, pool in enumerate(pools, 1))
    return WaterfallPolicy("; ".join(steps))


CONTESTANTS: Mapping[str, Callable[[Workload], ScalingPolicy]] = {
    "target_v1": lambda _: TargetPolicy(""),
    "simple, vanilla": lambda _: SimplePolicy("allocate=even_load; scaling=vanilla"),
    "simple, capability": lambda _: SimplePolicy("allocate=capability; scaling=capability"),
    "waterfall_v1": _ladder,
    FORMULA: lambda _: cast("ScalingPolicy", OnePerHeartbeat()),
}
"""By name, how each is made for a workload, with its defaults."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one policy made of one workload with one start-up time, and what all units from the start make of it.

    makespan, response (from each burst's arrival to its end) and cost (unit-seconds) are multiples of the reference's.
    """

    workload: Workload
    startup_seconds: float
    outcome: ScalingOutcome
    reference: ScalingOutcome

    @property
    def makespan(self) -> float:
        return self.outcome.makespan_seconds / self.reference.makespan_seconds

    @property
    def response(self) -> float:
        return self.outcome.response_seconds / self.reference.response_seconds

    @property
    def cost(self) -> float:
        return self.outcome.unit_seconds / self.reference.unit_seconds


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy over the whole table. Multiples of the reference: geometric means of the cells, and of the sums."""

    makespan: float
    makespan_of_sums: float
    response: float
    cost: float
    cost_of_sums: float
    overshoot: float
    """Mean, in units."""
    flaps: int
    """The most in any cell."""
    cells_that_flap: int
    """In how many cells it changes direction more than once between two bursts."""
    scaled_down: int
    lost: int


@cache
def reference(workload: Workload, startup_seconds: float) -> ScalingOutcome:
    """Return what all allowed units from the start make of a workload; they end with the last task."""
    return simulate(workload, AllFromTheStart(), startup_seconds, ends_at_once=True)


@cache
def cell(contestant: str, workload: Workload, startup_seconds: float) -> Cell:
    outcome = simulate(workload, CONTESTANTS[contestant](workload), startup_seconds)
    return Cell(workload, startup_seconds, outcome, reference(workload, startup_seconds))


def table(contestant: str, workloads: Sequence[Workload] = WORKLOADS) -> list[Cell]:
    return [cell(contestant, workload, startup) for workload in workloads for startup in STARTUP_SECONDS]


def summary(cells: Sequence[Cell]) -> Summary:
    ours, theirs = [each.outcome for each in cells], [each.reference for each in cells]
    return Summary(
        makespan=_mean([each.makespan for each in cells]),
        makespan_of_sums=sum(each.makespan_seconds for each in ours) / sum(each.makespan_seconds for each in theirs),
        response=_mean([each.response for each in cells]),
        cost=_mean([each.cost for each in cells]),
        cost_of_sums=sum(each.unit_seconds for each in ours) / sum(each.unit_seconds for each in theirs),
        overshoot=sum(each.overshoot for each in ours) / len(ours),
        flaps=max(each.flaps for each in ours),
        cells_that_flap=sum(each.flaps > 1 for each in ours),
        scaled_down=sum(each.scaled_down for each in ours),
        lost=sum(each.lost for each in ours),
    )


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
