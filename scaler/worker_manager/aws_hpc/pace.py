"""How often to look at jobs: often while something happens, seldom while nothing does. Pure."""

from __future__ import annotations

FIRST_SECONDS = 0.5
LAST_SECONDS = 10.0
SHARE = 0.1
"""The pause is this part of the time in which nothing has happened."""
FIRST_FAILURE_SECONDS = 0.5
LAST_FAILURE_SECONDS = 60.0
TOLD_AFTER = 2
"""Failures in a row before people are told."""


class Pace:
    """Counts failures in a row, and says how long to wait."""

    __slots__ = ("_failures", "_jitter", "_text")

    def __init__(self) -> None:
        self._failures = 0
        self._jitter = 0.0
        self._text = ""

    def failed(self, text: str, jitter: float) -> None:
        """A look has failed. jitter: from 0 up to 1."""
        self._failures += 1
        self._jitter = jitter
        self._text = text

    def succeeded(self) -> None:
        """A look has succeeded."""
        self._failures = 0

    @property
    def is_failing(self) -> bool:
        """Tell whether the last look has failed."""
        return self._failures > 0

    def wait_seconds(self, quiet_seconds: float, has_news: bool) -> float:
        """Return how long to wait after a look. quiet_seconds: how long nothing has happened. has_news: see soon."""
        if self._failures:
            delay = FIRST_FAILURE_SECONDS * 2.0 ** min(16, self._failures - 1)
            return min(LAST_FAILURE_SECONDS, delay) * (0.5 + self._jitter)
        if has_news:
            return FIRST_SECONDS
        return min(LAST_SECONDS, max(FIRST_SECONDS, quiet_seconds * SHARE))

    @property
    def trouble(self) -> str:
        """What keeps us from seeing jobs, for people; empty when nothing does, or has only once."""
        return f"cannot see how jobs are: {self._text}" if self._failures >= TOLD_AFTER else ""
