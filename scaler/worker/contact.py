"""How long the scheduler has not been heard, and what follows from it. Pure; the times are those of docs/design.md."""

from __future__ import annotations

from enum import IntEnum

START_NOTHING_AT = 2 / 3
KILL_ONCE_AT = 5 / 6
STALL_SECONDS = 1.0
"""An agent that did not look at the clock for so long hears what has arrived before it judges the silence."""


class Silence(IntEnum):
    """What a worker does, the longer it hears nothing."""

    NONE = 0
    START_NOTHING = 1
    """Its queued tasks may soon be given to others."""
    KILL_ONCE = 2
    """Running tasks that may not run twice are ended before the scheduler gives them up."""
    DEATH = 3
    """The death timeout: this worker ends."""


class Contact:
    """Watches the time since the scheduler was last heard."""

    __slots__ = ("_death_seconds", "_heard_at", "_lease_seconds", "_looked_at")

    def __init__(self, now: float, death_timeout_seconds: float) -> None:
        self._death_seconds = death_timeout_seconds
        self._lease_seconds = float("inf")
        self._heard_at = now
        self._looked_at = now

    def welcomed(self, lease_seconds: float, now: float) -> None:
        """Note the scheduler's lease: after so much silence it gives this worker's tasks to others."""
        self._lease_seconds = lease_seconds
        self._heard_at = now

    def heard(self, now: float) -> None:
        self._heard_at = now

    def look(self, now: float) -> Silence:
        """Tell what the silence asks for."""
        stalled = now - self._looked_at > STALL_SECONDS
        self._looked_at = now
        silent = now - self._heard_at
        if silent < self._lease_seconds * START_NOTHING_AT and silent < self._death_seconds:
            return Silence.NONE
        if stalled or silent < self._lease_seconds * KILL_ONCE_AT:
            return Silence.START_NOTHING if silent < self._death_seconds or stalled else Silence.DEATH
        return Silence.DEATH if silent >= self._death_seconds else Silence.KILL_ONCE
