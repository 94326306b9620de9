"""A thread that does what is due, at once when it is woken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Ticker:
    """Calls `step(now)` at the time that the call before has answered, and soon after each `wake`.

    step: takes Unix seconds, and returns when it is due next (Unix seconds), or None: when woken.
    """

    def __init__(self, name: str, step: Callable[[float], float | None]) -> None:
        self._step = step
        self._woken = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Call `step` soon. From any thread."""
        self._woken.set()

    def close(self) -> None:
        """End the thread, after the step under way."""
        self._closed = True
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self._woken.clear()
            due = self._step(time.time())
            self._woken.wait(None if due is None else max(0.0, due - time.time()))
