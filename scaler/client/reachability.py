"""Warnings about a scheduler that does not answer, and that it answers again: one for all clients of an address.

They are log lines: where logging is not set up, Python prints them on stderr.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

FIRST_SECONDS, SECOND_SECONDS, INTERVAL_SECONDS = 3.0, 30.0, 300.0
"""Time without contact before the first and the second warning, and the interval of all further ones."""
STALE_SECONDS = 5.0
"""After this long without a call of `warn_unreachable`, the clients that waited have given up."""
_log = logging.getLogger(__name__)
_lock = threading.Lock()


@dataclass(slots=True)
class _Lost:
    since: float
    called_at: float
    due_seconds: float = FIRST_SECONDS
    """The next warning comes this long after `since`."""


_lost: dict[str, _Lost] = {}
_reached_at: dict[str, float] = {}


def warn_unreachable(address: str, since: float, now: float, text: str) -> None:
    """Warn that no scheduler answers, if that is due. Called every second while a client waits. text: why, and what
    happens next.
    """
    with _lock:
        lost = _lost.get(address)
        if lost is None or now - lost.called_at > STALE_SECONDS:
            # Another client has just reached it: this one has not tried in vain since before.
            lost = _lost[address] = _Lost(max(since, _reached_at.get(address, since)), now)
        lost.called_at = now
        if now - lost.since < lost.due_seconds:
            return
        is_first = lost.due_seconds == FIRST_SECONDS
        lost.due_seconds = SECOND_SECONDS if is_first else lost.due_seconds + INTERVAL_SECONDS
    check = "Check that it runs, that the address is right, and that no firewall is between"
    _log.warning("scaler: no scheduler answers at %s: tried for %.0f s %s. %s", address, now - lost.since, text, check)


def tell_reached(address: str, now: float) -> None:
    """Tell that the scheduler answers, if a warning said that it does not."""
    with _lock:
        lost = _lost.pop(address, None)
        _reached_at[address] = now
    if lost is not None and lost.due_seconds > FIRST_SECONDS and now - lost.called_at <= STALE_SECONDS:
        _log.warning("scaler: connected to %s, after %.0f s", address, now - lost.since)
