"""When work ends, and what one more unit would change, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.costs.prospect import MAX_MANAGERS, scaling_rows
from scaler.needs import Needs, Offers
from scaler.policy.view import ClusterView, Demand, ManagerView, Wanted
from scaler.protocol.cost_rows import ScalingRow


def manager(name: str = "cloud", running: int = 0, **fields: Any) -> ManagerView:
    known = {"max_slots": -1, "unit_slots": 1, "units_running": running, "startup_seconds": 20.0, **fields}
    return ManagerView(name, "test", Offers(), **known)


def work(queued: int, seconds: float | None = 10.0, **fields: Any) -> Demand:
    return Demand(Needs(), "price", queued, 0, seconds, **fields)


def only(*managers: ManagerView, demand: tuple[Demand, ...], wanted: int | None = None) -> ScalingRow:
    view = ClusterView(0.0, demand, managers)
    return scaling_rows(view, {} if wanted is None else {managers[0].manager_id: Wanted(wanted, "work")})[0]


def test_the_end_is_known_for_present_and_wanted_units_and_one_more_with_its_cost() -> None:
    found = only(manager(running=2, unit_price=3.6), demand=(work(100),), wanted=4)
    assert (found.units, found.wanted, found.note) == (2, 4, "")
    assert found.present_seconds == pytest.approx(500.0, rel=0.011)
    assert found.wanted_seconds == pytest.approx(260.0, rel=0.011)  # 26 tasks on each of 2 slots, 24 on the new ones
    assert found.more_seconds == pytest.approx(220.0, rel=0.011)  # 22 tasks on each of 2 slots, 20 on the new ones
    assert found.more_cost == pytest.approx(0.001 * 220 - 4 * 0.001 * 40, abs=0.015)


def test_nothing_is_said_before_durations_are_known_unless_they_are_expected() -> None:
    found = only(manager(running=1), demand=(work(10), work(5, None)))
    assert (found.present_seconds, found.more_seconds) == (None, None)
    assert found.note == "no task of price has ended, so it is not known how long they take"
    assert only(manager(running=1), demand=(work(10, None, expected_seconds=10.0),)).present_seconds is not None
    assert only(manager(running=1), demand=()).note == "there are no tasks that it can run"


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"max_slots": 1}, "it may have no more units"),
        ({"fixed": True}, "it starts what it is configured to, and no more"),
        ({"trouble": "no quota"}, "it cannot start units now: no quota"),
    ],
)
def test_a_manager_that_can_have_no_more_units_says_why(fields: dict[str, Any], note: str) -> None:
    found = only(manager(running=1, **fields), demand=(work(10),))
    assert (found.note, found.more_seconds) == (note, None)
    assert found.present_seconds == pytest.approx(100.0, rel=0.011)


def test_other_managers_that_can_run_the_work_count_and_only_some_are_looked_at() -> None:
    found = only(manager(running=1), manager("own", running=1), demand=(work(10),))
    assert found.present_seconds == pytest.approx(50.0, rel=0.011)
    view = ClusterView(0.0, (work(10),), tuple(manager(str(number)) for number in range(MAX_MANAGERS + 5)))
    assert len(scaling_rows(view, {})) == MAX_MANAGERS


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.floats(0.0, 60.0)), min_size=1, max_size=4),
    st.integers(1, 5_000),
    st.floats(0.01, 500.0),
    st.integers(0, 40),
)
def test_one_more_unit_never_makes_the_work_end_later(
    kinds: list[tuple[int, int, float]], tasks: int, seconds: float, wanted: int
) -> None:
    managers = [
        manager(str(place), running, unit_slots=slots, startup_seconds=startup, pending_ages=(1.0,))
        for place, (running, slots, startup) in enumerate(kinds)
    ]
    found = only(*managers, demand=(work(tasks, seconds),), wanted=wanted)
    assert found.more_seconds is not None
    assert found.wanted_seconds is None or found.more_seconds <= found.wanted_seconds
    if wanted >= managers[0].units and found.wanted_seconds is not None:
        assert found.present_seconds is None or found.wanted_seconds <= found.present_seconds * 1.011 + 0.1
