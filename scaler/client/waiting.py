"""Waits of threads for futures: they survive Ctrl-C, and a task that waits lends its slot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol


class Waits(Protocol):
    """A `FutureOwner`, as far as waits use it."""

    blocked: Callable[[], AbstractContextManager[object]]

    def check_waitable(self) -> None: ...


class SteadyCondition(threading.Condition):
    """A condition around a re-entrant lock, for `with` in threads that Ctrl-C interrupts.

    `threading.Condition` enters and leaves its lock in Python code, where a Ctrl-C can come between taking the lock and
    the block: the lock then stays taken for ever, and with it the client's thread. Here `with` finds the methods of
    the lock itself, in which no Ctrl-C is raised once it is taken.
    """

    def __init__(self) -> None:
        super().__init__(threading.RLock())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as `threading.Condition` does; the lock is taken again at the end, also when Ctrl-C ends the wait."""
        try:
            return super().wait(timeout)
        except BaseException:  # Ctrl-C may come when the lock was just given back
            if not self._is_owned():  # type: ignore[attr-defined]
                self.acquire()
            raise

    if not TYPE_CHECKING:
        __enter__ = property(attrgetter("_lock.__enter__"))
        __exit__ = property(attrgetter("_lock.__exit__"))


def carry_through(function: Callable[[], object]) -> None:
    """Call a function that may be called again. When Ctrl-C ends it, a thread of its own calls it once more.

    Users press Ctrl-C twice, and the second one comes while the first one's many tasks are being cancelled.
    """
    try:
        function()
    except Exception:
        raise
    except BaseException:
        threading.Thread(target=function, name="scaler-cancel", daemon=True).start()
        raise


class LendingWaiters(list[Any]):
    """Waiters of `concurrent.futures` for a future: also its `wait` then lends the task's slot meanwhile."""

    def __init__(self, owner: Waits, waiters: list[Any]) -> None:
        super().__init__(waiters)
        self._owner = owner

    def append(self, waiter: Any) -> None:
        event = getattr(waiter, "event", None)
        if event is not None and not isinstance(event, LendingEvent):
            waiter.event = LendingEvent(self._owner)
        super().append(waiter)


class LendingEvent(threading.Event):
    """The event on which waiters of `concurrent.futures` wait."""

    def __init__(self, owner: Waits) -> None:
        super().__init__()
        self._owner = owner

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        self._owner.check_waitable()
        try:
            with self._owner.blocked():
                if not super().wait(timeout):
                    raise TimeoutError
        except TimeoutError:
            return False
        return True
