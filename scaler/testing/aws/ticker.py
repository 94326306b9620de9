"""The common part of the emulated services' shells: a thread that does what is due, and waiting for changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SteppedService:
    """Owns the lock of a service's core, and the thread that steps it: when it is due, and soon after each change."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition(threading.RLock())
        """Guards the core; notified of each change."""
        self._woken = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Start nothing more: end the thread, after the step under way."""
        self._closed = True
        self._woken.set()
        self._thread.join()

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait until a condition holds; it is checked after each change. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_seconds):
                raise TimeoutError(f"the condition does not hold after {timeout_seconds:g} s: {self._states()}")

    def _states(self) -> list[str]:
        """Return what is shown when a condition does not hold in time."""
        raise NotImplementedError

    def _step(self, now: float) -> float | None:
        """Do what is due, and return when to step next, in Unix seconds; None: when woken."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._closed:
            self._woken.clear()
            due = self._step(time.time())
            self._woken.wait(None if due is None else max(0.0, due - time.time()))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the core, and let the thread do what follows from the change."""
        with self._changed:
            yield
            self._changed.notify_all()
        self._woken.set()
