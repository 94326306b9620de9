"""Who waits for a future, and what that asks of the future's client."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from scaler.client.future import ScalerFuture
    from scaler.client.locks import SteadyCondition


class FutureOwner(Protocol):
    """What a future needs of its client."""

    condition: SteadyCondition
    """Around the client's one (re-entrant) lock."""

    def cancel(self, future: ScalerFuture) -> bool:
        """Take the task off and say so to the scheduler. Called under the lock; False when it has ended."""

    def has(self, future: ScalerFuture) -> bool:
        """Tell whether the future is to end yet. Called under the lock."""

    def check_process(self) -> None:
        """Raise in a forked child: nothing that is said or asked there ever arrives."""

    def check_waitable(self) -> None:
        """Raise when a wait in this thread or process could never end."""

    def waiting(self) -> AbstractContextManager[object]:
        """Return a context in which this thread waits: a task that runs here lends its slot meanwhile."""


class Waiter:
    """Waits for one future, through the door that concurrent.futures has for waiters."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def add_result(self, _future: object) -> None:
        self._lock.release()

    add_exception = add_result
    add_cancelled = add_result

    def wait(self, timeout: float | None) -> bool:
        """Wait for so many seconds, None: without a limit. Tells whether the future has ended."""
        return self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))


class Waiters(list[Any]):
    """Waiters of a future inside a task: also `concurrent.futures.wait` then lends the task's slot while it waits."""

    def __init__(self, owner: FutureOwner) -> None:
        super().__init__()
        self._owner = owner

    def append(self, waiter: Any) -> None:
        event = getattr(waiter, "event", None)
        if event is not None and not isinstance(event, LendingEvent):
            waiter.event = LendingEvent(self._owner)
        super().append(waiter)


class LendingEvent(threading.Event):
    """What the waiters of `concurrent.futures` wait for."""

    def __init__(self, owner: FutureOwner) -> None:
        super().__init__()
        self._owner = owner

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        self._owner.check_waitable()
        try:
            with self._owner.waiting():
                if not super().wait(timeout):
                    raise TimeoutError
        except TimeoutError:
            return False
        return True
