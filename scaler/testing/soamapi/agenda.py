"""The stand-in's own threads: they do what is due, several things at a time."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

THREADS = 2
"""More than one: callbacks may come at the same time."""

Action = Callable[[], None]


class CallbackThreads:
    """Actions and when they are due. Safe to use from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Action]] = []
        self._count = itertools.count()
        self._is_closed = False
        self._threads = [threading.Thread(target=self._work, name="soam-callback", daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def add(self, action: Action, seconds: float = 0.0) -> None:
        """Have something done in so many seconds."""
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._count), action))
            self._changed.notify()

    def close(self) -> None:
        """Do nothing any more."""
        with self._changed:
            self._is_closed = True
            self._due.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def is_own_thread(self) -> bool:
        """Tell whether this is called from a callback."""
        return threading.current_thread() in self._threads

    def _work(self) -> None:
        while (action := self._next()) is not None:
            action()

    def _next(self) -> Action | None:
        with self._changed:
            while not self._is_closed:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
            return None
