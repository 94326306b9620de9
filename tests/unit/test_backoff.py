"""Delays after consecutive failures."""

from __future__ import annotations

from scaler.backoff import Backoff


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.seconds(failures) for failures in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.seconds(10_000) == 3.0


def test_jitter_changes_a_delay_within_its_share() -> None:
    backoff = Backoff(1.0, 8.0, jitter=0.25)
    assert [backoff.seconds(2, chance) for chance in (0.0, 0.5, 1.0)] == [1.5, 2.0, 2.5]
    assert Backoff(1.0, 8.0, jitter=0.0).seconds(2, 0.9) == 2.0
