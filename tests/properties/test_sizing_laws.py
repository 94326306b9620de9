"""Invariants of every plan, for any cluster."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler.needs import Needs, Offers
from scaler.policy.simple import SimplePolicy
from scaler.policy.target import TargetPolicy
from scaler.policy.view import ClusterView, Demand, ManagerView, ScalingPolicy
from scaler.policy.waterfall import WaterfallPolicy

CONTENTS = ("scaling=no", "scaling=vanilla", "scaling=capability")
SECONDS = st.floats(0, 1000)
NEEDS = st.sampled_from([Needs(), Needs.of({"gpu": 1}), Needs.of({"gpu": 4}), Needs.of({"linux": None})])
OFFERS = st.sampled_from([Offers(), Offers.of({"gpu": 2}), Offers.of({"gpu": None, "linux": None})])


@st.composite
def managers(draw: st.DrawFn, index: int) -> ManagerView:
    unit_slots = draw(st.integers(1, 4))
    max_slots = draw(st.one_of(st.just(-1), st.integers(unit_slots, 40)))
    limit = 10 if max_slots < 0 else max_slots // unit_slots
    running = draw(st.integers(0, limit))
    return ManagerView(
        f"m{index}",
        "fake",
        draw(OFFERS),
        running,
        tuple(draw(st.lists(SECONDS, max_size=limit - running))),
        tuple(draw(st.lists(SECONDS, max_size=running))),
        draw(st.one_of(st.none(), st.floats(0.1, 300))),
        max_slots=max_slots,
        unit_slots=unit_slots,
        trouble=draw(st.sampled_from(["", "no quota"])),
        fixed=draw(st.booleans()),
        unit_minimum_seconds=draw(st.sampled_from([0.0, 60.0])),
        unit_price=draw(st.sampled_from([0.0, 1.0, 2.5])),
    )


DEMAND = st.builds(
    Demand,
    NEEDS,
    st.sampled_from(["f", "g"]),
    st.integers(0, 10_000_000),
    st.integers(0, 50),
    st.one_of(st.none(), st.floats(1e-6, 1e6)),
)
CLUSTERS = st.lists(st.integers(0, 5), max_size=4, unique=True).flatmap(
    lambda indices: st.tuples(st.lists(DEMAND, max_size=6).map(tuple), st.tuples(*(managers(i) for i in indices)))
)
POLICIES = st.one_of(
    st.sampled_from(CONTENTS).map(SimplePolicy),
    st.just("1,m0,7; 1,m3,-1; 2,m1,4").map(WaterfallPolicy),
    st.sampled_from(["", "finish_seconds=60; m0.idle_seconds=0"]).map(TargetPolicy),
)


@given(POLICIES, CLUSTERS)
def test_first_plan_starts_units_only_for_tasks_they_can_run(
    policy: ScalingPolicy, cluster: tuple[tuple[Demand, ...], tuple[ManagerView, ...]]
) -> None:
    demand, managers = cluster
    for manager_id, answer in policy.plan(ClusterView(0.0, demand, managers)).items():
        (manager,) = (manager for manager in managers if manager.manager_id == manager_id)
        started = max(0, answer.units - manager.units)
        fitting = [row for row in demand if row.needs.fits(manager.offers)]
        slots = sum(row.tasks * row.needs.slots_taken(manager.offers, manager.unit_slots) for row in fitting)
        assert max(0, started - 1) * manager.unit_slots < max(1, slots)
        assert not started or slots


@given(POLICIES, st.lists(st.tuples(SECONDS, CLUSTERS), min_size=1, max_size=4))
def test_plans_respect_limits_and_stop_only_stoppable_units(
    policy: ScalingPolicy, steps: list[tuple[float, tuple[tuple[Demand, ...], tuple[ManagerView, ...]]]]
) -> None:
    now = 0.0
    for seconds, (demand, cluster) in steps:
        now += seconds
        wanted = policy.plan(ClusterView(now, demand, cluster))
        assert set(wanted) == {manager.manager_id for manager in cluster if not manager.fixed}
        for manager in cluster:
            if manager.fixed:
                continue
            answer = wanted[manager.manager_id]
            assert answer.reason
            assert answer.units >= manager.units_running - len(manager.idle_seconds)
            if answer.units > manager.units:
                assert manager.max_units is None or answer.units <= manager.max_units
