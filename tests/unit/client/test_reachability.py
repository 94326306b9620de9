"""When a client reports that it cannot reach its scheduler."""

from __future__ import annotations

import pytest

from scaler.client.reachability import Contact


def seconds_said(caplog: pytest.LogCaptureFixture, contact: Contact, times: range) -> list[str]:
    """Return the duration in each log line of a client out of contact since 0."""
    for now in times:
        contact.warn(now, "(why)")
    return [text.partition("tried for ")[2].partition(" s (why)")[0] for text in caplog.messages]


def test_repeated_lines_become_rare(caplog: pytest.LogCaptureFixture) -> None:
    contact = Contact("tcp://a:1", 0.0)
    assert seconds_said(caplog, contact, range(700)) == ["3", "30", "330", "630"]
    for _ in range(2):
        contact.back(700.0)
    assert caplog.messages[4:] == ["scaler: connected to tcp://a:1, after 700 s"]


def test_short_break_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    contact = Contact("tcp://b:1", 0.0)
    assert seconds_said(caplog, contact, range(3)) == []
    contact.back(3.0)
    assert caplog.messages == []
