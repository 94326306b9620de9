"""The policy `target_v1`: its content, and its use of prices, maxima, and targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler.errors import UsageError
from scaler.needs import Needs, Offers
from scaler.policy.load import load_policy
from scaler.policy.target import TargetPolicy, parse
from scaler.policy.view import ClusterView, Demand, ManagerView, ScalingPolicy, Wanted


def manager(manager_id: str = "m", max_slots: int = -1, **changes: object) -> ManagerView:
    view = ManagerView(manager_id, "fake", Offers(), 0, max_slots=max_slots, unit_slots=1, startup_seconds=10.0)
    return replace(view, **changes)  # type: ignore[arg-type]


def work(queued: int, task_seconds: float | None, running: int = 0, needs: Needs | None = None) -> Demand:
    return Demand(needs or Needs(), "f", queued, running, task_seconds)


def plan(policy: ScalingPolicy, now: float, demand: list[Demand], *managers: ManagerView) -> dict[str, Wanted]:
    return policy.plan(ClusterView(now, tuple(demand), managers))


def units(policy: ScalingPolicy, now: float, demand: list[Demand], *managers: ManagerView) -> list[int]:
    wanted = plan(policy, now, demand, *managers)
    return [wanted[view.manager_id].units for view in managers]


def test_entries_are_separated_by_newlines_or_semicolons_with_comments() -> None:
    settings = parse(
        "finish_seconds = 60; idle_seconds=5 # five\n\n# all; of=this\n a.b.idle_seconds=0.5;first_slots=2"
    )
    assert (settings.get("finish_seconds"), settings.get("idle_seconds", "any")) == (60.0, 5.0)
    assert [settings.get("idle_seconds", name) for name in ("a.b", "own")] == [0.5, 5.0]
    assert settings.get("first_slots") == 2


def test_settings_for_one_manager_override_those_for_all() -> None:
    settings = parse("idle_seconds=3; big.idle_seconds=30")
    assert [settings.get("idle_seconds", name) for name in ("big", "small")] == [30, 3]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("fast", "'fast': write key=value, such as finish_seconds=600, or manager.key=value"),
        ("finish=60", "key 'finish' is unknown; did you mean 'finish_seconds'"),
        ("cloud.max=60", "key 'max' is unknown"),
        ("finish_seconds=soon", "'soon' is not a number"),
        ("finish_seconds=0", "finish_seconds must be above 0"),
        ("finish_seconds=nan", "finish_seconds must be above 0"),
        ("idle_seconds=-1", "idle_seconds must be at least 0"),
        ("first_slots=2.5", "first_slots must be a whole number"),
        ("a.idle_seconds=2; a.idle_seconds=3", "'idle_seconds' is given twice"),
        ("a.finish_seconds=2", "finish_seconds applies to all worker managers together: write finish_seconds=2"),
        (".idle_seconds=2", "'.idle_seconds=2': write idle_seconds=2, or a worker manager's id before the dot"),
        ("ceiling_per_hour=2", "set spend_limit in [scheduler] instead"),
        ("maximum_units=2", "set max_task_concurrency in the manager's [[worker_manager]] instead"),
        ("own.price_per_hour=2", "set unit_price in the manager's [[worker_manager]] instead"),
        ("own.minimum_units = 2", "'own.minimum_units = 2': set it in the manager's [[worker_manager]] instead"),
    ],
)
def test_bad_content_error_quotes_the_mistake_and_a_remedy(content: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        load_policy("target_v1", content)
    assert text in str(error.value)


def test_cheapest_slots_are_used_first_regardless_of_order() -> None:
    dear, cheap = manager("dear", unit_price=3.0), manager("cheap", max_slots=2, unit_price=1.0)
    fourfold = manager("fourfold", unit_slots=4, max_slots=4, unit_price=2.0)
    assert units(TargetPolicy(""), 0, [work(10, 60.0)], dear, cheap, fourfold) == [4, 2, 1]


def test_target_is_reached_with_the_fewest_units() -> None:
    demand = [work(1_000, 1.0)]
    wanted = [units(TargetPolicy(f"finish_seconds={target}"), 0, demand, manager())[0] for target in (110, 210, 1_010)]
    assert wanted == [10, 5, 1]


def test_unreachable_target_is_missed_by_as_little_as_possible() -> None:
    assert units(TargetPolicy("finish_seconds=1"), 0, [work(8, 60.0)], manager()) == [8]
    assert units(TargetPolicy("finish_seconds=1"), 0, [work(90, 60.0)], manager(max_slots=5)) == [5]


def test_starts_never_exceed_the_maximum() -> None:
    assert units(TargetPolicy(""), 0, [work(100, 60.0)], manager("m", max_slots=3), manager("n", max_slots=1)) == [3, 1]


def test_idle_units_are_kept_for_the_configured_time() -> None:
    policy = TargetPolicy("idle_seconds=100; brief.idle_seconds=0")
    views = [manager(name, units_running=4, idle_seconds=(9.0,) * 4) for name in ("m", "brief")]
    assert units(policy, 0, [], *views) == [4, 0]
    assert [units(policy, now, [], *views)[0] for now in (49, 75, 99, 100)] == [4, 4, 4, 0]


def test_first_slots_is_the_initial_size_for_unmeasured_work() -> None:
    assert units(TargetPolicy(""), 0, [work(20, None)], manager()) == [16]
    assert units(TargetPolicy("first_slots=3"), 0, [work(20, None)], manager()) == [3]


def test_slow_cheap_manager_is_skipped_if_it_would_miss_the_target() -> None:
    slow = manager("slow", startup_seconds=300.0, unit_price=1.0)
    fast = manager("fast", startup_seconds=5.0, unit_price=2.0)
    assert units(TargetPolicy("finish_seconds=100"), 0, [work(90, 10.0)], slow, fast) == [0, 10]
