"""Demand of gangs: as many slots as their members need at once, or none."""

from __future__ import annotations

import pytest

from scaler.needs import Needs, Offers
from scaler.policy.simple import SimplePolicy
from scaler.policy.view import ClusterView, Demand, ManagerView, Wanted
from scaler.protocol.messages import ManagerStatus
from tests.extensions.gangs.cluster import GangCluster

POLICY = "allocate=even_load; scaling=vanilla"


def manager(max_slots: int, unit_slots: int = 1, units: int = 0) -> ManagerView:
    offers = Offers.of({}, unit_slots)
    return ManagerView(
        max_slots=max_slots,
        unit_slots=unit_slots,
        manager_id="m",
        kind="test",
        offers=offers,
        units_running=units,
        idle_seconds=(0.0,) * units,
    )


def demand(at_once: int, per_host: int = 0, needs: Needs | None = None) -> Demand:
    found = needs or Needs()
    return Demand(found, "f", at_once, 0, 0.001, expected_seconds=0.001, at_once=at_once, per_host=per_host)


def wanted(row: Demand, on: ManagerView) -> int:
    return SimplePolicy(POLICY).plan(ClusterView(0.0, (row,), (on,)))["m"].units


def test_a_gang_of_short_tasks_gets_a_slot_for_each_member_at_once() -> None:
    assert wanted(demand(6), manager(10)) == 6
    assert wanted(demand(6), manager(10, units=2)) == 6


@pytest.mark.parametrize(("units", "together"), [(0, 6), (2, 4), (6, 0)])
def test_new_units_for_a_gang_may_start_together(units: int, together: int) -> None:
    view = ClusterView(0.0, (demand(6), demand(0)), (manager(10, units=units),))
    assert SimplePolicy(POLICY).plan(view)["m"].together == together


def test_a_gang_that_can_never_fit_starts_no_unit() -> None:
    assert wanted(demand(11), manager(10)) == 0
    assert wanted(demand(3, per_host=1), manager(8, unit_slots=4)) == 0


@pytest.mark.parametrize(("per_host", "units"), [(0, 2), (1, 6), (2, 3), (9, 2)])
def test_members_per_host_limit_the_members_in_a_unit(per_host: int, units: int) -> None:
    assert wanted(demand(6, per_host), manager(-1, unit_slots=4)) == units


def test_members_with_several_cpus_count_as_their_slots() -> None:
    assert wanted(demand(3, needs=Needs((("cpus", 2.0),))), manager(-1, unit_slots=4)) == 2


def test_the_policy_sees_the_largest_ready_gang() -> None:
    class Seen(SimplePolicy):
        def plan(self, view: ClusterView) -> dict[str, Wanted]:
            self.view = view
            return super().plan(view)

    policy = Seen(POLICY)
    cluster = GangCluster(policy)
    client, name = cluster.client(), cluster.manager("m")
    cluster.say(name, ManagerStatus(cluster.now, []))
    for size in (2, 5, 3):
        cluster.gang(client, size, per_host=2)
    cluster.wait(1.0, alive=[client, name])
    assert [(row.at_once, row.per_host, row.queued) for row in policy.view.demand] == [(5, 2, 10)]
    record = cluster.scaling.managers["m"]
    assert record.wanted.units == 5
