"""Who has caused what units cost, without a cluster."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.costs.ledger import SpendingLedger
from scaler.extensions.costs.shares import MAX_SHARES, OTHERS, CostShares, Payer

RISK, PRICES = Payer("desk", "alice", "risk"), Payer("desk", "bob", "prices")
START = 6_000.0


def test_a_unit_is_split_by_the_slots_that_tasks_take_and_the_rest_is_idle() -> None:
    shares = CostShares()
    shares.add(4.0, 4, {RISK: 2.0, PRICES: 1.0})
    assert shares.by_payer == {RISK: 2.0, PRICES: 1.0}
    assert shares.idle == 1.0
    shares.add(4.0, 4, {})
    assert shares.idle == 5.0


def test_the_smallest_shares_of_a_key_become_one_and_those_of_too_many_keys_have_no_key() -> None:
    shares = CostShares()
    for number in range(MAX_SHARES + 1):
        shares.add(1.0 + number, 1, {Payer("desk", "alice", f"f{number}"): 1.0})
    assert len(shares.by_payer) == MAX_SHARES // 2 + 2
    assert shares.by_payer[Payer("desk", OTHERS, OTHERS)] == sum(range(1, MAX_SHARES // 2 + 1))
    assert Payer("desk", "alice", f"f{MAX_SHARES}") in shares.by_payer
    many = CostShares()
    for number in range(4 * MAX_SHARES):
        many.add(1.0, 1, {Payer(f"key{number}", "c", "f"): 1.0})
    assert len(many.by_payer) <= MAX_SHARES
    assert many.total == 4 * MAX_SHARES


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 100.0),
            st.integers(1, 8),
            st.dictionaries(st.integers(0, 3 * MAX_SHARES).map(lambda n: Payer(str(n % 7), "c", str(n))),
                            st.floats(0.015625, 8.0), max_size=300),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_shares_and_idle_are_what_was_added_and_nothing_is_idle_while_all_slots_are_busy(
    added: list[tuple[float, int, dict[Payer, float]]],
) -> None:
    shares, total = CostShares(), 0.0
    for amount, slots, taken in added:
        idle = shares.idle
        shares.add(amount, slots, taken)
        total += amount
        if sum(taken.values()) >= slots:
            assert shares.idle == pytest.approx(idle, abs=1e-9)
        assert shares.total == pytest.approx(total, abs=1e-6)
        assert len(shares.by_payer) <= MAX_SHARES
        assert min(shares.by_payer.values(), default=0.0) >= 0


def test_a_restarted_scheduler_goes_on_with_the_shares_and_takes_the_rest_as_idle() -> None:
    before = SpendingLedger({}, START)
    amount = before.charge("cloud", "u", 3600.0, START + 3600, price=4.0)
    assert amount == pytest.approx(4.0)
    before.shares.add(3.0, 3, {RISK: 2.0})
    after = SpendingLedger({}, 50.0)
    after.restore(json.loads(json.dumps(before.to_json(START + 3600))), 50.0)
    assert after.shares.by_payer == {RISK: pytest.approx(2.0)}
    assert after.shares.idle == pytest.approx(2.0)
