"""Units that warm capacity adds to a policy's answer, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.needs import Needs, Offers
from scaler.policy.load import GuardedPolicy, load_policy
from scaler.policy.view import Allocation, ClusterView, Demand, ManagerView, Wanted
from scaler.policy.warm import WARM_KEYS, WarmCapacity

IDLE = (600.0,)
RETURNING = 10.0
"""Longest idle time of a unit that starts within a second."""


def manager(running: int = 0, idle: int = 0, **changes: object) -> ManagerView:
    view = ManagerView("m", "fake", Offers(), running, idle_seconds=IDLE * idle, max_slots=10, unit_slots=1)
    return replace(replace(view, busy_slots=running - idle, startup_seconds=1.0), **changes)  # type: ignore[arg-type]


def added(here: ManagerView, policy: int | None = 0, most: int | None = None, queued: int = 0) -> Wanted | None:
    """Return the answer for a manager whose policy wants this many units."""
    demand = (Demand(Needs(), "f", queued, 0, 1.0),) if queued else ()
    answer = {} if policy is None else {"m": Wanted(policy, "why", most)}
    return WarmCapacity().added(ClusterView(0.0, demand, (here,)), answer)[0].get("m")


def test_answer_is_unchanged_without_warm_capacity() -> None:
    assert added(manager(3, 3), 1, 5) == Wanted(1, "why", 5)
    assert added(manager(3, 3), None) is None


def test_minimum_is_wanted_with_the_reason_and_its_cost() -> None:
    here = manager(minimum_units=2, unit_price=0.4)
    assert added(here) == Wanted(2, "why; kept: minimum_units=2, 0.80 per hour", None, kept=2)
    assert added(here, 1) == Wanted(2, "why; kept: minimum_units=2, 0.40 per hour", None, kept=1)
    assert added(here, 2) == Wanted(2, "why")
    assert added(replace(here, charges_tasks=True), 1) == Wanted(2, "why; kept: minimum_units=2", None, kept=1)
    assert added(replace(here, unit_price=0.0012), 1) == Wanted(
        2, "why; kept: minimum_units=2, 0.0012 per hour", kept=1
    )


def test_manager_that_the_policy_omits_has_warm_capacity() -> None:
    assert added(manager(1, 1, minimum_units=2), None) == Wanted(2, "kept: minimum_units=2", kept=2)
    assert added(manager(2, 2, minimum_units=2), None) == Wanted(2, "kept: minimum_units=2", kept=2)
    assert added(manager(3, 3, minimum_units=2), None) is None
    assert added(manager(3, 0, buffer_units=2), None) == Wanted(5, "kept: buffer_units=2", kept=2)


def test_fixed_manager_has_no_warm_capacity() -> None:
    assert added(manager(minimum_units=2, fixed=True), None) is None


@pytest.mark.parametrize(("running", "policy", "units"), [(0, 0, 0), (1, 0, 1), (5, 0, 3), (5, 4, 4), (2, 5, 5)])
def test_warm_units_never_exceed_the_running_units(running: int, policy: int, units: int) -> None:
    here = manager(running, running, warm_units=3, pending_ages=(1.0, 2.0))
    answer = added(here, policy)
    assert answer is not None
    assert answer.units == units
    assert answer.kept == max(0, units - policy)


def test_buffer_is_added_to_busy_slots_and_ends_with_them() -> None:
    here = manager(buffer_units=2)
    answers = [
        added(replace(here, units_running=running, busy_slots=busy)) for running, busy in ((4, 3), (4, 0), (9, 9))
    ]
    assert [each and each.units for each in answers] == [5, 0, 10]


def test_buffer_does_not_grow_while_tasks_wait_for_slots() -> None:
    here = manager(4, 0, buffer_units=2)
    answers = [added(here, 4, queued=queued) for queued in (0, 1)]
    assert [each and each.units for each in answers] == [6, 4]
    # Queued tasks with free slots are on their way to them.
    with_room = added(manager(5, 1, buffer_units=2), 5, queued=9)
    assert with_room is not None
    assert with_room.units == 6


def test_buffer_counts_slots_rather_than_units_without_tasks() -> None:
    here = manager(4, 0, unit_slots=4, busy_slots=6.0, max_slots=40, buffer_units=1)
    answer = added(here, 2)
    assert answer is not None
    assert answer.units == 3


def test_buffer_outlives_work_for_the_longest_idle_time() -> None:
    warm, busy, idle = WarmCapacity(), manager(3, 0, buffer_units=2), manager(5, 5, buffer_units=2)
    views = [(0.0, busy), (1.0, idle), (1.0 + RETURNING - 1.5, idle), (1.0 + RETURNING, idle)]
    units = [warm.added(ClusterView(now, (), (here,)), {"m": Wanted(0, "")})[0]["m"].units for now, here in views]
    assert units == [5, 5, 5, 0]


class Limited:
    """A policy that permits this many units."""

    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        return {each.manager_id: Wanted(0, "why", 1) for each in view.managers}


def test_minimum_above_the_policys_limit_is_reported_once() -> None:
    guard, view = GuardedPolicy(Limited()), ClusterView(0.0, (), (manager(minimum_units=3),))
    answer, complaint = guard.plan(view)
    assert complaint == "the scaling policy Limited allows 1 unit of m, fewer than its minimum_units (3)"
    assert answer["m"] == Wanted(1, "why; kept: minimum_units=3", 1, kept=1)
    assert guard.plan(replace(view, now=1000.0))[1] == ""


class Failing:
    allocation = Allocation()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        raise ZeroDivisionError


def test_policy_that_fails_keeps_the_minimum() -> None:
    answer, complaint = GuardedPolicy(Failing()).plan(ClusterView(0.0, (), (manager(minimum_units=3),)))
    assert answer["m"].units == 3
    assert "ZeroDivisionError" in complaint


@pytest.mark.parametrize(("name", "content"), [("simple", ""), ("target_v1", ""), ("waterfall_v1", "1,m,-1")])
def test_reason_does_not_announce_the_end_of_kept_units(name: str, content: str) -> None:
    guard = GuardedPolicy(load_policy(name, content))
    here = manager(2, 2, warm_units=2, unit_price=0.2)
    reasons = [guard.plan(ClusterView(now, (), (here,)))[0]["m"].reason for now in (0.0, 600.0)]
    assert reasons == [
        "no work; further units stop after 3 s without work",
        "no work; kept: warm_units=2, 0.40 per hour",
    ]


def test_kept_units_do_not_count_as_a_lull_that_extends_the_cooldown() -> None:
    guard = GuardedPolicy(load_policy("simple", ""))
    kept = manager(2, 2, warm_units=2)
    work = (Demand(Needs(), "f", 40, 0, 60.0),)
    steps = [
        (0.0, (), kept),
        (600.0, (), kept),
        (1799.0, (), kept),
        (1800.0, work, kept),
        (1801.0, (), manager(10, 10)),
    ]
    answers = [guard.plan(ClusterView(now, demand, (here,)))[0]["m"] for now, demand, here in steps]
    assert [each.units for each in answers] == [2, 2, 2, 10, 10]
    assert answers[-1].reason == "no work; units stop after 3 s without work"


COUNTS = st.integers(0, 12)


@given(
    st.fixed_dictionaries(dict.fromkeys(WARM_KEYS, COUNTS)),
    st.lists(st.tuples(COUNTS, COUNTS, COUNTS, st.floats(0, 100)), min_size=1, max_size=6),
    st.one_of(st.none(), COUNTS),
)
def test_answer_is_between_the_policys_and_the_maximum(
    settings: dict[str, int], steps: list[tuple[int, int, int, float]], most: int | None
) -> None:
    warm, now = WarmCapacity(), 0.0
    settings = {key: min(10, units) for key, units in settings.items()}
    for running, idle, policy, seconds in steps:
        now += seconds
        here = manager(min(10, running), min(idle, running, 10), **settings)
        units = min(policy, 10 if most is None else most)
        answer = warm.added(ClusterView(now, (), (here,)), {"m": Wanted(units, "why", most)})[0]["m"]
        assert units <= answer.units <= (10 if most is None else max(units, min(10, most)))
        assert answer.kept == answer.units - units
        if most is None or most >= settings["minimum_units"]:
            assert answer.units >= settings["minimum_units"]
