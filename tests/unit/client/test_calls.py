"""A client's reports about its calls."""

from __future__ import annotations

import pytest

from scaler.client.calls import MAX_REPORTS, ClientCalls
from scaler.protocol.messages import CallReport


def test_reports_a_call_until_its_end() -> None:
    calls = ClientCalls(1)
    call = calls.begin("map", "work", 10, has_chunks=True)
    assert calls.reports() == [CallReport(1, "map", "work", 10, True)]
    call.sent = 12  # the iterable grew
    call.ended, call.failed = 4, 1
    for _ in range(2):
        assert calls.reports() == [CallReport(1, "map", "work", 12, True, 12, 4, 1)]
    call.is_over = True
    assert calls.reports() == [CallReport(1, "map", "work", 12, True, 12, 4, 1, True)]
    assert calls.reports() == []


def test_reports_many_calls_in_turn() -> None:
    calls = ClientCalls(0)
    for _ in range(MAX_REPORTS + 1):
        calls.begin("map", "work", 10, has_chunks=True)
    numbers = [report.number for _ in range(2) for report in calls.reports()]
    assert numbers[: MAX_REPORTS + 2] == [*range(MAX_REPORTS + 1), 0]


def test_reports_the_beginning_of_a_call_at_once_but_only_one_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], []
    monkeypatch.setattr("scaler.client.calls.time.monotonic", lambda: now[0])
    calls = ClientCalls(1, lambda: asked.append(now[0]))
    for each in (100.0, 100.1, 100.9, 101.0, 101.5, 110.0):
        now[0] = each
        calls.begin("map", "work", 10, has_chunks=True)
    assert asked == [100.0, 101.0, 110.0]
