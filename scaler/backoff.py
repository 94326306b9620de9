"""Delays after consecutive failures. Pure: time and randomness are arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaler.grammar import counted


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `first` to `last` seconds. jitter: maximum random change, as a share of the delay."""

    first: float
    last: float
    jitter: float = 0.5

    def seconds(self, failures: int, chance: float = 0.5) -> float:
        """Return the delay after this many consecutive failures. chance: random, from 0 up to 1."""
        if failures < 1:
            return 0.0
        delay = min(self.last, self.first * 2.0 ** min(32, failures - 1))
        return delay * (1.0 + self.jitter * (2.0 * chance - 1.0))


EARLY = Backoff(0.5, 4.0)  # after the second failure of one cause; the first has no delay
PAUSES = Backoff(30.0, 300.0)
PAUSE_AFTER = 5  # consecutive failures of one cause before starts pause
MAX_CAUSES = 32


@dataclass(slots=True)
class _Cause:
    text: str
    failures: int
    last_at: float
    retry_at: float


class BackoffByCause:
    """Counts failures by cause. The first failure of a cause has no delay; later failures have longer delays."""

    def __init__(self) -> None:
        self._causes: dict[str, _Cause] = {}

    def failed(self, cause: str, now: float, jitter: float, text: str = "", tried_at: float | None = None) -> None:
        """Count a failure. jitter: random, from 0 up to 1. text: shown instead of the cause. tried_at: start of the
        failed attempt. Attempts that began before the last failure was known do not count."""
        known = self._causes.pop(cause, None)
        if len(self._causes) >= MAX_CAUSES:
            self._causes.pop(next(iter(self._causes)))
        if known is not None and tried_at is not None and tried_at < known.last_at:
            self._causes[cause] = known
            return
        failures = 1 if known is None else known.failures + 1
        pauses = failures - PAUSE_AFTER + 1
        delay = PAUSES.seconds(pauses, jitter) if pauses > 0 else EARLY.seconds(failures - 1, jitter)
        self._causes[cause] = _Cause(text or cause, failures, now, now + delay)

    def proven(self, started_at: float) -> None:
        """Record that an attempt which began at started_at succeeded. Call once per attempt. Clears earlier failures
        and one later failure, so partial success keeps delays short."""
        for cause, known in list(self._causes.items()):
            known.failures = 0 if known.last_at <= started_at else known.failures - 1
            known.retry_at = known.last_at
            if not known.failures:
                del self._causes[cause]

    def hurry(self, now: float) -> None:
        """Allow an immediate attempt, because the cause may be resolved. Failures still count."""
        for cause in self._causes.values():
            cause.retry_at = min(cause.retry_at, now)

    def succeeded(self) -> None:
        self._causes.clear()

    @property
    def failing(self) -> bool:
        return any(cause.failures > 1 for cause in self._causes.values())

    def wait_seconds(self, now: float) -> float:
        return max((cause.retry_at - now for cause in self._causes.values() if cause.retry_at > now), default=0.0)

    def degraded_reason(self, now: float) -> str:
        worst = max(self._causes.values(), key=lambda cause: cause.retry_at, default=None)
        if worst is None or worst.retry_at <= now:
            return ""
        wait = f"next attempt in {math.ceil(worst.retry_at - now)} s"
        pause = "paused, " if worst.failures >= PAUSE_AFTER else ""
        return f"{worst.text}; failed {counted(worst.failures, 'time')} in a row, {pause}{wait}"
