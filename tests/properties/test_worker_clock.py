"""The estimated offset of the scheduler's clock, for any clocks and network."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler.worker.agent.core import MAX_DRIFT, ClockOffset

OFFSETS = st.floats(-1e7, 1e7)
DRIFTS = st.floats(-MAX_DRIFT / 2, MAX_DRIFT / 2)
DELAYS = st.floats(1e-5, 5.0)
EXCHANGES = st.lists(st.tuples(st.floats(0.0, 10.0), DELAYS, DELAYS), min_size=1, max_size=30)
ROUNDING = 1e-7
"""Rounding error in sums with such offsets."""


@given(OFFSETS, DRIFTS, EXCHANGES)
def test_offset_is_within_the_error_of_the_estimate(
    offset: float, drift: float, exchanges: list[tuple[float, float, float]]
) -> None:
    clock = ClockOffset()
    now = 1000.0
    fastest = float("inf")
    for pause, there, back in exchanges:
        sent_at = now + pause
        now = sent_at + there + back
        truth = offset + drift * now
        clock.observe(sent_at, sent_at + there + offset + drift * (sent_at + there), now)
        fastest = min(fastest + 2 * MAX_DRIFT * (pause + there + back), there + back + MAX_DRIFT * (there + back))
        assert abs(clock.seconds - truth) <= clock.error_seconds + MAX_DRIFT * (there + back) + ROUNDING
        assert 0 < clock.error_seconds <= fastest + ROUNDING


@given(OFFSETS, EXCHANGES)
def test_estimate_stays_until_contradicted(offset: float, exchanges: list[tuple[float, float, float]]) -> None:
    clock = ClockOffset()
    clock.observe(0.0, offset + 0.0005, 0.001)
    first = clock.seconds
    for pause, _, _ in exchanges:
        sent_at = 1.0 + pause
        clock.observe(sent_at, sent_at + offset + 0.0005, sent_at + 0.001)
    assert clock.seconds == first


@given(OFFSETS, st.floats(60.0, 1e6), EXCHANGES)
def test_detects_a_stopped_clock_at_the_next_exchange(
    offset: float, stopped: float, exchanges: list[tuple[float, float, float]]
) -> None:
    clock = ClockOffset()
    for place, (_, there, back) in enumerate(exchanges):
        sent_at = 100.0 * place
        clock.observe(sent_at, sent_at + offset + there, sent_at + there + back)
    sent_at = 100.0 * len(exchanges)
    clock.observe(sent_at, sent_at + offset + stopped + 0.001, sent_at + 0.002)
    assert abs(clock.seconds - (offset + stopped)) <= 0.001 + ROUNDING
