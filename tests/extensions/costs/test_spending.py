"""Costs of units and the remaining budget, without a cluster."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from scaler.extensions.costs import parse_spend_limit
from scaler.extensions.costs.core import SpendingLedger, cost_of_work, task_charge
from scaler.needs import Needs, Offers
from scaler.policy.view import ClusterView, Demand, ManagerView, Wanted

START = 6_000.0


def ledger(text: str = "") -> SpendingLedger:
    return SpendingLedger(parse_spend_limit(text), START)


def manager(name: str = "cloud", running: int = 0, **fields: Any) -> ManagerView:
    return ManagerView(name, "test", Offers(), **{"max_slots": -1, "unit_slots": 1, "units_running": running, **fields})


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("5", "'5' has no period"),
        ("five/hour", "'five/hour' has no amount"),
        ("5/week", "'5/week' has no period"),
        ("5/hour, 0/day", "'0/day' must be above 0"),
        ("nan/hour", "'nan/hour' must be above 0"),
        ("5/hour, 6/hour", "'6/hour' duplicates the limit per hour"),
    ],
)
def test_invalid_limits_are_quoted(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_spend_limit(text)


def test_unit_is_charged_once_from_start_to_end() -> None:
    books = ledger()
    for age in (0.0, 1.0, 600.0, 600.0, 1800.0):
        books.charge_unit("cloud", "u", age, START + age, price=2.0)
    books.charge_unit("cloud", "u", 1800.0, START + 9000.0, price=2.0)
    assert books.run == pytest.approx(1.0)
    assert books.by_manager == {"cloud": pytest.approx(1.0)}


def test_short_unit_costs_its_minimum_charge() -> None:
    books = ledger()
    books.charge_unit("cloud", "u", 5.0, START + 5.0, price=60.0, minimum_seconds=60.0)
    assert books.run == pytest.approx(1.0)
    books.charge_unit("cloud", "u", 90.0, START + 90.0, price=60.0, minimum_seconds=60.0)
    assert books.run == pytest.approx(1.5)


def test_limits_per_hour_and_day_use_a_sliding_window_unlike_the_limit_per_run() -> None:
    books = ledger()
    for minute in range(3 * 60):
        books.charge_unit("cloud", "u", 60.0 * (minute + 1), START + 60.0 * (minute + 1), price=1.0)
    now = START + 3 * 3600
    assert books.spent("hour", now) == pytest.approx(1.0, abs=0.04)
    assert books.spent("day", now) == pytest.approx(3.0)
    assert books.spent("hour", now + 3700) == 0.0
    assert books.spent("day", now + 25 * 3600) == 0.0
    assert books.spent("run", now + 25 * 3600) == pytest.approx(3.0)


def test_each_crossing_of_a_threshold_is_reported_once() -> None:
    books = ledger("1/hour")
    said = []
    for second in range(0, 3660, 60):
        books.charge_unit("cloud", "u", second, START + second, price=1.0)
        said += books.check(START + second)
    assert said == [
        "0.80 of 1.00 per hour has been spent; at the limit, only free units continue",
        "1.00 of 1.00 per hour has been spent: paid units drain, and only free units start",
    ]
    assert books.check(START + 3660 + 900) == [], "three quarters are still spent"
    books.charge_unit("cloud", "w", 900.0, START + 3660 + 900, price=1.2)
    assert books.check(START + 3660 + 900) == [], "a repeated warning is not reported"
    assert books.check(START + 4 * 3660) == []
    assert not books.reached
    books.charge_unit("cloud", "v", 3600.0, START + 4 * 3660, price=0.8)
    assert len(books.check(START + 4 * 3660)) == 1


def test_only_free_units_are_wanted_at_a_limit_with_its_end_reported() -> None:
    books = ledger("1/hour, 9/run")
    books.charge_unit("cloud", "u", 3600.0, START + 3600, price=1.0)
    books.check(START + 3600)
    now, here = START + 3600, [manager(running=3, unit_price=1.0), manager("own", running=1)]
    view = books.affordable(ClusterView(now, (), tuple(here)))
    assert [each.max_units for each in view.managers] == [0, None]
    answer, reasons = books.limited(here, {"cloud": Wanted(5, "work"), "own": Wanted(4, "work")}, now)
    why = "spend_limit: 1.00 of 1.00 per hour has been spent; paid units start again in about 61 min"
    assert answer == {"cloud": Wanted(0, why, 0), "own": Wanted(4, "work")}
    assert reasons == {"cloud": why}
    assert books.limited(here, {}, now)[0] == {"cloud": Wanted(0, why, 0)}, "also if the policy leaves it alone"
    books.check(now + 3720)
    assert books.limited(here, {"cloud": Wanted(5, "work")}, now + 3720)[0]["cloud"].units == 5


def test_unit_starts_only_if_the_budget_covers_its_minimum_charge() -> None:
    books = ledger("1/run")
    here = [manager("dear", unit_price=6.0, unit_minimum_seconds=120.0), manager("cheap", running=2, unit_price=6.0)]
    answer, reasons = books.limited(here, {each.manager_id: Wanted(50, "work") for each in here}, START)
    # 1 - 2 x 0.1 remain: four more at 0.2 each, or eight at 0.1. At equal prices, the first manager gets all.
    assert {name: each.units for name, each in answer.items()} == {"dear": 4, "cheap": 2}
    assert "another unit would exceed it" in reasons["cheap"]
    assert [each.max_units for each in books.affordable(ClusterView(START, (), tuple(here))).managers] == [4, 10]


def test_forecast_is_the_cost_on_existing_or_cheapest_units() -> None:
    work = (Demand(Needs(), "f", queued=30, running=4, task_seconds=100.0), Demand(Needs(), "g", 4, 0, None))
    paid, own = manager(running=1, unit_price=2.0), manager("own", running=1)
    assert cost_of_work(work, [paid, own]) == pytest.approx(3600 / 3600 * 1.0)
    assert cost_of_work(work, [manager(unit_price=2.0, unit_slots=4)]) == pytest.approx(0.5)
    assert cost_of_work(work[1:], [paid]) is None
    assert cost_of_work((), [paid]) == 0.0


def test_restarted_scheduler_keeps_spending_and_charges_the_gap() -> None:
    before = ledger("5/hour")
    before.charge_unit("cloud", "u", 3600.0, START + 3600, price=1.0)
    before.queued("cloud", "q", 50.0)
    after = SpendingLedger({"hour": 5.0}, 50.0)
    after.restore(json.loads(json.dumps(before.to_json(START + 3600))), 50.0 - 600)
    assert after.run == pytest.approx(1.0)
    assert after.spent("hour", 50.0) == pytest.approx(1.0)
    after.charge_unit("cloud", "u", 4200.0, 50.0, price=1.0)
    after.charge_unit("cloud", "q", 110.0, 50.0, price=60.0)
    assert after.run == pytest.approx(1.0 + 600 / 3600 + 1.0)
    with pytest.raises(ValueError, match="not a spending record"):
        after.restore({"age": 1.0}, 50.0)


def test_predicts_when_a_limit_is_reached_at_the_current_cost() -> None:
    books = ledger("1/hour, 3/run")
    assert books.next_limit(START) == ("", math.inf), "nothing is spent now"
    books.per_hour = 2.0
    assert books.next_limit(START)[0] == "hour"
    assert books.next_limit(START)[1] == pytest.approx(1800.0)
    books.charge_unit("cloud", "u", 2700.0, START, price=0.0001)
    books.per_hour = 0.9
    assert books.next_limit(START)[0] == "run", "an hour never costs 1"
    assert books.next_limit(START)[1] == pytest.approx(3600 * 3 / 0.9, rel=0.01)
    books.per_hour = 60.0
    books.charge_unit("cloud", "v", 60.0, START + 60, price=60.0)
    assert books.next_limit(START + 60) == ("hour", 0.0)


def test_unstarted_tasks_are_reserved_and_task_priced_units_cost_nothing() -> None:
    books = ledger("1/run")
    jobs: dict[str, Any] = {"unit_slots": 100, "unit_price": 6.0, "unit_minimum_seconds": 120.0, "charges_tasks": True}
    assert books.budget([manager(running=1, **jobs)], START) == pytest.approx(1.0)
    # Three will cost 0.2 each, and the current minute is worth 0.1.
    assert books.budget([manager(running=1, tasks=4, tasks_begun=1, **jobs)], START) == pytest.approx(0.3)
    assert task_charge(manager(**jobs), 3.0) == pytest.approx(0.2)
    assert task_charge(manager(**jobs), 600.0) == pytest.approx(1.0)
    assert task_charge(manager(unit_price=6.0), 600.0) == 0.0
