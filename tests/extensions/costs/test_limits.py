"""A spend limit in the scheduler: the managers' targets, and the users' warnings."""

from __future__ import annotations

from scaler.extensions.explain.core import explain
from scaler.protocol.messages import UnitState, UnitStatus, WorkerHeartbeat
from scaler.scheduler.core.changes import Incident
from tests.extensions.costs.priced import Priced
from tests.extensions.scaling.test_elastic import PATIENT, Told, desired, drained, report

QUIET = (1.0, 0.0, 0, 0, 0.0)
"""A heartbeat of an idle worker."""


def unit(name: str, age_seconds: float) -> UnitStatus:
    return UnitStatus(f"unit-{name}", UnitState.RUNNING, 1, age_seconds)


def pass_tenths(cluster: Priced, tenths: int) -> None:
    cluster.wait(6.0 * tenths, alive=["m", "own", "w", "client"])


def warnings(cluster: Priced) -> list[str]:
    facts = cluster.take_facts()
    return [fact.text for fact in facts if isinstance(fact, Incident) and fact.kind == "spend_limit"]


def test_at_the_limit_paid_units_drain_free_ones_continue_and_users_are_warned_twice() -> None:
    cluster = Priced(Told(m=1, own=2), spend_limit="0.5/run", **PATIENT)
    cluster.manager("m", unit_price=60.0)
    cluster.manager("own")
    cluster.worker("w", manager_id="m")
    report(cluster, "m", unit("w", 0.0))
    report(cluster, "own")
    pass_tenths(cluster, 3)
    assert warnings(cluster) == []
    pass_tenths(cluster, 1)
    assert [text[:32] for text in warnings(cluster)] == ["0.400 of 0.500 per run has been "]
    assert drained(cluster) == []
    pass_tenths(cluster, 2)
    assert [text[:32] for text in warnings(cluster)] == ["0.500 of 0.500 per run has been "]
    assert drained(cluster) == ["w"]
    last = desired(cluster)[-1]
    assert (last.units, last.drained) == (0, ["unit-w"])
    assert "spend_limit: 0.500 of 0.500 per run has been spent; raise the limit to continue" in last.reason
    assert desired(cluster, "own")[-1].units == 2


def test_explanation_of_a_task_names_the_spend_limit() -> None:
    cluster = Priced(Told(m=2), spend_limit="0.01/hour", **PATIENT)
    cluster.manager("m", unit_price=6.0)
    report(cluster, "m")
    cluster.client()
    (task,) = cluster.submit("client")
    cluster.wait(2.0, alive=["m", "client"])
    assert desired(cluster)[-1].units == 0
    assert explain(cluster.state, task, cluster.now) == (
        "worker manager m starts no more units: spend_limit: 0.0000 of 0.0100 per hour has been spent, "
        "and another unit would exceed it"
    )


def test_hung_policy_stops_further_spending() -> None:
    cluster = Priced(Told(m=1), spend_limit="0.1/run", **PATIENT)
    cluster.manager("m", unit_price=60.0)
    cluster.worker("w", manager_id="m")
    report(cluster, "m", unit("w", 0.0))
    cluster.wait(2.0, alive=["m", "w"])
    assert desired(cluster)[-1].units == 1
    cluster.policy = None
    pass_tenths(cluster, 2)
    assert desired(cluster)[-1].units == 0
    assert drained(cluster) == ["w"]


def test_tasks_with_unreported_costs_count_against_the_limit() -> None:
    cluster = Priced(Told(m=1), spend_limit="3.5/run", **PATIENT)
    cluster.manager("m", unit_price=60.0, unit_minimum_seconds=60.0, unit_slots=8, charges_tasks=True)
    cluster.worker("w", manager_id="m", slots=8)
    report(cluster, "m", unit("w", 0.0))
    cluster.say("w", WorkerHeartbeat(*QUIET))
    cluster.client()
    cluster.submit("client", 6)
    alive = ["m", "w", "client"]
    cluster.wait(2.0, alive)
    paid = cluster.on("w")
    assert len(paid) == 3
    cluster.finish("w", *paid)
    cluster.wait(2.0, alive)
    assert cluster.on("w") == [], "each has cost a minute that no heartbeat has reported"
    cluster.say("w", WorkerHeartbeat(*QUIET, paid_seconds=180.0))
    cluster.wait(2.0, alive)
    assert cluster.ledger.run == 3.0
    assert cluster.on("w") == []


def test_limit_takes_precedence_over_warm_capacity_and_is_the_reason() -> None:
    cluster = Priced(Told(m=0), spend_limit="2.5/run", **PATIENT)
    cluster.manager("m", unit_price=60.0, minimum_units=2, warm_units=3, buffer_units=1)
    cluster.worker("w", manager_id="m")
    report(cluster, "m", unit("w", 0.0))
    pass_tenths(cluster, 1)
    assert [(each.units, each.reason) for each in desired(cluster)] == [
        (2, "0 are wanted; kept: minimum_units=2, 120.00 per hour")
    ]
    assert cluster.kept_per_hour() == 120.0
    pass_tenths(cluster, 25)
    last = desired(cluster)[-1]
    assert (last.units, last.drained) == (0, ["unit-w"])
    assert "spend_limit: 2.50 of 2.50 per run has been spent" in last.reason
    assert cluster.kept_per_hour() == 0.0
