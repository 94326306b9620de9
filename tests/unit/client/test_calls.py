"""A client's reports about its calls."""

from __future__ import annotations

from scaler.client.calls import ClientCalls
from scaler.protocol.messages import CallReport


def test_reports_a_changed_call_and_once_after_its_end() -> None:
    calls = ClientCalls(1)
    call = calls.begin("map", "work", 10, has_chunks=True)
    assert calls.changed() == [CallReport(1, "map", "work", 10, True)]
    assert calls.changed() == []
    call.sent = 12  # the iterable grew
    call.ended, call.failed = 4, 1
    assert calls.changed() == [CallReport(1, "map", "work", 12, True, 12, 4, 1)]
    calls.tell_again()
    assert calls.changed() == [CallReport(1, "map", "work", 12, True, 12, 4, 1)]
    call.is_over = True
    assert calls.changed() == [CallReport(1, "map", "work", 12, True, 12, 4, 1, True)]
    calls.tell_again()
    assert calls.changed() == []
