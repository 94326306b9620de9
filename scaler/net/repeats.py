"""Events that may come in any number, said without filling the log: the first at once, the rest counted."""

from __future__ import annotations

from collections.abc import Callable

QUIET_SECONDS = 60.0
"""After a line was said, the next of its kind is at least this far away."""


class Repeats:
    """One kind of event. say is given a line for people."""

    __slots__ = ("_count", "_last", "_quiet_until", "_say")

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._quiet_until = 0.0
        self._count = 0
        self._last = ""

    def add(self, text: str, now: float) -> None:
        """Note an event: it is said now, or when the time of quiet is over."""
        self._count += 1
        self._last = text
        self.tick(now)

    def tick(self, now: float) -> None:
        """Say what is due."""
        if self._count and now >= self._quiet_until:
            self.flush()
            self._quiet_until = now + QUIET_SECONDS

    def flush(self) -> None:
        """Say what was not said yet, whatever the time is."""
        if self._count:
            others = f" (and {self._count - 1} more like this)" if self._count > 1 else ""
            self._say(self._last + others)
            self._count = 0

    def next_at(self) -> float | None:
        """Return when `tick` has something to say, None when it has not."""
        return self._quiet_until if self._count else None
