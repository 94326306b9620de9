"""When a client reports that it cannot reach its scheduler."""

from __future__ import annotations

import pytest

from scaler.client.reachability import Contact


def lost_for(seconds: int) -> Contact:
    """Return the contact of a client that has waited for this many seconds."""
    contact = Contact("tcp://a:1", 0.0)
    for now in range(seconds):
        contact.warn(now, "(why)")
    return contact


def test_repeated_warnings_become_rare(caplog: pytest.LogCaptureFixture) -> None:
    contact = lost_for(700)
    times = [text.partition("tried for ")[2].partition(" s (why)")[0] for text in caplog.messages]
    assert times == ["3", "30", "330", "630"]
    for now in (700.0, 701.0):
        contact.back(now)
    assert caplog.messages[4:] == ["scaler: connected to tcp://a:1, after 700 s"]


def test_short_break_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    lost_for(3).back(3.0)
    assert caplog.messages == []
