"""What a cluster's functions and clients cost, as monitors are told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scaler.net.identity import Identity
from scaler.protocol.messages import CostsFound, FindCosts, UnitState, UnitStatus
from tests.extensions.costs.priced import Priced
from tests.unit.scheduler.test_elastic import PATIENT, Told, report
from tests.unit.scheduler.test_status import document


def costs(cluster: Priced) -> dict[tuple[str, str], float]:
    rows: list[dict[str, Any]] = document(cluster)["costs"]
    assert sum(row["percent"] for row in rows) == pytest.approx(100.0, abs=0.01)
    return {(row["function"], row["client"]): row["cost"] for row in rows}


def paid_worker(slots: int = 4) -> Priced:
    cluster = Priced(Told(m=1), **PATIENT)
    cluster.manager("m", unit_price=60.0, unit_slots=slots)
    cluster.worker("w", manager_id="m", slots=slots)
    report(cluster, "m", UnitStatus("unit-w", UnitState.RUNNING, slots, 0.0))
    return cluster


def test_running_tasks_pay_for_their_slots_and_the_others_are_idle() -> None:
    cluster = paid_worker()
    cluster.client("desk")
    cluster.submit("desk", 3)
    before = cluster.ledger.shares.idle
    cluster.wait(61.0, alive=["m", "w", "desk"])
    found = costs(cluster)
    assert found["function", "desk"] == pytest.approx(60 / 80, rel=0.05)
    assert found["(idle)", ""] - before == pytest.approx(20 / 80, rel=0.1)
    shares, ledger = cluster.ledger.shares, cluster.ledger
    assert shares.total == pytest.approx(ledger.run, abs=60 / 3600 * 1.1)


def test_a_client_sees_the_costs_of_its_key_and_an_admin_those_of_all() -> None:
    cluster = paid_worker(2)
    for name, identity in (
        ("alice", Identity("a")),
        ("bob", Identity("b")),
        ("twin", Identity("b")),
        ("root", Identity("r", is_admin=True)),
    ):
        cluster.client(name, identity=identity)
    cluster.submit("alice")
    cluster.submit("bob")
    cluster.wait(30.0, alive=["m", "w", "alice", "bob", "twin", "root"])

    def seen(client: str, most: int = 10) -> list[list[Any]]:
        cluster.said.clear()
        cluster.say(client, FindCosts(most))
        [found] = [message for name, message in cluster.said if name == client and isinstance(message, CostsFound)]
        rows: list[list[Any]] = json.loads(found.json)
        return rows

    assert [row[:3] for row in seen("alice")] == [["function", "alice", "a"]]
    assert [row[:3] for row in seen("twin")] == [["function", "bob", "b"]]
    assert {row[2] for row in seen("root")} == {"a", "b"}
    assert len(seen("root", most=1)) == 1
    assert seen("bob")[0][3] > 0
