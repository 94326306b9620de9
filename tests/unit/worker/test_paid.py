"""The paid time of calls to a service."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.costs.core import SpendingLedger
from scaler.offload.calls import PaidCalls

KEY = (b"task", 1)


def test_cancelled_call_is_charged_until_its_cancellation() -> None:
    paid = PaidCalls(60.0)
    paid.begin(KEY, 0.0)
    for key in (KEY, (b"other", 1)):
        paid.cancel(key)
    paid.settle(80.0)
    assert (paid.seconds(900.0), len(paid)) == (80.0, 0)


def test_charges_a_call_for_its_reported_duration() -> None:
    paid = PaidCalls(5.0)
    paid.begin(KEY, 10.0)
    paid.end(KEY, 10.1, 7.0)
    assert paid.seconds(20.0) == 7.0


@given(
    st.sampled_from([0.0, 60.0]),
    st.lists(st.tuples(st.floats(0, 500), st.floats(0, 500)), max_size=20),
    st.lists(st.floats(0, 1000), max_size=10),
)
def test_total_charge_is_the_sum_over_all_calls_counted_once(
    least: float, calls: list[tuple[float, float]], reports: list[float]
) -> None:
    paid, ledger = PaidCalls(least), SpendingLedger({}, 0.0)
    events: list[tuple[float, int, int]] = [(at, 2, 0) for at in [*reports, 1000.0]]
    for number, (begins, takes) in enumerate(calls):
        events += [(begins, 0, number), (begins + takes, 1, number)]
    ledger.charge_tasks("cloud", "agent", 0.0, 0.0, price=36.0)
    for at, kind, number in sorted(events):
        key = (number.to_bytes(16, "big"), 1)
        if kind == 0:
            paid.begin(key, at)
        elif kind == 1:
            paid.end(key, at)
        else:
            ledger.charge_tasks("cloud", "agent", paid.seconds(at), at, price=36.0)
    due = sum(max(least, takes) for _, takes in calls) * 0.01
    assert abs(ledger.run - due) < 1e-6
    assert abs(ledger.by_manager.get("cloud", 0.0) - due) < 1e-6
