"""What keeps an executor's tasks from running, for people, and how long to hand nothing on because of it. Pure."""

from __future__ import annotations

from scaler.backoff import BackoffByCause

NEWS_SECONDS = 5.0
"""Tasks that have come after a refusal wait for no longer than this because of it: it may be for other tasks only."""
_LOSSES = "losses"


class Setbacks:
    """Two kinds are counted apart: tasks that the executor did not take, and tasks that it took and lost.

    The scheduler sends a lost task again at once, so what loses them all the time must be asked less and less often.
    """

    __slots__ = ("_loss", "_losses", "_refusal", "_refusals", "_refused_at", "executors_own")

    def __init__(self) -> None:
        self._refusals = BackoffByCause()
        self._losses = BackoffByCause()
        self._refusal = ""
        self._refused_at = 0.0
        self._loss = ""
        self.executors_own = ""
        """What the executor itself says; empty when it says nothing."""

    def refused(self, text: str, now: float, jitter: float) -> None:
        """Tasks were not taken. jitter: see `BackoffByCause.failed`."""
        self._refusals.failed(text, now, jitter)
        self._refusal = text
        self._refused_at = now

    def taken(self) -> None:
        self._refusals.succeeded()
        self._refusal = ""

    def lost(self, text: str, handed_at: float, now: float, jitter: float) -> None:
        """A task that was handed on then was lost. Those that are lost together count once."""
        self._losses.failed(_LOSSES, now, jitter, tried_at=handed_at)
        self._loss = text

    def arrived(self) -> None:
        """A result came."""
        self._losses.succeeded()
        self._loss = ""

    def wait_seconds(self, now: float, *, has_news: bool = False) -> float:
        """Return how long to hand nothing on. has_news: tasks have come since the last refusal."""
        refusal = self._refusals.wait_seconds(now)
        if has_news:
            refusal = min(refusal, max(0.0, self._refused_at + NEWS_SECONDS - now))
        return max(refusal, self._losses.wait_seconds(now))

    @property
    def text(self) -> str:
        """All of them, for people; empty when there is nothing to say."""
        found = []
        if self.executors_own:
            found.append(self.executors_own)
        if self._refusal:
            found.append(f"tasks cannot be handed on: {self._refusal}; trying again")
        if self._loss and self._losses.failing:
            found.append(f"tasks are lost again and again: {self._loss}")
        return "; ".join(found)
