"""The simulated comparison of shares: figures of one workload per scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.all import README
from benchmarks.sharing import PARTS, markers
from benchmarks.simulated_sharing import SLOTS, WORKLOADS, User, ideal, simulate

WEIGHTS = WORKLOADS[2]


def test_scaler_shares_slots_by_weight_and_fifo_does_not() -> None:
    workload = replace(WEIGHTS, seconds=20)
    scaler, fifo = simulate("Scaler", workload), simulate("FIFO", workload)
    assert scaler.error < 0.02
    assert scaler.utilization > 0.98
    assert fifo.error > 0.15
    assert simulate("Scaler", workload) == scaler


@pytest.mark.parametrize("scheduler", ["Slurm", "YARN"])
def test_other_fair_schedulers_share_by_weight(scheduler: str) -> None:
    outcome = simulate(scheduler, replace(WEIGHTS, seconds=20))
    assert outcome.error < 0.02
    assert outcome.utilization == pytest.approx(1.0)


@pytest.mark.parametrize("scheduler", ["Slurm", "YARN"])
def test_late_client_has_its_share_at_once_except_in_a_fifo(scheduler: str) -> None:
    late = User("late", 0.3, begins=10.0)
    workload = replace(WEIGHTS, users=(User("first", 0.5), late), seconds=20, late=late)
    assert simulate("FIFO", workload).late_seconds == (None, None)
    assert simulate(scheduler, workload).late_seconds[0] == 1.0


def test_ideal_divides_what_a_maximum_leaves_by_weight() -> None:
    users = (User("a", 1.0, maximum=2), User("b", 1.0, weight=2.0), User("c", 1.0, begins=5.0))
    assert ideal(users, 0.0) == {"a": 2 / SLOTS, "b": 1 - 2 / SLOTS}
    left = 1 - 2 / SLOTS
    assert ideal(users, 5.0) == pytest.approx({"a": 2 / SLOTS, "b": left * 2 / 3, "c": left / 3})


def test_members_of_a_group_divide_its_share() -> None:
    users = (User("a", 1.0, group="g"), User("b", 1.0, weight=3.0, group="g"), User("c", 1.0))
    assert ideal(users, 0.0) == pytest.approx({"a": 1 / 8, "b": 3 / 8, "c": 1 / 2})


@pytest.mark.parametrize("part", PARTS)
def test_readme_has_the_markers_that_write_needs(part: str) -> None:
    page = README.read_text()
    assert [page.count(marker) for marker in markers(part)] == [1, 1]
