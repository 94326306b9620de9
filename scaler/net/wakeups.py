"""Schedules a component's next wakeup on an event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Wakeups:
    """Calls `wake` on an event loop: once per batch of `soon` calls, and when `at` is due. Watches descriptors."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], object]) -> None:
        self.now = loop.time
        self.wake = wake
        self._loop = loop
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None
        self._repeated: asyncio.Handle | None = None
        # uvloop cannot return the time of a handle that has run.
        self.due_at = math.inf
        self._watched: set[int] = set()

    def watch(self, descriptor: int, readable: Callable[[], None] | None = None) -> None:
        self._loop.add_reader(descriptor, readable or self.wake)
        self._watched.add(descriptor)

    def watch_writing(self, descriptor: int, is_wanted: bool) -> None:
        if is_wanted:
            self._loop.add_writer(descriptor, self.wake)
        else:
            self._loop.remove_writer(descriptor)

    def unwatch(self, descriptor: int) -> None:
        if descriptor in self._watched:
            self._watched.remove(descriptor)
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def soon(self, seconds: float = 0.0) -> None:
        if seconds:
            self.at(self._loop.time() + seconds)
        elif self._handle is None:
            self._handle = self._loop.call_soon(self._run_soon)

    def at(self, when: float) -> None:
        """Wake at this time on the loop's clock, or earlier if a wakeup is already scheduled."""
        # Postponing the timer in every iteration would cost more than an idle wakeup.
        if when >= self.due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.due_at = when
        self._timer = self._loop.call_at(when, self._run_timer)

    def repeat(self, check: Callable[[], float]) -> None:
        """Call `check` soon, and again after the seconds that it returns, until 0 or close. One check at most."""

        def run() -> None:
            if seconds := check():
                self._repeated = self._loop.call_later(seconds, run)

        self._repeated = self._loop.call_soon(run)

    def close(self) -> None:
        for descriptor in list(self._watched):
            self.unwatch(descriptor)
        for handle in (self._handle, self._timer, self._repeated):
            if handle is not None:
                handle.cancel()

    def _run_soon(self) -> None:
        self._handle = None
        self.wake()

    def _run_timer(self) -> None:
        self._timer, self.due_at = None, math.inf
        self.wake()
