"""The ladder of the policy `waterfall_v1`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler.errors import UsageError
from scaler.needs import Needs, Offers
from scaler.policy.load import load_policy
from scaler.policy.view import ClusterView, Demand, ManagerView
from scaler.policy.waterfall import WaterfallPolicy

LADDER = """
    priority,worker_manager_id,max_task_concurrency  # filled from the smallest priority on
    2, cloud, -1
    1, local, 4
"""


def tier(
    manager_id: str, running: int = 0, idle: int = 0, offers: Offers | None = None, max_slots: int = 100
) -> ManagerView:
    return ManagerView(
        manager_id, "fake", offers or Offers(), running, max_slots=max_slots, unit_slots=1, idle_seconds=(60.0,) * idle
    )


def units(
    policy: WaterfallPolicy,
    tasks: int,
    *managers: ManagerView,
    needs: Needs | None = None,
    running: int = 0,
    now: float = 0.0,
) -> list[int]:
    demand = (Demand(needs or Needs(), "f", tasks, running, 60.0),) if tasks + running else ()
    wanted = policy.plan(ClusterView(now, demand, managers))
    return [wanted[view.manager_id].units for view in managers]


def test_limits_count_slots_and_answers_count_units() -> None:
    local = replace(tier("local"), unit_slots=4)
    assert units(WaterfallPolicy("1,local,11; 2,cloud,-1"), 12, local, tier("cloud")) == [2, 4]


def later(policy: WaterfallPolicy, *managers: ManagerView, running: int = 0) -> list[int]:
    """The wanted units after a minute in which this many tasks ran."""
    units(policy, 0, *managers, running=running)
    return units(policy, 0, *managers, running=running, now=60.0)


def test_three_managers_fill_and_drain_in_order() -> None:
    ladder = "1,a,2; 2,b,2; 3,c,2"
    steps = [tier(name) for name in "abc"]
    assert [units(WaterfallPolicy(ladder), tasks, *steps) for tasks in (1, 3, 5, 12)] == [
        [1, 0, 0],
        [2, 1, 0],
        [2, 2, 1],
        [2, 2, 2],
    ]
    full = [tier(name, running=2, idle=2) for name in "abc"]
    assert [later(WaterfallPolicy(ladder), *full, running=tasks) for tasks in (5, 3, 1)] == [
        [2, 2, 1],
        [2, 1, 0],
        [1, 0, 0],
    ]


def test_degraded_manager_is_skipped_but_still_asked() -> None:
    local = replace(tier("local"), trouble="no memory")
    assert units(WaterfallPolicy(LADDER), 6, tier("cloud"), local) == [6, 0]
    assert units(WaterfallPolicy(LADDER), 6, tier("cloud", max_slots=4), local) == [4, 2]


def test_manager_takes_work_that_earlier_managers_cannot_run() -> None:
    cloud = tier("cloud", offers=Offers.of({"gpu": 1}))
    assert units(WaterfallPolicy(LADDER), 5, tier("local"), cloud, needs=Needs.of({"gpu": 1})) == [0, 5]


def test_unlisted_managers_start_nothing_and_drain_first() -> None:
    assert units(WaterfallPolicy("1,local,4"), 10, tier("local"), tier("other")) == [4, 0]
    assert later(WaterfallPolicy("1,local,4"), tier("local", 2, 0), tier("other", 2, 2), running=2) == [2, 0]


def test_unlisted_manager_names_the_listed_managers_in_its_reason() -> None:
    demand = (Demand(Needs(), "f", 5, 0, 60.0),)
    wanted = WaterfallPolicy("1,lokal,4; 2,cloud,8").plan(ClusterView(0.0, demand, (tier("local"), tier("cloud"))))
    assert wanted["local"].reason == "the policy does not include this worker manager; it includes lokal, cloud"
    assert wanted["cloud"].units == 5


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "policy_content is empty: waterfall_v1 needs a line"),
        ("1,local", "'1,local': write priority,worker_manager_id,max_task_concurrency, such as 1,local,8"),
        ("one,local,8", "priority 'one' is not a whole number"),
        ("1,local,many", "max_task_concurrency 'many' is not a whole number"),
        ("1,local,0", "max_task_concurrency must be at least 1, or -1 for no limit"),
        ("1,local,8; 2,local,8", "worker manager 'local' is listed twice"),
    ],
)
def test_bad_content_error_quotes_the_faulty_entry(content: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        load_policy("waterfall_v1", content)
