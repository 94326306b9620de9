"""The common part of the emulated services' shells: a thread that does what is due, and waiting for changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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


class SteppedService:
    """Owns the lock of a service's core, and the thread that steps it."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition(threading.RLock())
        """Guards the core; notified of each change."""
        self._ticker = Ticker(name, self._step)

    def close(self) -> None:
        """Start nothing more."""
        self._ticker.close()

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait until a condition holds; it is checked after each change. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_seconds):
                raise TimeoutError(f"the condition does not hold after {timeout_seconds:g} s: {self._states()}")

    def _states(self) -> list[str]:
        """Return what is shown when a condition does not hold in time."""
        raise NotImplementedError

    def _step(self, now: float) -> float | None:
        """Do what is due, and return when to step next; None: when woken."""
        raise NotImplementedError

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the core, and let the thread do what follows from the change."""
        with self._changed:
            yield
            self._changed.notify_all()
        self._ticker.wake()
