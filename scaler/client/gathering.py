"""Waiting for many futures: gather values, iterate in the order of completion, show progress."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

from scaler.client.future import ScalerFuture, check_future, error_of
from scaler.client.futures import FutureTable
from scaler.client.map import Progress
from scaler.client.options import iterated
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.texts import shown


def gather(nested: Any, *, return_exceptions: bool = False) -> Any:
    """Return the same containers with futures replaced by their values; wait for the futures.

    return_exceptions: put exceptions in the place of failed or cancelled futures. Otherwise raises the first exception,
    in order of position.
    """
    try:
        return _gather(nested, return_exceptions)
    except RecursionError:
        raise _too_deep(nested) from None


def _gather(nested: Any, return_exceptions: bool) -> Any:
    kind = type(nested)
    if issubclass(kind, ScalerFuture):
        error = error_of(nested) if return_exceptions else None
        return nested.result() if error is None else error
    if kind in (list, tuple, set, frozenset):
        return kind([_gather(each, return_exceptions) for each in nested])
    if kind is dict:
        return {key: _gather(each, return_exceptions) for key, each in nested.items()}
    return nested


def _too_deep(nested: object) -> UsageError:
    return UsageError(
        f"{shown(nested)} contains itself, or is nested too deeply to gather: give a flat list of futures"
    )


def futures_in(nested: Any) -> Iterator[ScalerFuture]:
    try:
        yield from _futures_in(nested)
    except RecursionError:
        raise _too_deep(nested) from None


def _futures_in(nested: Any) -> Iterator[ScalerFuture]:
    if issubclass(type(nested), ScalerFuture):
        yield nested
    elif type(nested) in (list, tuple, set, frozenset, dict):
        for each in nested.values() if type(nested) is dict else nested:
            yield from _futures_in(each)


class AsCompleted(Iterator[ScalerFuture]):
    """Yields futures in the order of completion; `add` appends futures during iteration. Thread-safe."""

    def __init__(self, owner: FutureTable, futures: Iterable[ScalerFuture], timeout: float | None) -> None:
        self._owner = owner
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._changed = threading.Condition()
        self._ended: deque[ScalerFuture] = deque()
        self._known: WeakSet[ScalerFuture] = WeakSet()
        self._left = 0
        for future in iterated("futures", futures):
            self.add(future)

    def add(self, *futures: ScalerFuture) -> None:
        """Wait for further futures; ignores futures added before. Raises UsageError for anything but a future."""
        for future in futures:
            check_future(future)
            with self._changed:
                if future in self._known:
                    continue
                self._known.add(future)
                self._left += 1
            future.add_done_callback(self._take)

    def __len__(self) -> int:
        return self._left

    def __next__(self) -> ScalerFuture:
        """Return the next finished future. Raises TimeoutError after the timeout, and can then be called again."""
        with self._changed:
            if not self._ended and self._left:
                self._wait()
            if not self._ended:
                raise StopIteration
            self._left -= 1
            if not self._left:
                self._changed.notify_all()  # nothing is left for other threads
            return self._ended.popleft()

    def _take(self, future: Any) -> None:
        with self._changed:
            self._ended.append(future)
            self._changed.notify()

    def _wait(self) -> None:
        self._owner.check_waitable()
        with self._owner.blocked():
            seconds = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if not self._changed.wait_for(lambda: self._ended or not self._left, seconds):
                raise TimeoutError(f"{counted(self._left, 'future')} did not end in time")


def show_progress(owner: FutureTable, futures: Iterable[ScalerFuture], name: str) -> None:
    every = list(iterated("futures", futures))
    bar = Progress(name, (every,))
    try:
        for future in AsCompleted(owner, every, None):
            bar.count_future(future)
    finally:
        bar.close()
