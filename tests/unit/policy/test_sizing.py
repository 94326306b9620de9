"""The number of units that the built-in policies want."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from scaler.needs import Needs, Offers
from scaler.policy.simple import SimplePolicy
from scaler.policy.sizing import Sizing
from scaler.policy.target import TargetPolicy
from scaler.policy.view import ClusterView, Demand, ManagerView, ScalingPolicy, Wanted
from scaler.policy.waterfall import WaterfallPolicy

PLAIN = Needs()
GPU = Needs.of({"gpu": 1})


def manager(manager_id: str = "m", max_slots: int = 8, **changes: object) -> ManagerView:
    return replace(ManagerView(manager_id, "fake", Offers(), 0, max_slots=max_slots, unit_slots=1), **changes)  # type: ignore[arg-type]


def work(queued: int, task_seconds: float | None, running: int = 0, needs: Needs = PLAIN) -> Demand:
    return Demand(needs, "f", queued, running, task_seconds)


def units(policy: ScalingPolicy, now: float, demand: list[Demand], *managers: ManagerView) -> list[int]:
    wanted = policy.plan(ClusterView(now, tuple(demand), managers))
    return [wanted[view.manager_id].units for view in managers]


def test_eight_one_minute_tasks_of_unknown_length_get_eight_units_at_once() -> None:
    assert units(SimplePolicy(""), 0, [work(8, None)], manager()) == [8]


def test_ten_thousand_tiny_tasks_do_not_start_fifty_units_on_a_cluster_of_tiny_tasks() -> None:
    policy = SimplePolicy("")
    tiny = replace(work(10_000, None), expected_seconds=0.001)
    assert units(policy, 0, [tiny], manager(max_slots=50)) == [8]
    started = manager(max_slots=50, units_running=8, startup_seconds=0.5)
    assert units(policy, 0.5, [replace(work(9_900, None, running=8), expected_seconds=0.001)], started) == [8]
    assert units(policy, 1.0, [work(9_000, 0.001, running=8)], started) == [8]


def test_unmeasured_work_is_sized_by_task_count_and_expected_duration() -> None:
    plenty = manager(max_slots=-1)
    assert units(SimplePolicy(""), 0, [work(1_000, None)], plenty) == [91]
    assert units(SimplePolicy(""), 0, [replace(work(1_000, None), expected_seconds=2.0)], plenty) == [364]
    assert units(SimplePolicy(""), 0, [replace(work(1_000, None), expected_seconds=60.0)], plenty) == [1_000]


def test_unmeasured_long_tasks_get_more_slots_over_time() -> None:
    demand = [replace(work(1_000, None, running=8), expected_seconds=0.01, longest_seconds=age) for age in (0, 1, 3)]
    eight = manager(max_slots=-1, units_running=8)
    assert [units(SimplePolicy(""), 0, [row], eight)[0] for row in demand] == [8, 184, 550]


def test_unmeasured_work_starts_no_unit_that_would_be_too_late() -> None:
    laptop, cloud = manager("laptop", units_running=2), manager("cloud", max_slots=100, usual_startup_seconds=45.0)
    laptop = replace(laptop, max_slots=2)
    assert units(SimplePolicy(""), 0, [work(60, None)], laptop, cloud) == [2, 0]
    assert units(SimplePolicy(""), 0, [work(6_000, None)], laptop, cloud) == [2, 100]


LAPTOP = manager("laptop", max_slots=4, units_running=4, startup_seconds=1.0)
CLOUD = manager("cloud", max_slots=100, startup_seconds=5.0)
A_MINUTE = replace(CLOUD, unit_minimum_seconds=60.0)


@pytest.mark.parametrize("task_seconds", [1.0, None])
def test_units_with_an_unprofitable_minimum_charge_leave_work_to_others(task_seconds: float | None) -> None:
    """Forty tasks: ten seconds on the laptop, and about eight with units that are paid for a minute."""
    demand = [replace(work(36, task_seconds, running=4), expected_seconds=1.0)]
    assert units(SimplePolicy(""), 0, demand, LAPTOP, CLOUD)[1] > 0
    assert units(SimplePolicy(""), 0, demand, LAPTOP, A_MINUTE) == [4, 0]
    starting = replace(LAPTOP, units_running=0)
    assert units(SimplePolicy(""), 0, demand, starting, A_MINUTE) == [4, 0], "the laptop may start its units for free"


def test_pending_units_count_before_more_are_started() -> None:
    assert units(SimplePolicy(""), 0, [work(4, 60.0)], manager(units_running=1, pending_ages=(1.0,) * 3)) == [4]


def test_work_that_barely_benefits_starts_no_unit() -> None:
    policy = SimplePolicy("")
    half_way = manager(max_slots=-1, units_running=7, startup_seconds=60.0)
    assert units(policy, 0, [work(440, 1.0, running=7)], half_way) == [7]
    assert units(policy, 0, [work(7_000, 1.0, running=7)], half_way)[0] > 14


def test_work_that_one_manager_cannot_take_goes_to_the_next() -> None:
    local, cloud = manager("local", max_slots=2), manager("cloud", max_slots=-1)
    assert units(SimplePolicy(""), 0, [work(6, 60.0)], local, cloud) == [2, 4]


def test_degraded_manager_is_asked_last_but_still_asked() -> None:
    broken, sound = manager("broken", trouble="no quota"), manager("sound", max_slots=4)
    assert units(SimplePolicy(""), 0, [work(6, 60.0)], broken, sound) == [2, 4]


def test_fixed_managers_count_as_capacity_and_are_not_scaled() -> None:
    fixed = manager("fixed", units_running=4, fixed=True)
    wanted = SimplePolicy("").plan(ClusterView(0, (work(6, 60.0),), (fixed, manager("dynamic"))))
    assert {name: answer.units for name, answer in wanted.items()} == {"dynamic": 2}


def sizes(policy: ScalingPolicy, demand: list[Demand], view: ManagerView, *times: float) -> list[int]:
    """Return the targets of a manager that looks the same at all these times."""
    return [units(policy, now, demand, view)[0] for now in times]


def test_unneeded_units_are_kept_for_a_while() -> None:
    idle = manager(units_running=8, idle_seconds=(60.0,) * 8)
    assert sizes(SimplePolicy(""), [], idle, 0, 2.5, 3.5) == [8, 8, 0]


def test_lost_units_stay_wanted_while_recently_needed() -> None:
    policy = SimplePolicy("")
    assert units(policy, 0, [work(8, 600.0)], manager()) == [8]
    assert units(policy, 1, [work(0, 600.0, running=8)], manager(units_running=8)) == [8]
    left = manager(units_running=6)
    assert sizes(policy, [work(0, 600.0, running=6)], left, 1.5, 3.5, 30) == [8, 8, 6]


@pytest.mark.parametrize(("startup", "longest"), [(0.4, 10.0), (20.0, 60.0)])
def test_recurring_bursts_keep_units_idle_only_while_worthwhile(startup: float, longest: float) -> None:
    policy, here = SimplePolicy(""), partial(manager, startup_seconds=startup)
    idle_seconds, now, reason = 0.0, 0.0, ""
    for _ in range(12):  # each shortage lengthens the cooldown
        assert units(policy, now, [work(0, 50.0, running=8)], here(units_running=8)) == [8]
        idle_seconds = 0.0
        lull = here(units_running=8, idle_seconds=(60.0,) * 8)
        while (answer := policy.plan(ClusterView(now + idle_seconds, (), (lull,)))["m"]).units:
            idle_seconds += 0.5
            reason = answer.reason
        now += idle_seconds + 1.0
        units(policy, now, [work(8, 50.0)], here())
        now += 1.0
    assert longest - 1.0 <= idle_seconds <= longest + 1.0
    assert reason.endswith(f"; units stop after {longest:g} s without work, since work recurs")


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (SimplePolicy, "scaling=vanilla"),
        (SimplePolicy, "scaling=capability"),
        (WaterfallPolicy, "1,plain,-1; 2,gpu,-1"),
        (TargetPolicy, ""),
    ],
)
@pytest.mark.parametrize("task_seconds", [None, 60.0])
def test_gpu_backlog_grows_only_a_manager_with_gpus(
    kind: Callable[[str], ScalingPolicy], content: str, task_seconds: float | None
) -> None:
    policy = kind(content)
    plain, gpu = manager("plain"), manager("gpu", max_slots=3, offers=Offers.of({"gpu": 2}))
    backlog = [work(400, task_seconds, needs=GPU)]
    assert units(policy, 0, backlog, plain, gpu) == [0, 3]
    more = [*backlog, work(1, 60.0)]
    assert units(policy, 1, more, plain, replace(gpu, units_running=3)) == [1, 3]


def test_plain_work_grows_the_least_capable_manager_first() -> None:
    gpu, plain = manager("gpu", offers=Offers.of({"gpu": 2})), manager("plain")
    assert units(SimplePolicy("scaling=capability"), 0, [work(10, 60.0)], gpu, plain) == [2, 8]
    assert units(SimplePolicy("scaling=vanilla"), 0, [work(10, 60.0)], gpu, plain) == [8, 2]


def test_every_answer_has_a_reason() -> None:
    [answer] = (
        SimplePolicy("")
        .plan(ClusterView(0, (work(4, 60.0, needs=GPU),), (manager(offers=Offers.of({"gpu": 1})),)))
        .values()
    )
    assert answer == Wanted(4, "240 s of work in 4 tasks of f() needing gpu=1, 4 s to start a unit", 8)


def test_reason_states_assumptions_about_unmeasured_functions() -> None:
    guess = replace(work(4, None), expected_seconds=50.0)
    assert reasons(SimplePolicy(""), 0, [guess], manager()) == [
        "4 tasks of f(), unmeasured, assuming 50 s each, 4 s to start a unit"
    ]
    both = [replace(work(2, 60.0), function="g"), guess]
    (reason,) = reasons(SimplePolicy(""), 0, both, manager())
    assert reason.startswith("320 s of work in 6 tasks of g() and f(), 4 of them unmeasured, assuming 50 s each")


def passing(busy_slots: float, ended_per_second: float, needs: Needs = PLAIN) -> Demand:
    """Tasks that all arrived and ended between two views."""
    return Demand(needs, "f", 0, 0, busy_slots / ended_per_second, busy_slots, ended_per_second)


def reasons(policy: ScalingPolicy, now: float, demand: list[Demand], *managers: ManagerView) -> list[str]:
    wanted = policy.plan(ClusterView(now, tuple(demand), managers))
    return [wanted[view.manager_id].reason for view in managers]


def test_units_are_kept_for_tasks_that_start_and_end_between_two_views() -> None:
    idle = manager(units_running=8, idle_seconds=(0.01,) * 8)
    assert sizes(SimplePolicy(""), [passing(2.4, 10_000)], idle, 0, 2, 4, 60) == [8, 8, 3, 3]


def test_manager_without_work_explains_why() -> None:
    busy, other = manager("busy", units_running=2), manager("other", units_running=1)
    gpu = manager("gpu", offers=Offers.of({"gpu": 1}))
    last = "; units stop after 3 s without work"
    assert reasons(SimplePolicy(""), 0, [], other, gpu) == [f"no work{last}", "no work"]
    demand = [passing(1.0, 10_000)]
    rate = "about 10,000 tasks of f() per second"
    enough = f"other units suffice for {rate}"
    assert reasons(SimplePolicy(""), 0, demand, busy, other) == [rate, f"{enough}{last}"]
    assert reasons(SimplePolicy(""), 0, [work(2, 60.0, needs=GPU)], other) == [f"no work for its workers{last}"]
    assert reasons(WaterfallPolicy("1,busy,-1"), 0, demand, busy, gpu) == [
        rate,
        "the policy does not include this worker manager; it includes busy",
    ]
    assert reasons(SimplePolicy("scaling=no"), 0, demand, other) == ["scaling=no"]
    assert reasons(SimplePolicy(""), 0, [], replace(gpu, max_slots=0)) == ["its limit is 0 units"]


def test_tasks_filling_a_units_memory_get_one_unit_each() -> None:
    large = Needs.of({"memory": 8e9})
    unit = manager(max_slots=64, unit_slots=4, offers=Offers.of({}, 4, 16 * 2.0**30))
    assert units(SimplePolicy(""), 0, [work(8, 600.0)], unit) == [2]
    assert units(SimplePolicy(""), 0, [work(8, 600.0, needs=large)], unit) == [4]
    assert units(SimplePolicy(""), 0, [work(8, 600.0, needs=Needs.of({"memory": 20e9}))], unit) == [0]


@pytest.mark.parametrize(("tasks", "gets_some"), [(60, False), (400, True)])
def test_late_manager_reports_start_times_and_alternatives(tasks: int, gets_some: bool) -> None:
    laptop = ManagerView("laptop", "test", Offers(), 2, max_slots=2, unit_slots=1, idle_seconds=(0.0, 0.0))
    jobs = ManagerView(
        "cloud", "test", Offers(), 1, max_slots=100, unit_slots=100, idle_seconds=(0.0,), dispatch_seconds=45.0
    )
    work = Demand(Needs(), "f", queued=tasks, running=0, task_seconds=1.0)
    answer = Sizing().plan(ClusterView(0.0, (work,), (laptop, jobs)), {"laptop": 2, "cloud": 1})
    reason = answer["cloud"].reason
    assert "its tasks start after about 45 s" in reason
    assert ("and other slots finish 60 s of work in 60 tasks of f() about as soon" in reason) is not gets_some
    assert ("of them here" in reason) is gets_some
