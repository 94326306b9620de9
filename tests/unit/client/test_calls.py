"""A client's reports about its calls."""

from __future__ import annotations

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
