"""When a socket's owner gets its turn on the event loop: on traffic, when asked for, and when a time has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence


class Turns:
    """Calls `turn` once after any number of `soon`, and at the time of `at`; watches descriptors."""

    __slots__ = ("_loop", "_soon", "_timer", "_timer_at", "_turn", "_watched")

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Callable[[], None]) -> None:
        self._loop = loop
        self._turn = turn
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None
        # uvloop's handle of a time that has come already cannot be asked for it.
        self._timer_at = 0.0
        self._watched: Sequence[tuple[int, Callable[[], None]]] = ()

    def watch(self, *watched: tuple[int, Callable[[], None]]) -> None:
        """Call these when their descriptors are readable, and no longer those of the last call."""
        for descriptor, _ in self._watched:
            self._loop.remove_reader(descriptor)
        for descriptor, readable in watched:
            self._loop.add_reader(descriptor, readable)
        self._watched = watched

    def soon(self) -> None:
        """Take a turn in the next round of the loop."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._run_soon)

    def at(self, when: float | None) -> None:
        """Take a turn at this time of the loop's clock, or at an earlier one that was asked for before."""
        if when is None:
            return
        if self._timer is not None:
            # Moving a timer on at every turn would cost more than the idle turn when it fires.
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._run_timer)

    def close(self) -> None:
        self.watch()
        if self._soon is not None:
            self._soon.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _run_soon(self) -> None:
        self._soon = None
        self._turn()

    def _run_timer(self) -> None:
        self._timer = None
        self._turn()
