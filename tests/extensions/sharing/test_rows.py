"""The table of shares: groups, keys, and clients with their weights, limits, and use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scaler.extensions.costs.core import SpendingLedger
from scaler.extensions.sharing.rows import ShareRow
from scaler.net.connection import LOCAL, Identity
from scaler.protocol.messages import Role
from scaler.security.keys import Share
from tests.extensions.sharing.bed import Bed

MONITOR = Identity("page", frozenset({Role.MONITOR}))


def rows(bed: Bed, search: str = "", identity: Identity = MONITOR) -> dict[tuple[str, str, str], ShareRow]:
    turns: Any = bed.state.ready.turns
    found = turns.rows("shares", search, 100, SimpleNamespace(identity=identity), bed.state)
    return {row[:3]: row for row in found}


def ledger_of(bed: Bed) -> SpendingLedger:
    scaling: Any = bed.state.rooms.scaling
    scaling.spending = ledger = SpendingLedger({}, bed.now)
    return ledger


def bed_with_a_group() -> Bed:
    bed = Bed(2, slots=2)
    bed.share(
        group_desk=Share(weight=2.0), a=Share(group="desk"), b=Share(3.0, 1, "desk"), c=Share(), idle=Share(5.0, 7)
    )
    for name in ("a", "b", "c"):
        bed.flood(name, 0.1, key=name)
    bed.run(10.0)
    return bed


def test_rows_name_group_key_and_client_in_this_order() -> None:
    found = rows(bed_with_a_group())
    assert [*found] == [
        ("desk", "", ""),
        ("desk", "a", ""),
        ("desk", "a", "a"),
        ("desk", "b", ""),
        ("desk", "b", "b"),
        ("", "c", ""),
        ("", "c", "c"),
        ("", "idle", ""),
    ]
    assert found["desk", "b", ""][3:6] == (3.0, 1, 1)
    assert found["desk", "a", ""].share == pytest.approx(4 * 2 / 3 * 1 / 4, abs=0.01)
    assert found["", "idle", ""][3:] == (5.0, 7, 0, 0, 0, 0, 0, 0, 0)


def test_group_has_the_sum_of_the_use_of_its_keys() -> None:
    bed = bed_with_a_group()
    found = rows(bed)
    used = {name: flood.used for name, flood in bed.floods.items()}
    assert {row.key: row.total for row in found.values() if row.key and not row.client} == pytest.approx(
        {**used, "idle": 0}, abs=0.5
    )
    assert found["desk", "", ""].total == pytest.approx(found["desk", "a", ""].total + found["desk", "b", ""].total)


@pytest.mark.parametrize("needs", [(), (("cpus", 2.0),)])
def test_running_tasks_count_for_the_slots_that_they_take(needs: tuple[tuple[str, float], ...]) -> None:
    bed = Bed(1, slots=2)
    bed.flood("a", 1000.0, needs=needs)
    bed.run(40.0)
    assert rows(bed)["", "local", ""].total == pytest.approx(80.0, rel=0.02)


def test_key_keeps_its_row_and_total_after_its_last_task() -> None:
    bed = Bed(1, slots=2)
    bed.guest("a")
    ids = [bed.task_id("a")]
    bed.seconds[ids[0]] = 4.0
    bed.submit("a", ids=ids, retries=3)
    bed.hear()
    bed.run(30.0)
    bed.flood("b", 0.1)
    bed.run(1.0)
    assert rows(bed)["", "local", ""].total == pytest.approx(6.0, abs=0.3)
    assert ("", "local", "a") not in rows(bed)


def test_client_sees_the_rows_of_its_own_key_and_of_the_group() -> None:
    bed = bed_with_a_group()
    assert [*rows(bed, identity=Identity("a", frozenset()))] == [
        ("desk", "", ""),
        ("desk", "a", ""),
        ("desk", "a", "a"),
    ]
    assert not rows(bed, identity=Identity("nobody", frozenset()))


def test_monitor_without_a_client_key_sees_all_rows() -> None:
    bed = bed_with_a_group()
    assert rows(bed, identity=LOCAL) == rows(bed)


def test_search_finds_the_clients_of_a_key_and_the_keys_of_a_group() -> None:
    bed = bed_with_a_group()
    assert [*rows(bed, "key a")] == [("desk", "a", ""), ("desk", "a", "a")]
    assert len(rows(bed, "desk")) == 5


def test_cost_of_units_is_divided_by_the_slots_used_while_it_arose() -> None:
    bed = bed_with_a_group()
    ledger = ledger_of(bed)
    for cost in (4.0, 8.0):
        ledger.run = cost
        bed.run(6.0)
    found = rows(bed)
    costs = {name: found[name].cost for name in found if name[1] and not name[2]}
    assert sum(costs.values()) == pytest.approx(found["desk", "", ""].cost + found["", "c", ""].cost) == 8.0
    assert found["desk", "", ""].cost == pytest.approx(8.0 * 2 / 3, rel=0.1)


def test_nobody_pays_for_time_before_it_used_slots() -> None:
    bed = Bed(1, slots=2)
    ledger = ledger_of(bed)
    bed.guest("a")
    bed.run(10.0)
    ledger.run = 50.0
    bed.run(10.0)
    bed.run(1.0)
    bed.flood("b", 0.1)
    ledger.run = 52.0
    bed.run(6.0)
    assert rows(bed)["", "local", "b"].cost == pytest.approx(2.0)


def test_cost_of_an_earlier_run_is_not_divided_again() -> None:
    bed = Bed(1, slots=2)
    ledger_of(bed).run = 1000.0
    bed.flood("a", 0.1)
    bed.run(20.0)
    assert rows(bed)["", "local", "a"].cost == 0


def test_client_with_a_session_has_its_present_name() -> None:
    bed = Bed(1)
    names = []
    bed.client("s", session="nightly", identity=Identity("alice"))
    bed.submit("s")
    for change in (lambda: None, lambda: bed.leave("s"), lambda: bed.client("s", session="nightly")):
        change()
        [name] = [client for _, key, client in rows(bed) if client]
        names.append(name.partition("(")[2])
    assert names[0] == names[2] != names[1] == "detached)"
