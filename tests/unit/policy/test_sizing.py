"""How many units the built-in policies want."""

from __future__ import annotations

import itertools
from dataclasses import replace

from scaler.needs import Needs, Offers
from scaler.policy.simple import SimplePolicy
from scaler.policy.view import ClusterView, Demand, ManagerView, ScalingPolicy

PLAIN = Needs()
GPU = Needs.of({"gpu": 1})


def manager(manager_id: str = "m", max_slots: int = 8, **changes: object) -> ManagerView:
    return replace(ManagerView(manager_id, "fake", Offers(), max_slots, 1, 0), **changes)  # type: ignore[arg-type]


def work(queued: int, task_seconds: float | None, running: int = 0, needs: Needs = PLAIN) -> Demand:
    return Demand(needs, "f", queued, running, task_seconds)


def units(policy: ScalingPolicy, now: float, demand: list[Demand], *managers: ManagerView) -> list[int]:
    wanted = policy.plan(ClusterView(now, tuple(demand), managers))
    return [wanted[view.manager_id].units for view in managers]


def test_eight_one_minute_tasks_of_unknown_length_get_eight_units_at_once() -> None:
    assert units(SimplePolicy(""), 0, [work(8, None)], manager()) == [8]


def test_eight_one_minute_tasks_get_eight_units_even_where_starting_takes_three_minutes() -> None:
    assert units(SimplePolicy(""), 0, [work(8, 60.0)], manager(startup_seconds=180.0)) == [8]


def test_ten_thousand_tiny_tasks_do_not_start_fifty_units() -> None:
    policy = SimplePolicy("")
    [first] = units(policy, 0, [work(10_000, None)], manager(max_slots=50))
    assert first == 8
    started = manager(max_slots=50, units_running=first, startup_seconds=0.5)
    assert units(policy, 0.5, [work(9_900, None, running=8)], started) == [8]
    assert units(policy, 1.0, [work(9_000, 0.001, running=8)], started) == [8]


def test_long_tasks_of_unknown_length_double_their_slots_while_none_ends() -> None:
    policy = SimplePolicy("")
    demand = [work(1_000, None, running=8)]
    seen = [units(policy, now, demand, manager(max_slots=-1, units_running=8))[0] for now in (0, 2, 4, 6)]
    assert seen == [8, 16, 32, 64]


def test_unknown_work_that_does_not_run_yet_gets_no_more_slots_however_long_starting_takes() -> None:
    policy = SimplePolicy("")
    pending = manager(max_slots=-1, pending_ages=(60.0,) * 8)
    assert [units(policy, now, [work(1_000, None)], pending)[0] for now in (0, 30, 60)] == [8, 8, 8]


def test_pending_units_are_counted_before_more_are_started() -> None:
    assert units(SimplePolicy(""), 0, [work(4, 60.0)], manager(units_running=1, pending_ages=(1.0,) * 3)) == [4]


def test_a_manager_never_gets_more_units_than_its_slots_allow() -> None:
    assert units(SimplePolicy(""), 0, [work(1_000, 60.0)], manager(max_slots=10, unit_slots=4)) == [2]


def test_units_of_several_slots_are_counted_in_units() -> None:
    assert units(SimplePolicy(""), 0, [work(9, 60.0)], manager(max_slots=-1, unit_slots=4)) == [3]


def test_work_that_is_done_before_a_new_unit_could_help_starts_none() -> None:
    slow = manager(max_slots=-1, units_running=4, startup_seconds=60.0)
    assert units(SimplePolicy(""), 0, [work(96, 1.0, running=4)], slow) == [4]


def test_what_one_manager_cannot_take_goes_to_the_next() -> None:
    local, cloud = manager("local", max_slots=2), manager("cloud", max_slots=-1)
    assert units(SimplePolicy(""), 0, [work(6, 60.0)], local, cloud) == [2, 4]


def test_a_manager_in_trouble_is_asked_last_and_still_asked() -> None:
    broken, sound = manager("broken", trouble="no quota"), manager("sound", max_slots=4)
    assert units(SimplePolicy(""), 0, [work(6, 60.0)], broken, sound) == [2, 4]


def test_fixed_managers_count_as_capacity_and_are_left_alone() -> None:
    fixed = manager("fixed", units_running=4, fixed=True)
    wanted = SimplePolicy("").plan(ClusterView(0, (work(6, 60.0),), (fixed, manager("dynamic"))))
    assert {name: answer.units for name, answer in wanted.items()} == {"dynamic": 2}


