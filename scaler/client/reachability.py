"""Warns when a client's scheduler stops or resumes answering."""

from __future__ import annotations

import logging

FIRST_SECONDS, SECOND_SECONDS, INTERVAL_SECONDS = 3.0, 30.0, 300.0
"""Seconds without contact before the first and second warnings, and between later warnings."""
_log = logging.getLogger(__name__)


class Contact:
    def __init__(self, address: str, now: float) -> None:
        self._address = address
        self.broken_at: float | None = now
        """Time of the disconnection; None while connected."""
        self._due_seconds = FIRST_SECONDS

    def broken(self, now: float) -> None:
        if self.broken_at is None:
            self.broken_at = now

    def back(self, now: float) -> None:
        """Log that the scheduler answers again, if there was a warning."""
        if self.broken_at is not None and self._due_seconds > FIRST_SECONDS:
            _log.warning("scaler: connected to %s, after %.0f s", self._address, now - self.broken_at)
        self.broken_at, self._due_seconds = None, FIRST_SECONDS

    def warn(self, now: float, text: str) -> None:
        """Warn that no scheduler answers, if due. Called every second during a wait. text: why, and what happens
        next."""
        if self.broken_at is None or (seconds := now - self.broken_at) < self._due_seconds:
            return
        is_first = self._due_seconds == FIRST_SECONDS
        self._due_seconds = SECOND_SECONDS if is_first else self._due_seconds + INTERVAL_SECONDS
        check = "Check that it is running, that the address is right, and that no firewall blocks it"
        _log.warning("scaler: no scheduler answers at %s: tried for %.0f s %s. %s", self._address, seconds, text, check)
