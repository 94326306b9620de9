"""When a client reports that it cannot reach its scheduler."""

from __future__ import annotations

import pytest

from scaler.client.reachability import Contact


def seconds_said(caplog: pytest.LogCaptureFixture, address: str, times: range) -> list[str]:
    """Return the duration in each log line, with two clients out of contact since 0."""
    first, second = Contact(address, 0.0), Contact(address, 0.5)
    for now in times:
        first.warn(now, "(why)")
        second.warn(now + 0.4, "(why)")
    return [text.partition("tried for ")[2].partition(" s (why)")[0] for text in caplog.messages]


def test_repeated_lines_become_rare_and_merge_clients_of_one_address(caplog: pytest.LogCaptureFixture) -> None:
    assert seconds_said(caplog, "tcp://a:1", range(700)) == ["3", "30", "330", "630"]
    for _ in range(2):
        Contact("tcp://a:1", 0.0).back(700.0)
    assert caplog.messages[4:] == ["scaler: connected to tcp://a:1, after 700 s"]


def test_short_break_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert seconds_said(caplog, "tcp://b:1", range(3)) == []
    Contact("tcp://b:1", 0.0).back(3.0)
    assert caplog.messages == []
