"""Waits of threads for futures: safe against Ctrl-C, and a waiting task lends its slot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol


class Waits(Protocol):
    blocked: Callable[[], AbstractContextManager[object]]

    def check_waitable(self) -> None: ...


class SteadyCondition(threading.Condition):
    """A condition with a re-entrant lock, whose `with` is safe against Ctrl-C.

    `threading.Condition` enters its lock in Python code, where Ctrl-C can leave the lock acquired for ever. The lock's
    own methods never raise KeyboardInterrupt after acquiring it.
    """

    def __init__(self) -> None:
        super().__init__(threading.RLock())

    def wait(self, timeout: float | None = None) -> bool:
        """Like `threading.Condition.wait`, but always holds the lock at the end, even after Ctrl-C."""
        try:
            return super().wait(timeout)
        except BaseException:  # Ctrl-C may arrive just after the lock was released
            if not self._is_owned():  # type: ignore[attr-defined]
                self.acquire()
            raise

    if not TYPE_CHECKING:
        __enter__ = property(attrgetter("_lock.__enter__"))
        __exit__ = property(attrgetter("_lock.__exit__"))


def carry_through(function: Callable[[], object]) -> None:
    """Call an idempotent function. If Ctrl-C (often the second one) interrupts it, a new thread calls it again."""
    try:
        function()
    except Exception:
        raise
    except BaseException:
        threading.Thread(target=function, name="scaler-cancel", daemon=True).start()
        raise


class LendingWaiters(list[Any]):
    """Waiters of `concurrent.futures` for a future, so that its `wait` lends the task's slot as well."""

    def __init__(self, owner: Waits, waiters: list[Any]) -> None:
        super().__init__(waiters)
        self._owner = owner

    def append(self, waiter: Any) -> None:
        event = getattr(waiter, "event", None)
        if event is not None and not isinstance(event, LendingEvent):
            waiter.event = LendingEvent(self._owner)
        super().append(waiter)


class LendingEvent(threading.Event):
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
