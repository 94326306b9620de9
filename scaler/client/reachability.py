"""Warnings that a scheduler stops or resumes answering, shared by all clients of an address."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

FIRST_SECONDS, SECOND_SECONDS, INTERVAL_SECONDS = 3.0, 30.0, 300.0
"""Time without contact before the first and second warning, and interval of later warnings, seconds."""
STALE_SECONDS = 5.0
"""Seconds without a call of `Contact.warn` after which the waiting clients have given up."""
_log = logging.getLogger(__name__)
_lock = threading.Lock()


@dataclass(slots=True)
class _Lost:
    since: float
    called_at: float
    due_seconds: float = FIRST_SECONDS


_lost: dict[str, _Lost] = {}
_reached_at: dict[str, float] = {}


class Contact:
    def __init__(self, address: str, now: float) -> None:
        self._address = address
        self.broken_at: float | None = now
        """None while connected."""

    def broken(self, now: float) -> None:
        if self.broken_at is None:
            self.broken_at = now

    def back(self, now: float) -> None:
        """Log that the scheduler answers, if a warning said that it does not."""
        self.broken_at = None
        with _lock:
            lost = _lost.pop(self._address, None)
            _reached_at[self._address] = now
        if lost is not None and lost.due_seconds > FIRST_SECONDS and now - lost.called_at <= STALE_SECONDS:
            _log.warning("scaler: connected to %s, after %.0f s", self._address, now - lost.since)

    def warn(self, now: float, text: str) -> None:
        """Warn that no scheduler answers, if due. Called every second during a wait. text: why, and what happens
        next."""
        address, since = self._address, self.broken_at
        if since is None:
            return
        with _lock:
            lost = _lost.get(address)
            if lost is None or now - lost.called_at > STALE_SECONDS:
                # Another client has just reached the scheduler, so the time without contact starts there.
                lost = _lost[address] = _Lost(max(since, _reached_at.get(address, since)), now)
            lost.called_at = now
            if now - lost.since < lost.due_seconds:
                return
            is_first = lost.due_seconds == FIRST_SECONDS
            lost.due_seconds = SECOND_SECONDS if is_first else lost.due_seconds + INTERVAL_SECONDS
        check = "Check that it is running, that the address is right, and that no firewall blocks it"
        _log.warning(
            "scaler: no scheduler answers at %s: tried for %.0f s %s. %s", address, now - lost.since, text, check
        )
