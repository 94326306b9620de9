"""When to try again after failures: per cause, later and later, with a pause after repeated ones. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_DELAY_SECONDS = 0.5
PAUSE_AFTER = 5
"""Failures in a row of one cause after which starting pauses, and the pause is said to people."""
FIRST_PAUSE_SECONDS = 30.0
MAX_PAUSE_SECONDS = 300.0
MAX_CAUSES = 32


@dataclass(slots=True)
class _Cause:
    text: str
    failures: int
    last_at: float
    retry_at: float


class Backoff:
    """Laws: the first failure of a cause delays nothing; each one in a row delays longer than the one before it."""

    __slots__ = ("_causes",)

    def __init__(self) -> None:
        self._causes: dict[str, _Cause] = {}

    def failed(self, cause: str, now: float, jitter: float, text: str = "", tried_at: float | None = None) -> None:
        """Count a failure. jitter, from 0 up to 1, spreads the next try over half to one and a half of the delay.

        text: for people, in place of the cause. tried_at: when what failed was begun; what was begun before the last
        failure was known tells nothing new, and is not counted.
        """
        known = self._causes.pop(cause, None)
        if len(self._causes) >= MAX_CAUSES:
            self._causes.pop(next(iter(self._causes)))
        if known is not None and tried_at is not None and tried_at < known.last_at:
            self._causes[cause] = known
            return
        failures = 1 if known is None else known.failures + 1
        retry_at = now + _delay_seconds(failures) * (0.5 + jitter)
        self._causes[cause] = _Cause(text or cause, failures, now, retry_at)

    def proven(self, started_at: float) -> None:
        """Take note of a unit that turned out well, and when it was started. Call once for each.

        Failures from before it was started are forgotten. From those that have gone on since then it takes one: where
        some units turn out well and some do not, none has to wait for long.
        """
        for cause, known in list(self._causes.items()):
            known.failures = 0 if known.last_at <= started_at else known.failures - 1
            known.retry_at = known.last_at
            if not known.failures:
                del self._causes[cause]

    def succeeded(self) -> None:
        """Forget all failures."""
        self._causes.clear()

    @property
    def failing(self) -> bool:
        """True when something failed repeatedly, and nothing has turned out well since."""
        return any(cause.failures > 1 for cause in self._causes.values())

    def wait_seconds(self, now: float) -> float:
        """Return how long to start nothing."""
        return max((cause.retry_at - now for cause in self._causes.values() if cause.retry_at > now), default=0.0)

    def trouble(self, now: float) -> str:
        """Return what keeps units from being started now, for people; empty when nothing does."""
        worst = max(self._causes.values(), key=lambda cause: cause.retry_at, default=None)
        if worst is None or worst.retry_at <= now:
            return ""
        wait = f"next try in {math.ceil(worst.retry_at - now)} s"
        pause = "paused, " if worst.failures >= PAUSE_AFTER else ""
        return f"{worst.text}; failed {worst.failures} times in a row, {pause}{wait}"


def _delay_seconds(failures: int) -> float:
    if failures == 1:
        return 0.0
    if failures < PAUSE_AFTER:
        return FIRST_DELAY_SECONDS * 2.0 ** (failures - 2)
    return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(16, failures - PAUSE_AFTER))
