"""`map`, `imap`, and `imap_unordered`: iterators over results. `map` is `imap` with an unbounded window."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import length_hint
from typing import Any

from scaler.client.future import error_of
from scaler.client.gathering import Progress
from scaler.client.options import Options, iterated
from scaler.client.task_calls import TaskCalls
from scaler.client.task_future import TaskFuture
from scaler.errors import ScalerError, UsageError
from scaler.extensions.chunk_options import chunk_size_of
from scaler.extensions.maps.runner import Chunk, ChunkRunner, FailedItem, failed_item, why_one
from scaler.extensions.maps.window import CHUNKS_OF_WINDOW, PART_WAITED, QUICK_SECONDS, UNBOUNDED, Window
from scaler.serialization import name_of
from scaler.serialization.exceptions import hide_frames
from scaler.texts import shown

STEP_ITEMS = 16
"""Number of items taken from a fast iterable between clock readings."""


def side_by_side(iterables: Sequence[Iterable[Any]], verb: str) -> Iterator[Any]:
    if not iterables:
        raise UsageError(f"{verb} needs at least one iterable")
    items = [iterated(f"iterable {number} of {verb}", each) for number, each in enumerate(iterables, 1)]
    return zip(*items, strict=False) if len(items) > 1 else items[0]


def as_tuples(items: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    for index, item in enumerate(iterated("the iterable of starmap", items)):
        try:
            yield tuple(item)
        except TypeError:
            if isinstance(item, Iterable):
                raise
            raise UsageError(
                f"item {index} of starmap is {shown(item)}, but must be an iterable of arguments such as a tuple"
            ) from None


def results_of(futures: Sequence[TaskFuture], name: str, return_exceptions: bool) -> list[Any]:
    """Return the results of a map whose items are separate tasks. Raises the exception of the first failed item."""
    results: list[Any] = []
    for index, future in enumerate(futures):
        error = error_of(future)
        if error is not None:
            failed_item(error, index, f"item {index} of map over {name}")
            if not return_exceptions:
                raise error
        results.append(future.result() if error is None else error)
    return results


class ResultIterator(Iterator[Any]):
    """Iterates over results of `Client.imap`. Threads may share the iterator: each result goes to one thread.

    `next` raises the exception of a failed item; later items can still be taken. `close`, or dropping the
    iterator, cancels unfinished items.
    """

    def __init__(
        self,
        items: Iterator[Any],
        runner: ChunkRunner,
        window: Window,
        call_later: Callable[[float, Callable[[], None]], None],
        *,
        in_order: bool = True,
        return_exceptions: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """call_later: calls a function in the client's thread after seconds. progress: closed with this iterator."""
        self._items: Iterator[Any] | None = items
        self._runner = runner
        self._window = window
        self._in_order = in_order
        self._return_exceptions = return_exceptions
        self._call_later = call_later
        self._progress = progress
        self._deadline: float | None = None
        self._timeout_seconds = 0.0
        self._lock = threading.RLock()
        self._is_at_work = False
        self._is_closed = False
        self._is_slow = False
        self._cancels_when_dropped = True
        self._patient_until = 0.0
        """Time at which to request the next item of a slow iterable, even if the last result is still missing."""
        self._ahead = 0
        """Number of pulled items whose results have not been taken."""
        self._running = 0
        self._waiting: deque[Chunk] = deque()
        self._ready: deque[tuple[list[Any], bool]] = deque()
        self._batch: Any = iter(())
        """Results of one chunk, which `next` returns without the lock. All count as ahead until the last is taken."""
        self._batch_count = 0
        self._error: Exception | None = None
        """The error that ended the iterable, raised after the results of earlier items."""

    def __iter__(self) -> ResultIterator:
        return self

    def __next__(self) -> Any:
        try:
            while True:
                for outcome in self._batch:
                    return self._checked(outcome, in_loop=True) if type(outcome) is FailedItem else outcome
                self._next_batch()
        except BaseException as error:
            hide_frames(error)
            raise

    def explain(self) -> str:
        """Return why the first item without a result waits. Thread-safe. Raises UnreachableError."""
        return self._runner.explain()

    def _take_all(self) -> list[Any]:
        """Return all results. At the first error of an item or the iterable, cancels the rest and raises the error."""
        results: list[Any] = []
        try:
            while True:
                self._work()
                if self._error is not None:
                    raise self._error
                if not self._ready:
                    return results
                while self._ready:
                    outcomes, has_failed = self._ready.popleft()
                    self._ahead -= len(outcomes)
                    results += [self._checked(outcome) for outcome in outcomes] if has_failed else outcomes
        finally:
            self.close()

    def _start(self) -> ResultIterator:
        """Send the first items, one by one unless a chunk size is given; of a slow iterable, only one item."""
        size = self._runner.chunk_size or 1
        try:
            while self._items is not None and not self._is_slow and self._ahead + size <= self._window.first_items:
                self._pull(self._items, size)
        except BaseException:  # Ctrl-C
            self.close()
            raise
        return self

    def _limit(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds

    def _submit_all(self) -> None:
        """Send all items. They run even if the iterator is dropped. Raises the error of the first unsent item."""
        items, size = self._items, self._runner.chunk_size
        assert items is not None, "nothing has been sent"
        self._items, self._cancels_when_dropped = None, False
        try:
            while chunk := list(itertools.islice(items, size)):
                self._send(chunk)
                if (error := self._waiting[-1].error) is not None:
                    raise error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancel unfinished items and end the iteration. Idempotent and thread-safe."""
        self._is_closed = self._cancels_when_dropped = True
        self._items = None
        self._batch = iter(())
        self._runner.cancel()
        self._close_progress()

    def _next_batch(self) -> None:
        """Move to the results of the next chunk, unless another thread has just done so. Raises StopIteration at the
        end."""
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
            outcomes, _ = self._ready.popleft()
            while self._ready and self._items is None:  # the window has nothing left to send
                outcomes += self._ready.popleft()[0]
            self._batch_count = len(outcomes)
            self._batch = iter(outcomes)

    def _checked(self, outcome: Any, in_loop: bool = False) -> Any:
        if type(outcome) is not FailedItem:
            return outcome
        if self._return_exceptions:
            return outcome.exception
        if in_loop and isinstance(outcome.exception, StopIteration):  # would silently end the loop
            raise RuntimeError(f"item {outcome.index} raised StopIteration") from outcome.exception
        raise outcome.exception

    def _close_progress(self) -> None:
        self._runner.progress.is_over = True
        if self._progress is not None:
            self._progress.close()

    def __del__(self) -> None:
        # Also if the iterator is closed, because a second Ctrl-C may have interrupted `close`.
        if self._cancels_when_dropped and (self._running or not self._is_closed):
            self._call_later(0.0, self._runner.cancel)

    def _work(self) -> None:
        if self._is_at_work:
            raise UsageError("the iterable of an imap cannot consume results of the same imap")
        self._is_at_work = True
        try:
            self._fill_and_wait()
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the surrounding loop ends, and the iterator may be dropped much later
            self.close()
            raise
        finally:
            self._is_at_work = False

    def _fill_and_wait(self) -> None:
        self._take_ended(self._patience_seconds())
        if self._ready and self._is_slow:
            return
        while not self._is_closed:
            now = time.monotonic()
            size = self._runner.chunking.next_size(now)
            if self._runner.chunk_size is None:
                size = min(size, max(1, self._window.items // CHUNKS_OF_WINDOW))
            if self._items is not None and size and size <= self._window.items - self._ahead:
                self._pull(self._items, size)
                self._take_ended(self._patience_seconds())
                if self._ready:
                    break
                continue
            if self._ready or not self._ahead:
                break
            timeout_seconds = None if self._deadline is None else self._deadline - now
            if timeout_seconds is not None and timeout_seconds <= 0:
                why = self._runner.why_late(self._waiting[0], self._timeout_seconds)
                self.close()
                raise TimeoutError(why)
            if self._items is not None:
                if size and self._window.starved(self._running):
                    continue
                if not size:
                    timeout_seconds = self._runner.chunking.wake_at - now
            self._take_ended(timeout_seconds)

    def _patience_seconds(self) -> float:
        return max(0.0, self._patient_until - time.monotonic()) if self._running else 0.0

    def _pull(self, items: Iterator[Any], size: int) -> None:
        """Take `size` items and send them together; from a slow iterable, send a part of an automatic chunk."""
        chunk: list[Any] = []
        step = 1 if self._is_slow else STEP_ITEMS
        if self._runner.chunk_size is not None:
            step = size
        began = ended = time.monotonic()
        try:
            while len(chunk) < size and ended - began <= QUICK_SECONDS:
                wanted = min(size, len(chunk) + step)
                chunk.extend(itertools.islice(items, wanted - len(chunk)))  # the items before an error are sent
                ended = time.monotonic()
                if len(chunk) < wanted:
                    self._items = None
                    break
        except Exception as error:  # noqa: BLE001 (passed on to the consumer)
            self._items = None
            self._error = error
            ended = time.monotonic()
        if self._items is None:
            self._runner.progress.items = 0  # the expected number may have been too high
        if not chunk:
            return
        self._is_slow = (ended - began) / len(chunk) > QUICK_SECONDS
        is_patient = self._is_slow and self._window.items != UNBOUNDED
        self._patient_until = ended + PART_WAITED * (ended - began) if is_patient else 0.0
        try:
            self._send(chunk)
        except ScalerError as error:
            self._items = None
            self._error = error

    def _send(self, items: list[Any]) -> None:
        chunk = self._runner.send(items)
        self._ahead += len(items)
        self._running += len(items)
        if self._in_order:
            self._waiting.append(chunk)

    def _take_ended(self, timeout_seconds: float | None) -> None:
        ended = self._runner.take_ended(0.0 if self._ready else timeout_seconds)
        if self._progress is not None:
            for chunk in ended:
                self._progress.count(chunk.count, chunk.failed)
        for chunk in ended:
            self._running -= chunk.count
            if chunk.ran_seconds is not None:
                self._window.ended(chunk.ended_at - chunk.sent_at - chunk.ran_seconds, chunk.ran_seconds)
            if not self._in_order:
                self._ready.append(self._runner.outcomes(chunk))
        waiting = self._waiting
        while waiting and (waiting[0].has_ended or waiting[0].parts):
            chunk = waiting.popleft()
            if chunk.parts:  # these items replace the chunk
                waiting.extendleft(reversed(chunk.parts))
            else:
                self._ready.append(self._runner.outcomes(chunk))


def iterate(  # noqa: PLR0913, PLR0917 (the arguments of four methods)
    client: TaskCalls,
    verb: str,
    fn: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    chunk_size: int | None,
    window: int | None,
    options: Options,
    return_exceptions: bool = False,
    progress: bool = False,
) -> ResultIterator:
    client._check_open()
    chunk_size = chunk_size_of(chunk_size, why_one(options, client._serializer))
    if not callable(fn):
        raise UsageError(f"{verb} needs a callable, not {fn!r}")
    items = as_tuples(iterables[0]) if verb == "starmap" else side_by_side(iterables, verb)
    name, is_spread = name_of(fn), verb == "starmap" or len(iterables) > 1
    try:
        total = max(0, min((length_hint(each, 0) for each in iterables), default=0))
    except Exception:  # noqa: BLE001 (a user's __len__ may raise; iterating raises it again)
        total = 0
    counts = client._loop.calls.begin(verb, name, total, has_chunks=True)
    options = options._replace(name=options.name or name, call=counts.number)
    return ResultIterator(
        items,
        ChunkRunner(client, fn, options, chunk_size, counts, is_spread=is_spread),
        Window(window, chunk_size),
        client._loop.call_later,
        in_order=verb != "imap_unordered",
        return_exceptions=return_exceptions,
        progress=Progress(name, total or None) if progress else None,
    )
