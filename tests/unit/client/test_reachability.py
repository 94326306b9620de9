"""When a client says that it cannot reach its scheduler."""

from __future__ import annotations

import pytest

from scaler.client.reachability import tell_reached, warn_unreachable


def seconds_said(caplog: pytest.LogCaptureFixture, address: str, times: range) -> list[str]:
    """Return how long was said in each line, when two clients have been out of contact since 0."""
    caplog.clear()
    for now in times:
        warn_unreachable(address, 0.0, now, "(why)")
        warn_unreachable(address, 0.5, now + 0.4, "(why)")
    return [text.partition("tried for ")[2].partition(" s (why)")[0] for text in caplog.messages]


def test_lines_become_rare_and_are_said_once_for_all_clients_of_an_address(caplog: pytest.LogCaptureFixture) -> None:
    assert seconds_said(caplog, "tcp://a:1", range(700)) == ["3", "30", "330", "630"]
    tell_reached("tcp://a:1", 700.0)
    tell_reached("tcp://a:1", 700.0)
    assert caplog.messages[4:] == ["scaler: connected to tcp://a:1, after 700 s"]


def test_a_short_break_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    assert seconds_said(caplog, "tcp://b:1", range(3)) == []
    tell_reached("tcp://b:1", 3.0)
    assert caplog.messages == []
