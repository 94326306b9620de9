"""Waits for many futures: gathers values, iterates in completion order, and shows progress."""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakSet

from scaler.client.future import ScalerFuture, check_future, error_of
from scaler.client.futures import FutureTable
from scaler.client.options import iterated
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.texts import shown


def gather(nested: Any, *, return_exceptions: bool = False) -> Any:
    """Wait for the futures, and return the same containers with futures replaced by their values.

    return_exceptions: return exceptions in place of failed or cancelled futures. Otherwise raises the first exception,
    in order of position.
    """

    def value_of(future: ScalerFuture) -> Any:
        error = error_of(future) if return_exceptions else None
        return future.result() if error is None else error

    return _replaced(nested, value_of)


def futures_in(nested: Any) -> list[ScalerFuture]:
    found: list[ScalerFuture] = []
    _replaced(nested, found.append)
    return found


def _replaced(nested: Any, value_of: Callable[[ScalerFuture], Any]) -> Any:
    def replaced(each: Any) -> Any:
        kind = type(each)
        if issubclass(kind, ScalerFuture):
            return value_of(each)
        if kind in (list, tuple, set, frozenset):
            return kind([replaced(inner) for inner in each])
        if kind is dict:
            return {key: replaced(inner) for key, inner in each.items()}
        return each

    try:
        return replaced(nested)
    except RecursionError:
        text = "contains itself or is nested too deeply: pass a flat list of futures"
        raise UsageError(f"{shown(nested)} {text}") from None


class Completion:
    """Futures in the order of completion."""

    _take: Callable[[ScalerFuture], object]
    """Called with each finished future, in any thread."""

    def __init__(self, futures: Iterable[ScalerFuture], timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._changed = threading.Condition()
        self._known: WeakSet[ScalerFuture] = WeakSet()
        self._left = 0
        for future in iterated("futures", futures):
            self.add(future)

    def add(self, *futures: ScalerFuture) -> None:
        """Add futures to wait for, ignoring futures added before. Raises UsageError for anything but a future."""
        for future in futures:
            check_future(future)
            with self._changed:
                if future in self._known:
                    continue
                self._known.add(future)
                self._left += 1
            future.add_done_callback(self._take)

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _late(self) -> TimeoutError:
        return TimeoutError(f"{counted(self._left, 'future')} did not end in time")


class AsCompleted(Completion, Iterator[ScalerFuture]):
    """Yields futures in the order of completion; `add` appends futures during iteration. Thread-safe."""

    def __init__(self, owner: FutureTable, futures: Iterable[ScalerFuture], timeout: float | None) -> None:
        self._owner = owner
        self._ended: deque[ScalerFuture] = deque()
        super().__init__(futures, timeout)

    def __len__(self) -> int:
        return self._left

    def __next__(self) -> ScalerFuture:
        """Return the next finished future. Raises TimeoutError after the timeout, and can then be called again."""
        with self._changed:
            if not self._ended and self._left:
                self._owner.check_waitable()
                with self._owner.blocked():
                    if not self._changed.wait_for(lambda: self._ended or not self._left, self._seconds_left()):
                        raise self._late()
            if not self._ended:
                raise StopIteration
            self._left -= 1
            if not self._left:
                self._changed.notify_all()  # wake the other threads, which have nothing to wait for
            return self._ended.popleft()

    def _take(self, future: Any) -> None:
        with self._changed:
            self._ended.append(future)
            self._changed.notify()


class Progress:
    """The tqdm bar of `progress=True`, in a terminal, notebook, or file. TQDM_DISABLE hides it."""

    def __init__(self, name: str, total: int | None) -> None:
        with warnings.catch_warnings():  # without ipywidgets, tqdm warns and shows a text bar in a notebook
            warnings.filterwarnings("ignore", "IProgress not found")
            from tqdm.auto import tqdm  # noqa: PLC0415 (slow import, rarely needed)

        self._failed = 0
        self._bar = tqdm(total=total, desc=name)

    def count(self, ended: int, failed: int) -> None:
        if failed:
            self._failed += failed
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update(ended)

    def close(self) -> None:
        if self._failed:  # the rate-limited bar must end with the final count
            self._bar.refresh()
        self._bar.close()


def show_progress(owner: FutureTable, futures: Iterable[ScalerFuture], name: str) -> None:
    every = list(iterated("futures", futures))
    bar = Progress(name, len(every))
    try:
        for future in AsCompleted(owner, every, None):
            bar.count(1, error_of(future) is not None)
    finally:
        bar.close()
