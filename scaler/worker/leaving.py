"""How a worker leaves: nothing more comes, what has not started is given back, and it ends when the rest is done. Pure.

A worker that is told to end by others than the scheduler says so to it, and stays until it has answered: what the
scheduler had sent before is then here, and given back. Otherwise such tasks would be lost with the worker, and charged.
"""

from __future__ import annotations

from scaler.protocol.messages import Drain
from scaler.worker.outbox import Outbox

ANSWER_SECONDS = 2.0
"""A scheduler that has not answered in this time is not waited for."""


class Leaving:
    """One worker's end. Law: once it has begun it never stops, and its first text stays."""

    __slots__ = ("_answered", "_unanswered_until", "deadline", "text")

    def __init__(self) -> None:
        self.text = ""
        """Why it leaves; empty: it does not."""
        self.deadline = float("inf")
        """What runs then is ended."""
        self._answered = False
        self._unanswered_until = float("inf")

    def told(self, text: str) -> None:
        """The scheduler says that nothing more comes: by itself, or as its answer."""
        self.text = self.text or text or "drained"
        self._answered = True

    def begin(self, text: str, outbox: Outbox, grace_seconds: float, has_scheduler: bool, now: float) -> float:
        """Somebody else wants it to end. Returns when to look again."""
        self.text = self.text or text
        self.deadline = min(self.deadline, now + grace_seconds)
        if has_scheduler and not self._answered:
            self._unanswered_until = min(self._unanswered_until, now + ANSWER_SECONDS)
            outbox.send(Drain(self.text))
        else:
            self._answered = True
        return min(self.deadline, self._unanswered_until)

    def welcomed(self, outbox: Outbox, now: float) -> None:
        """A session was opened, in which the scheduler has not been told."""
        if self.text:
            self._answered = False
            self._unanswered_until = now + ANSWER_SECONDS
            outbox.send(Drain(self.text))

    def is_settled(self, now: float) -> bool:
        """Tell whether nothing more can come."""
        return self._answered or now >= self._unanswered_until
