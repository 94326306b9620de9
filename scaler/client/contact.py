"""Tells the user that a scheduler cannot be reached, and that it can again: clients of one address say it once.

By warnings of a logger: where logging is not set up, Python prints them on stderr.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

SAY_SECONDS = (3.0, 30.0)
"""A line comes after these times without contact, while something waits for the scheduler."""
SAY_AGAIN_SECONDS = 300.0
"""And this often after that."""
STALE_SECONDS = 5.0
"""When no client has asked for this long, those that waited have given up."""
_log = logging.getLogger(__name__)
_lock = threading.Lock()


@dataclass(slots=True)
class _Lost:
    since: float
    seen: float
    said: int = 0


_lost: dict[str, _Lost] = {}


def say_lost(address: str, since: float, now: float, text: str) -> None:
    """Say that no scheduler answers, if it is time to. Call every second. text: why, and what comes of it."""
    with _lock:
        lost = _lost.get(address)
        if lost is None or now - lost.seen > STALE_SECONDS:
            lost = _lost[address] = _Lost(since, now)
        lost.seen = now
        more = lost.said - len(SAY_SECONDS) + 1
        due = SAY_SECONDS[lost.said] if more <= 0 else SAY_SECONDS[-1] + more * SAY_AGAIN_SECONDS
        if now - lost.since < due:
            return
        lost.said += 1
    check = "Check that it runs, that the address is right, and that no firewall is between"
    _log.warning("scaler: no scheduler answers at %s: tried for %.0f s %s. %s", address, now - lost.since, text, check)


def say_found(address: str, now: float) -> None:
    """Say that a scheduler answers, if it was said that it does not."""
    with _lock:
        lost = _lost.pop(address, None)
    if lost is not None and lost.said and now - lost.seen <= STALE_SECONDS:
        _log.warning("scaler: connected to %s, after %.0f s", address, now - lost.since)
