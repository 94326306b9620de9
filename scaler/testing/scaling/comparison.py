"""Compares policies: every workload at every start-up time, relative to all allowed units from the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from scaler.policy.simple import SimplePolicy
from scaler.policy.target import TargetPolicy
from scaler.policy.view import ScalingPolicy
from scaler.policy.waterfall import WaterfallPolicy
from scaler.testing.scaling.competitors import AllFromTheStart, DaskAdaptive, HyperQueueAllocation, OnePerHeartbeat
from scaler.testing.scaling.workloads import MORE_WORKLOADS, WORKLOADS, Workload
from scaler.testing.scaling.world import ScalingOutcome, simulate

FORMULA = "formula"
DASK = "Dask"
HYPERQUEUE = "HyperQueue"
DEFAULT = "simple, vanilla"
"""The policy of a scheduler without settings."""


def _ladder(workload: Workload) -> ScalingPolicy:
    pools = sorted(workload.pools, key=lambda pool: len(pool.capabilities))
    steps = (f"{number},{pool.manager_id},-1" for number, pool in enumerate(pools, 1))
    return WaterfallPolicy("; ".join(steps))


CONTESTANTS: Mapping[str, Callable[[Workload], ScalingPolicy]] = {
    "target_v1": lambda _: TargetPolicy(""),
    "simple, vanilla": lambda _: SimplePolicy("allocate=even_load; scaling=vanilla"),
    "simple, capability": lambda _: SimplePolicy("allocate=capability; scaling=capability"),
    "waterfall_v1": _ladder,
    DASK: lambda _: cast("ScalingPolicy", DaskAdaptive()),
    HYPERQUEUE: lambda _: cast("ScalingPolicy", HyperQueueAllocation()),
    FORMULA: lambda _: cast("ScalingPolicy", OnePerHeartbeat()),
}
"""Factories of the policies by name. Each takes a workload."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy on one workload at one start-up time, relative to the reference.

    makespan, response (from each burst's arrival to its end), and cost (unit-seconds) are multiples of the
    reference's.
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
        return _paid(self.outcome) / _paid(self.reference)


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy over the entire table, as multiples of the reference: geometric means of cells, and ratios of sums."""

    makespan: float
    makespan_of_sums: float
    response: float
    cost: float
    cost_of_sums: float
    overshoot: float
    """Mean, in units."""
    flaps: int
    """Maximum of all cells."""
    restarts: int
    """Units started within a start-up time after a unit was stopped."""
    scaled_down: int
    lost: int


@cache
def reference(workload: Workload, startup_seconds: float) -> ScalingOutcome:
    """Return the outcome with all allowed units from the start, which end with the last task."""
    return simulate(workload, AllFromTheStart(), startup_seconds, ends_at_once=True)


@cache
def cell(contestant: str, workload: Workload, startup_seconds: float) -> Cell:
    outcome = simulate(workload, CONTESTANTS[contestant](workload), startup_seconds)
    return Cell(workload, startup_seconds, outcome, reference(workload, startup_seconds))


def table(contestant: str, workloads: Sequence[Workload] = WORKLOADS) -> list[Cell]:
    return [cell(contestant, workload, startup) for workload in workloads for startup in workload.startups]


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
        restarts=sum(each.restarts for each in ours),
        scaled_down=sum(each.scaled_down for each in ours),
        lost=sum(each.lost for each in ours),
    )


LEAST_PAID_SECONDS = 60.0
"""Minimum cost (seconds of one unit) in ratios, which are meaningless for lower costs."""


def _paid(outcome: ScalingOutcome) -> float:
    return max(LEAST_PAID_SECONDS, outcome.unit_seconds)


@dataclass(frozen=True, slots=True)
class Duel:
    """One policy compared with another in one cell. Makespan and cost are multiples of the other policy's."""

    workload: Workload
    startup_seconds: float
    makespan: float
    cost: float
    restarts: int
    """Units that the first policy started within a start-up time after it stopped a unit."""


def duel(contestant: str, rival: str, workload: Workload, startup_seconds: float) -> Duel:
    ours, theirs = (cell(name, workload, startup_seconds).outcome for name in (contestant, rival))
    makespan = ours.makespan_seconds / theirs.makespan_seconds
    return Duel(workload, startup_seconds, makespan, _paid(ours) / _paid(theirs), ours.restarts)


def duels(contestant: str, rival: str, workloads: Sequence[Workload] = WORKLOADS + MORE_WORKLOADS) -> list[Duel]:
    return [duel(contestant, rival, workload, startup) for workload in workloads for startup in workload.startups]


def mean_cost(found: Sequence[Duel]) -> float:
    return _mean([each.cost for each in found])


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
