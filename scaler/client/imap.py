"""`imap` and `imap_unordered`: results one after another, while a bounded window of items is ahead of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakMethod

from scaler.client.checks import check_integer
from scaler.client.chunks import MAX_CHUNK_ITEMS, TARGET_SECONDS
from scaler.client.holding import Holding
from scaler.client.pieces import Failed, Piece, Pieces, ended_first
from scaler.client.progress import Progress
from scaler.errors import ScalerError, UsageError

FIRST_ITEMS = 64
CHUNKS_OF_WINDOW = 8
"""No chunk has more than this part of the window, so that several workers have some and others are on their way."""
MAX_ITEMS = CHUNKS_OF_WINDOW * MAX_CHUNK_ITEMS
QUICK_SECONDS = 0.001
"""An iterable that gives its items faster is worth asking for more before a result that is there is returned."""
PART_WAITED = 1 / 8
"""Of the time that a slow iterable took for an item: how long the next one waits for the result of the last."""


class Window:
    """How many items may be ahead of the results that were taken. Pure.

    A fixed size is kept. Otherwise it begins small, because items and results may be large, and doubles when whoever
    takes the results has to wait for one although tasks find workers free: then more of them would run at once.
    """

    __slots__ = ("_has_free_workers", "_max_items", "items")

    def __init__(self, items: int | None, chunk_size: int | None) -> None:
        """Raises UsageError."""
        smallest = chunk_size or 1
        self.items: int
        self._has_free_workers = False
        if items is None:
            self.items = max(FIRST_ITEMS, CHUNKS_OF_WINDOW * smallest)
            self._max_items = max(MAX_ITEMS, self.items)
            return
        check_integer("window", items, smallest)
        self.items = self._max_items = items

    @property
    def max_chunk_items(self) -> int:
        """The largest chunk that is worth it, when its size may be chosen."""
        return max(1, self.items // CHUNKS_OF_WINDOW)

    def ended(self, waited_seconds: float, ran_seconds: float) -> None:
        """A chunk came back; waited: how long it did not run."""
        self._has_free_workers = waited_seconds <= max(ran_seconds, TARGET_SECONDS)

    def starved(self, running: int) -> bool:
        """Tell whether there is more room now. Called when it was used up, and no result was there.

        running: items that have not come back. Where most have, and wait for one before them, more would only pile up.
        """
        if not self._has_free_workers or self.items >= self._max_items or 2 * running < self.items:
            return False
        self.items = min(2 * self.items, self._max_items)
        self._has_free_workers = False
        return True


class ResultIterator(Iterator[Any]):
    """Iterates over results of `Client.imap`. Threads may share it: each result goes to one of them.

    When an item has failed, `next` raises its exception, and may be called again for the items after it. `close`, or
    dropping the iterator, cancels what has not ended.
    """

    def __init__(
        self,
        items: Iterator[Any],
        pieces: Pieces,
        window: Window,
        *,
        chunk_size: int | None,
        in_order: bool,
        return_exceptions: bool,
        call_later: Callable[[float, Callable[[], None]], None],
        progress: Progress | None = None,
    ) -> None:
        """call_later: calls something in another thread after so many seconds. Harmless during garbage collection.

        progress: is told what has ended, and closed with this.
        """
        self._items: Iterator[Any] | None = items
        self._pieces = pieces
        self._window = window
        self._chunk_size = chunk_size
        self._in_order = in_order
        self._return_exceptions = return_exceptions
        self._call_later = call_later
        self._progress = progress
        self._lock = threading.RLock()
        self._is_at_work = False
        self._is_closed = False
        self._is_slow = False
        self._pace = 1
        self._ahead = 0
        """Items that were pulled, and whose results were not taken."""
        self._running = 0
        """Items of these whose chunks have not come back."""
        self._waiting: deque[Piece] = deque()
        self._ready: deque[list[Any]] = deque()
        self._batch: Any = iter(())
        """Results of one chunk: what `next` returns without a lock. They count as ahead until the last is taken."""
        self._batch_count = 0
        self._error: Exception | None = None
        """What ended the iterable, for after the results of the items before."""
        self._holding = Holding(WeakMethod(self._send), call_later)

    def __iter__(self) -> ResultIterator:
        return self

    def __next__(self) -> Any:
        while True:
            for outcome in self._batch:
                return self._raised(outcome) if type(outcome) is Failed else outcome
            self._next_batch()

    def _next_batch(self) -> None:
        """Go on with the results of another chunk, unless another thread just did. Raises StopIteration at the end."""
        with self._lock:
            if self._is_closed:
                raise StopIteration
            if self._batch.__length_hint__():
                return
            self._ahead -= self._batch_count
            self._batch_count = 0
            self._work()
            if self._is_closed:
                raise StopIteration
            if not self._ready:
                self._is_closed = self._error is None
                self._close_progress()
                error, self._error = self._error, None
                raise error if error is not None else StopIteration
            outcomes = self._ready.popleft()
            self._batch_count = len(outcomes)
            self._batch = iter(outcomes)

    def _raised(self, failed: Failed) -> BaseException:
        """Return an item's exception, if that is a result as others are; otherwise raise it."""
        if self._return_exceptions:
            return failed.exception
        if isinstance(failed.exception, StopIteration):  # it would end the loop, as if all were well
            raise RuntimeError(f"item {failed.index} raised StopIteration") from failed.exception
        raise failed.exception

    def close(self) -> None:
        """Cancel what has not ended; there are no more results. Harmless when repeated, and from any thread."""
        self._is_closed = True
        self._items = None
        self._batch = iter(())
        self._pieces.cancel()
        self._close_progress()

    def _close_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()

    def __del__(self) -> None:
        if self._running or not self._is_closed:  # a second Ctrl-C may have kept `close` from its end
            self._call_later(0.0, self._pieces.cancel)

    def _work(self) -> None:
        """Keep the window full until there is a result, or nothing more to wait for."""
        if self._is_at_work:
            raise UsageError("the iterable of an imap cannot take results of the same imap")
        self._is_at_work = True
        try:
            self._fill_and_wait()
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the loop around this ends, and who knows when the iterator will be dropped
            self.close()
            raise
        finally:
            self._is_at_work = False

    def _fill_and_wait(self) -> None:
        self._take_ended(0.0)
        if self._ready and self._is_slow:
            return
        while not self._is_closed:
            now = time.monotonic()
            size = self._next_size(now)
            if self._items is not None and size and size <= self._window.items - self._ahead:
                self._pull(self._items, size)
                took_seconds = time.monotonic() - now
                self._take_ended(PART_WAITED * took_seconds if self._is_slow else 0.0)
                if self._ready:
                    break
                continue
            if self._ready or not self._ahead:
                break
            timeout_seconds = None
            if self._items is not None:
                if size and self._window.starved(self._running):
                    continue
                if not size:
                    timeout_seconds = self._pieces.chunker.wake_at - now
            self._take_ended(timeout_seconds)

    def _next_size(self, now: float) -> int:
        """Return how many items the next chunk may have; 0: wait."""
        size = self._pieces.chunker.next_size(now)
        return size if self._chunk_size is not None else min(size, self._window.max_chunk_items, self._pace)

    def _pull(self, items: Iterator[Any], size: int) -> None:
        """Send up to so many items; fewer when the iterable is not quick: those it gave must not wait for the next."""
        chunk: list[Any] = []
        ahead = self._ahead
        began = time.monotonic()
        if size > 1 and self._chunk_size is None:
            self._holding.begin(chunk)
        try:
            for item in items:
                chunk.append(item)
                if len(chunk) == size:
                    break
                if self._chunk_size is None and time.monotonic() - began > QUICK_SECONDS:
                    break
            else:
                self._items = None
        except Exception as error:  # noqa: BLE001 (whatever the iterable raises is for who takes the results)
            self._items = None
            self._error = error
        finally:
            self._holding.end()
        with self._holding.lock:
            count = self._ahead - ahead + len(chunk)
            if not count:
                return
            self._is_slow = (time.monotonic() - began) / count > QUICK_SECONDS
            self._pace = 1 if self._is_slow else min(2 * self._pace, MAX_CHUNK_ITEMS)
            if chunk:
                try:
                    self._send(chunk)
                except ScalerError as error:
                    self._items = None
                    self._error = error

    def _send(self, chunk: list[Any]) -> None:
        piece = self._pieces.send(chunk)
        self._ahead += len(chunk)
        self._running += len(chunk)
        if self._in_order:
            self._waiting.append(piece)

    def _take_ended(self, timeout_seconds: float | None) -> None:
        """Note what has ended; when nothing has, and no result is there, wait for it."""
        ended = self._pieces.take_ended(0.0 if self._ready else timeout_seconds)
        if self._progress is not None:
            self._progress.ended(ended)
        for piece in ended:
            self._running -= piece.count
            ran_seconds = piece.duration_seconds()
            if ran_seconds is not None:
                self._window.ended(piece.ended_at - piece.sent_at - ran_seconds, ran_seconds)
            if not self._in_order:
                self._ready.append(self._pieces.outcomes(piece)[0])
        self._ready.extend(self._pieces.outcomes(piece)[0] for piece in ended_first(self._waiting))