def test_no_unit_goes_before_it_has_been_idle_for_a_while() -> None:
    policy = SimplePolicy("")
    assert units(policy, 0, [], manager(units_running=4, idle_seconds=(9.0,) * 4)) == [4]
    assert units(policy, 1, [], manager(units_running=4, idle_seconds=(10.0,) * 4)) == [0]


def test_units_that_start_slowly_stay_idle_for_longer() -> None:
    slow = manager(units_running=2, idle_seconds=(100.0, 120.0), startup_seconds=180.0)
    assert units(SimplePolicy(""), 0, [], slow) == [1]


def test_only_idle_units_go_and_only_those_that_the_work_does_not_need() -> None:
    busy = manager(units_running=6, idle_seconds=(60.0,) * 4)
    assert units(SimplePolicy(""), 0, [work(0, 600.0, running=2)], busy) == [2]
    assert units(SimplePolicy(""), 0, [work(2, 600.0, running=2)], busy) == [4]


def test_pending_units_go_first_and_not_at_the_first_lull() -> None:
    policy = SimplePolicy("")
    waiting = manager(units_running=2, idle_seconds=(60.0,) * 2, pending_ages=(1.0,) * 3)
    assert units(policy, 0, [work(0, 1.0, running=1)], waiting) == [5]
    assert units(policy, 2, [work(0, 1.0, running=1)], waiting) == [5]
    assert units(policy, 5, [work(0, 1.0, running=1)], waiting) == [1]


def test_a_burst_goes_up_once_and_down_once() -> None:
    policy = SimplePolicy("")
    sizes: list[int] = []
    running, left, idle_since = 0, 60 * 4.0, 0.0
    for step in range(120):
        now = step / 2
        left = max(0.0, left - running * 0.5)
        tasks = round(left / 4.0 + 0.49)
        busy = min(running, tasks)
        idle_since = now if busy else idle_since
        view = manager(units_running=running, idle_seconds=(now - idle_since,) * (running - busy), startup_seconds=0.5)
        [running] = units(policy, now, [work(tasks - busy, 4.0, running=busy)], view)
        sizes.append(running)
    turns = [after - before for before, after in itertools.pairwise(sizes) if after != before]
    signs = [turn > 0 for turn in turns]
    assert max(sizes) == 8
    assert sizes[-1] == 0
    assert sum(before != after for before, after in itertools.pairwise(signs)) <= 1


def test_a_drip_of_tasks_keeps_its_unit() -> None:
    policy = SimplePolicy("")
    idle = manager(units_running=1, idle_seconds=(4.0,))
    for second in range(0, 60, 5):
        assert units(policy, second, [work(1, 1.0)], idle) == [1]
        assert units(policy, second + 4, [], idle) == [1]


def test_a_gpu_backlog_never_grows_managers_without_a_gpu() -> None:
    for content in ("scaling=vanilla", "scaling=capability"):
        plain, gpu = manager("plain"), manager("gpu", offers=Offers.of({"gpu": 2}))
        assert units(SimplePolicy(content), 0, [work(4, 60.0, needs=GPU)], plain, gpu) == [0, 4]


def test_plain_work_grows_the_least_capable_manager_first_where_capabilities_scale() -> None:
    gpu, plain = manager("gpu", offers=Offers.of({"gpu": 2})), manager("plain")
    assert units(SimplePolicy("scaling=capability"), 0, [work(10, 60.0)], gpu, plain) == [2, 8]
    assert units(SimplePolicy("scaling=vanilla"), 0, [work(10, 60.0)], gpu, plain) == [8, 2]


def test_scarce_capabilities_are_laid_out_before_plain_work_takes_them() -> None:
    gpu = manager("gpu", max_slots=4, units_running=4, offers=Offers.of({"gpu": None}))
    demand = [work(4, 60.0), work(4, 60.0, needs=GPU)]
    assert units(SimplePolicy(""), 0, demand, gpu, manager("plain")) == [4, 4]


def test_work_that_nobody_can_run_wants_nothing() -> None:
    assert units(SimplePolicy(""), 0, [work(4, 60.0, needs=GPU)], manager()) == [0]


def test_every_answer_says_why() -> None:
    [answer] = (
        SimplePolicy("")
        .plan(ClusterView(0, (work(4, 60.0, needs=GPU),), (manager(offers=Offers.of({"gpu": 1})),)))
        .values()
    )
    assert answer.reason == "4 tasks that need gpu=1, about 240 s of work: 4 slots"
