"""The futures of one client: what users' threads and the client's own thread do with them, under one lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from scaler.client.future import ScalerFuture
from scaler.client.locks import SteadyCondition
from scaler.client.outcomes import copy_of
from scaler.client.session import Session
from scaler.client.tasks import Task
from scaler.errors import ClientClosedError, LimitError, UsageError
from scaler.ids import IdFactory

MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Tasks that may wait to be sent, by their size; then submit waits."""

Profile = int | tuple[int, int, int]
Resolved = tuple[ScalerFuture, Any, BaseException | None, Profile]
"""A future, its value or exception, and its profile."""


class FutureTable:
    """All unfinished futures of a client. Safe to use from any thread."""

    def __init__(
        self,
        peer: bytes,
        wake: Callable[[], None],
        waiting: Callable[[], AbstractContextManager[object]],
        timeout_seconds: float,
    ) -> None:
        """wake: makes the client's thread look at the session. waiting: see FutureOwner."""
        self.ids = IdFactory(peer)
        self.condition = SteadyCondition()
        self.session = Session()
        self.waiting = waiting
        self.timeout_seconds = timeout_seconds
        self.max_pending_tasks = -1
        self.fetching: set[ScalerFuture] = set()
        """Ended, and their values are on their way from the object storage."""
        self.is_awake = False
        """True from a wake-up until the thread begins to look at the session."""
        self.thread: threading.Thread | None = None
        """The client's own thread, which must not wait for itself."""
        self.closed: str | None = None
        """Why this client is of no use any more."""
        self._wake = wake
        self._waiting_for_room = 0
        self._pid = os.getpid()

    def check_open(self) -> None:
        """Raise ClientClosedError when the client was disconnected, or belongs to the parent of this process."""
        if self.closed is not None:
            raise ClientClosedError(self.closed)

    def check_process(self) -> None:
        """Raise ClientClosedError in a forked child of the process that the client belongs to."""
        if self._pid != os.getpid():
            self.check_open()

    def check_waitable(self) -> None:
        """Raise when a wait in this thread or process could never end."""
        self.check_open()
        if threading.current_thread() is self.thread:
            raise UsageError("a callback of a future cannot wait for another one: the same thread serves both")

    def has_unfinished(self) -> bool:
        """Tell whether a task has not ended, or its value is not here yet."""
        return self.closed is None and bool(self.session.pending or self.fetching)

    def count_unfinished(self) -> int:
        """Return how many tasks have not ended, or have values that are not here yet. 0 when it is closed."""
        return 0 if self.closed is not None else len(self.session.pending) + len(self.fetching)

    def submit(self, future: ScalerFuture) -> bool:
        """Take in a task. Returns False when a future that it references has ended: its value must be embedded.

        Waits while limits are reached, up to the timeout. Raises LimitError, which names the limit, or
        ClientClosedError.
        """
        session = self.session
        try:
            with self.condition:
                if self.closed is not None:
                    raise ClientClosedError(self.closed)
                if self.max_pending_tasks >= 0 or session.unsent_bytes > MAX_UNSENT_BYTES:
                    self._wait_for_room()
                for reference in future.references:
                    if isinstance(reference, ScalerFuture) and reference.must_embed:
                        return False
                session.add(future)
            if session.refused:
                self.drop_refused()
            if not self.is_awake:
                self.wake()
        except Exception:
            raise
        except BaseException:  # Ctrl-C: who asked for the future does not get it, so nobody could cancel it
            future.cancel()
            raise
        return True

    def submit_all(self, futures: Sequence[ScalerFuture]) -> bool:
        """Take in tasks that name each other, all or none: nothing of them can end before the last one is in.

        As `submit` otherwise, with one wait for room: a graph may exceed the limits by its own size.
        """
        with self.condition:
            if self.closed is not None:
                raise ClientClosedError(self.closed)
            if self.max_pending_tasks >= 0 or self.session.unsent_bytes > MAX_UNSENT_BYTES:
                self._wait_for_room()
            if any(
                isinstance(reference, ScalerFuture) and reference.must_embed
                for future in futures
                for reference in future.references
            ):
                return False
            for future in futures:
                self.session.add(future)
        if self.session.refused:
            self.drop_refused()
        if futures and not self.is_awake:
            self.wake()
        return True

    def wake(self) -> None:
        """Make the client's thread look at the session soon."""
        self.is_awake = True
        try:
            self._wake()
        except BaseException:  # Ctrl-C: what is submitted next must wake it
            self.is_awake = False
            raise

    def cancel(self, future: ScalerFuture) -> bool:
        """Take a task off and tell the scheduler. Called under the lock; False when it has ended."""
        if self.session.cancel(future):
            self.wake()
            return True
        if future in self.fetching:
            self.fetching.discard(future)
            return True
        return False

    def has(self, future: ScalerFuture) -> bool:
        """Tell whether the future is to end yet. Called under the lock."""
        return future.task_id in self.session.pending or future in self.fetching

    def started(self, ids: Iterable[bytes]) -> None:
        """Note that these tasks run."""
        pending = self.session.pending
        with self.condition:
            for identifier in ids:
                task = pending.get(identifier)
                if task is not None:
                    cast("ScalerFuture", task).has_started = True

    # -- they end

    def resolve(
        self, number: int, resolved: Iterable[Resolved], fetching: Iterable[ScalerFuture], ids: list[bytes]
    ) -> None:
        """Resolve the futures of a Finished, or of a value that was fetched (number 0), then call their callbacks.

        fetching: those that go on to wait for the storage. ids: all that the Finished names.
        """
        noisy = []
        pending = self.session.pending
        with self.condition:
            for future, value, exception, profile in resolved:
                if pending.pop(future.task_id, None) is None:
                    if future not in self.fetching:
                        continue  # cancelled meanwhile
                    self.fetching.discard(future)
                future.set_profile(profile)
                if future.settle(value, exception):
                    noisy.append(future)
                kind = future.kind
                if kind is not None and (kind.spec.deliver or exception is not None):
                    future.forget()
            for future in fetching:
                if pending.pop(future.task_id, None) is not None:
                    self.fetching.add(future)
                    future.forget()
            if number:
                self.session.resolve(number, ids)
            if self._waiting_for_room:
                self.condition.notify_all()
        for future in noisy:
            future.run_callbacks()

    def give_up(self, make_error: Callable[[], BaseException], cancel: bool) -> None:
        """End all unfinished futures with an error. cancel: tell the scheduler so."""
        self.end_all(lambda: self.session.take_all(cancel), make_error)

    def end_all(self, take: Callable[[], Iterable[Task]], make_error: Callable[[], BaseException]) -> None:
        """End the futures of the tasks that `take` takes off the session, and those whose values are on their way."""
        with self.condition:
            futures = [*cast("Iterable[ScalerFuture]", take()), *self.fetching]
            self.fetching.clear()
            noisy = [future for future in futures if future.settle(None, make_error())]
            self.condition.notify_all()
        for future in noisy:
            future.run_callbacks()

    def drop(self, tasks: Iterable[Task], error: BaseException) -> None:
        """End futures whose tasks were taken off the session before they were sent."""
        with self.condition:
            # A copy for each: a graph's node puts its name on its own.
            noisy = [future for future in cast("Iterable[ScalerFuture]", tasks) if future.settle(None, copy_of(error))]
            self.condition.notify_all()
        for future in noisy:
            future.run_callbacks()

    def drop_refused(self) -> None:
        """End futures whose tasks were added although an upload that they need had failed."""
        with self.condition:
            refused = self.session.drop_refused()
        for tasks, error in refused:
            self.drop(tasks, error)

    def close(self, why: str, make_error: Callable[[], BaseException]) -> bool:
        """Refuse everything from now on, and end all futures. Returns False when it was closed before."""
        with self.condition:
            if self.closed is not None:
                return False
            self.closed = why
        self.give_up(make_error, cancel=False)
        return True

    def forked(self) -> None:
        """This process is a child of the one that the client belongs to: its threads are not here, its locks may be."""
        self.closed = "the client belongs to the parent of this process: make a new one after a fork"
        self.condition = SteadyCondition()
        self.thread = None

    # -- limits

    def _wait_for_room(self) -> None:
        """Wait until the limits allow another task. Called under the lock.

        In the client's own thread, where callbacks submit, it does not wait: that thread makes the room.
        """
        if self._has_room() or threading.current_thread() is self.thread:
            return
        self._waiting_for_room += 1
        try:
            has_room = self.condition.wait_for(self._has_room, self.timeout_seconds)
        finally:
            self._waiting_for_room -= 1
        self.check_open()
        if not has_room:
            raise LimitError(
                f"{self._reached() or 'a limit'} was reached, and too little ended within "
                f"timeout_seconds={self.timeout_seconds:g}"
            )

    def _has_room(self) -> bool:
        return self.closed is not None or self._reached() is None

    def _reached(self) -> str | None:
        session = self.session
        if 0 <= self.max_pending_tasks <= len(session.pending) + len(session.cancelling):
            return f"max_number_of_tasks_waiting={self.max_pending_tasks}"
        if session.unsent_bytes > MAX_UNSENT_BYTES:
            return f"MAX_UNSENT_BYTES={MAX_UNSENT_BYTES}"
        return None
