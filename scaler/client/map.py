"""`map`, `imap` and `imap_unordered`: results one after another, while a window of items is ahead of them.

`map` is the ordered iterator with an unbounded window. Items travel in chunks. A failure of a whole chunk says nothing
about most of its items: when its process died, when it took too long, or when an argument was the reason, its items are
sent again one by one, so that only the one at fault fails.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import length_hint
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakMethod, WeakSet

from scaler.client.calls import CallProgress
from scaler.client.chunk_calls import ChunkResults, ItemsFailedError, show_item
from scaler.client.chunks import MAX_CHUNK_ITEMS, TARGET_SECONDS, Chunking, ItemCall
from scaler.client.future import carry_through, error_of
from scaler.client.futures import FutureTable
from scaler.client.options import check_integer, iterated
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import Reference
from scaler.errors import (
    MemoryLimitError,
    ObjectLostError,
    ProcessorDiedError,
    ScalerError,
    SerializationError,
    TaskTimeoutError,
    UsageError,
)
from scaler.protocol.messages import is_stored
from scaler.serialization import parts_of
from scaler.serialization.arguments import load_arguments
from scaler.serialization.exception_graph import assign, copy_of
from scaler.serialization.exceptions import load_exception, locate, remote_traceback
from scaler.serialization.separate import Items, PackedValues
from scaler.serialization.tracebacks import hide_frames
from scaler.texts import shown

FIRST_ITEMS = 64
CHUNKS_OF_WINDOW = 8
"""No chunk has more than this part of the window, so that several workers have some and others are on their way."""
MAX_ITEMS = CHUNKS_OF_WINDOW * MAX_CHUNK_ITEMS
UNBOUNDED = sys.maxsize
QUICK_SECONDS = 0.001
"""A chunk's items are taken from their iterable in about this time: a slow one fills no chunks."""
PART_WAITED = 1 / 8
"""Of the time that a slow iterable took for an item: how long the next one waits for the result of the last."""
FLUSH_SECONDS = 0.01
"""Items wait this long, and at most twice that, for the next one of their chunk."""
WAIT_STEP_SECONDS = 1.0

_OF_ONE_ITEM = (ProcessorDiedError, TaskTimeoutError, MemoryLimitError, ObjectLostError)
"""A chunk that ends with one of them is taken apart: its other items may be fine."""

Submit = Callable[[Items | list[Any], int], TaskFuture]
"""Submits items together. Its second argument: how often the call of a single one has failed before."""


def side_by_side(iterables: Sequence[Iterable[Any]], verb: str) -> Iterator[Any]:
    """Return the items of one iterable, or tuples of those of several. Raises UsageError."""
    if not iterables:
        raise UsageError(f"{verb} needs at least one iterable")
    items = [iterated(f"iterable {number} of {verb}", each) for number, each in enumerate(iterables, 1)]
    return zip(*items, strict=False) if len(items) > 1 else items[0]


def as_tuples(items: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Return the items of a starmap. Raises UsageError at one that is not an iterable of arguments."""
    for index, item in enumerate(iterated("the iterable of starmap", items)):
        try:
            yield tuple(item)
        except TypeError:
            if isinstance(item, Iterable):
                raise
            raise UsageError(
                f"item {index} of starmap is {shown(item)}, and must be an iterable of arguments, such as a tuple"
            ) from None


@dataclass(slots=True, eq=False)
class FailedItem:
    """Stands among the values for an item that raised."""

    exception: BaseException
    index: int


@dataclass(slots=True, eq=False)
class Chunk:
    """Consecutive items, from number `first` on, that travel together."""

    first: int
    items: list[Any]
    """Empty when they were sent, unless the calls have limits of their own: then some may have to be sent again."""
    count: int
    payload: bytes = b""
    """To take its items apart, and to show them: it is in memory anyway, unless it is in the object storage."""
    references: tuple[Reference, ...] = ()
    parts: list[Chunk] = field(default_factory=list)
    """After it was taken apart: items that were sent again, one by one, and those between them, which have ended."""
    found: ChunkResults | None = None
    future: TaskFuture | None = None
    error: BaseException | None = None
    """Why it could not be sent."""
    shown: str = ""
    """Of a single item that failed without running to its end: the text that shows it."""
    has_ended: bool = False
    ran_seconds: float | None = None
    """How long it ran on its worker, once it has ended; None when it failed."""
    sent_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0

    def failure(self) -> BaseException | None:
        """Return why the whole has failed, None when it has not. Called when it has ended."""
        if self.future is None:
            return self.error
        error = error_of(self.future)
        return None if isinstance(error, ItemsFailedError) else error

    def results(self) -> ChunkResults:
        """Return the results of a chunk that has not failed as a whole."""
        if self.found is not None:
            return self.found
        assert self.future is not None, "a chunk that was not sent has failed"
        error = self.future.exception()
        found = error.results if isinstance(error, ItemsFailedError) else self.future.result()
        assert isinstance(found, ChunkResults)
        return found

    def called(self) -> int:
        """Return how many of its items were called, as far as is known. Called when it has ended."""
        if self.failure() is not None:
            return self.count
        return max(1, self.count - list(self.results().left.values()).count(False))

    def items_sent(self) -> list[Any]:
        """Return the items that were sent; none when they are not here or cannot be loaded outside of a task."""
        if not self.payload:
            return []
        try:
            (items,), _ = load_arguments(parts_of(self.payload), self.references.__getitem__)
        except Exception:  # noqa: BLE001 (the user's code may raise anything when it is loaded)
            return []
        return list(items)


class ChunkRunner:
    """Sends chunks and waits for them. `cancel` may be called from any thread, the rest from one at a time."""

    def __init__(
        self, call: ItemCall, submit: Submit, futures: FutureTable, chunk_size: int | None, progress: CallProgress
    ) -> None:
        """progress: counts the items of the call."""
        self.chunk_size = chunk_size
        self.chunking = Chunking(chunk_size, time.monotonic())
        self.call = call
        self.progress = progress
        self._submit = submit
        self._futures = futures
        self._ended: SimpleQueue[Chunk] = SimpleQueue()
        self._in_flight: set[Chunk] = set()
        self._is_cancelled = False
        self._sent_items = 0

    def send(self, items: list[Any]) -> Chunk:
        """Submit the next items together. Raises LimitError or ClientClosedError; a chunk that cannot be sent fails."""
        chunk = self._send(items, self._sent_items)
        self._sent_items += len(items)
        self.progress.sent = self._sent_items
        return chunk

    def take_ended(self, timeout_seconds: float | None) -> list[Chunk]:
        """Return the chunks that have ended, or wait for one. Raises UsageError and ClientClosedError."""
        ended: list[Chunk] = []
        with contextlib.suppress(Empty):
            if self._ended.empty() and (timeout_seconds is None or timeout_seconds > 0):
                self._futures.check_waitable()
                with self._futures.blocked():
                    ended.append(self._wait(timeout_seconds))
            while True:
                ended.append(self._ended.get_nowait())
        self._in_flight.difference_update(ended)
        now = time.monotonic()
        for chunk in ended:
            if chunk.future is not None and chunk.failure() is None:
                chunk.ran_seconds = chunk.future.profiling_info().duration_s
            if chunk.found is None:
                self.chunking.ended(chunk.called(), chunk.ran_seconds, now)
            self._take_apart(chunk)
            if chunk.count == 1 and self.call.is_plain and chunk.failure() is not None:
                chunk.shown = "".join(map(show_item, chunk.items_sent()))
            chunk.has_ended = not chunk.parts
            chunk.items, chunk.payload, chunk.references = [], b"", ()
            if chunk.has_ended:
                self.progress.count(
                    chunk.count, chunk.count if chunk.failure() is not None else len(chunk.results().failures)
                )
        return [chunk for chunk in ended if chunk.has_ended]

    def _wait(self, timeout_seconds: float | None) -> Chunk:
        """Wait in steps for a chunk that ends, so that Python handles signals in between. Raises Empty."""
        rest = math.inf if timeout_seconds is None else timeout_seconds
        while rest > WAIT_STEP_SECONDS:
            with contextlib.suppress(Empty):
                return self._ended.get(timeout=WAIT_STEP_SECONDS)
            rest -= WAIT_STEP_SECONDS
        return self._ended.get(timeout=rest)

    def cancel(self) -> None:
        """Cancel all that has not ended, and all that is sent from now on."""
        self._is_cancelled = self.progress.is_over = True
        # The copy of the set is made in one step, whatever the other threads do.
        carry_through(lambda: [chunk.future.cancel() for chunk in list(self._in_flight) if chunk.future is not None])

    def why_late(self, chunk: Chunk, timeout_seconds: float) -> str:
        """Return why a chunk has not ended within a timeout."""
        assert chunk.future is not None, "a chunk that was not sent has ended"
        why = self._futures.why_late(chunk.future, timeout_seconds)
        return f"item {chunk.first} of {self.call.verb} over {self.call.name} has not ended: {why}"

    def explain(self) -> str:
        """Return why the first chunk that has not ended waits, what it does, or that all have ended."""
        sent = [each for each in list(self._in_flight) if each.future is not None and not each.has_ended]
        if not sent:
            return f"all items of {self.call.verb} over {self.call.name} that were sent have ended"
        chunk = min(sent, key=lambda each: each.first)
        assert chunk.future is not None
        return f"item {chunk.first} of {self.call.verb} over {self.call.name}: {chunk.future.explain()}"

    def outcomes(self, chunk: Chunk) -> tuple[list[Any], bool]:
        """Return the values of the items of a chunk, `FailedItem` for a failed one, and whether any has failed."""
        failure = chunk.failure()
        if failure is not None:
            failed = (self._failed(copy_of(failure), chunk, each, shown=chunk.shown) for each in range(chunk.count))
            return list(failed), True
        results = chunk.results()
        values = results.values
        if self.call.is_plain and not results.failures and isinstance(values, PackedValues):
            with contextlib.suppress(Exception):  # each item at fault raises it again
                return values.all(), False
        outcomes = [self._outcome(chunk, position, results) for position in range(len(results))]
        return outcomes, any(type(outcome) is FailedItem for outcome in outcomes)

    def _outcome(self, chunk: Chunk, position: int, results: ChunkResults) -> Any:
        if position in results.failures:
            exception = load_exception(results.failures[position])
            trace = remote_traceback(exception)
            assert trace is not None, "it came from a worker"
            shown, _, trace.text = trace.text.partition("\n")
            return self._failed(exception, chunk, position, is_own=True, shown=shown.removeprefix("item: "))
        try:
            return self.call.load(results[position])
        except SerializationError as error:
            return self._failed(error, chunk, position, is_own=True)

    def _failed(
        self, exception: BaseException, chunk: Chunk, position: int, is_own: bool = False, shown: str = ""
    ) -> FailedItem:
        """Name the item of an exception: in a note, at the top of its remote traceback, and as `item_index`."""
        index = chunk.first + position
        where = f"item {index}"
        if not is_own and chunk.count > 1:
            where = f"items {chunk.first} to {chunk.first + chunk.count - 1}"
        locate(exception, f"{where} of {self.call.verb} over {self.call.name}{shown and f': {shown}'}")
        with contextlib.suppress(AttributeError):  # its class has one of its own
            assign(exception, "item_index", index)
        return FailedItem(exception, index)

    def _send(self, items: list[Any], first: int, is_made: bool = False, failed: int = 0) -> Chunk:
        """is_made: `ItemCall.arguments` made the items. failed: how often the call of a single one has, before."""
        chunk = Chunk(first, items, len(items))
        self.chunking.sent()
        self._in_flight.add(chunk)  # before it is sent, and its future noted first of all: `cancel` must find it
        try:
            chunk.future = future = self._submit(items if is_made else self.call.arguments(items), failed)
        except (SerializationError, UsageError) as error:
            chunk.error = error
            if chunk.count == 1:
                chunk.error = error if is_made else self.call.error_of(items[0], self._futures, error)
                chunk.items = []
            self._note_end(chunk)
            return chunk
        if not is_stored(future.payload):
            chunk.payload, chunk.references = future.payload, future.references
        # The chunk may leave some to be sent again, or a future among them has failed and nothing was sent.
        is_taken_apart = chunk.count > 1 and (self.call.has_limits or future.done())
        if not is_taken_apart:
            chunk.items = []
        future.add_done_callback(lambda _: self._note_end(chunk))
        if self._is_cancelled:
            future.cancel()
        return chunk

    def _take_apart(self, chunk: Chunk) -> None:
        """Send the items of a chunk one by one, if it is one of several and that is of use."""
        if chunk.count == 1 or chunk.found is not None:
            return
        if chunk.future is not None:
            failure = chunk.failure()
            if failure is None and chunk.results().left:
                self._send_left(chunk, chunk.results())
                return
            # A remote traceback: no item was called, since arguments could not be had, or a future among them failed.
            was_called = failure is None or remote_traceback(failure) is None
            if was_called and not isinstance(failure, _OF_ONE_ITEM):
                return
        is_made = not chunk.items
        for number, item in enumerate(chunk.items or chunk.items_sent(), chunk.first):
            chunk.parts.append(self._send_one(item, number, is_made))

    def _send_left(self, chunk: Chunk, results: ChunkResults) -> None:
        """Send the items again that a chunk has left to the client; the others have ended."""
        begin = 0
        for position in [*sorted(results.left), chunk.count]:
            if position > begin:
                part = Chunk(chunk.first + begin, [], position - begin, found=results.part(begin, position))
                chunk.parts.append(part)
                self._note_end(part)
            if position < chunk.count:
                failed = int(results.left[position])
                chunk.parts.append(self._send_one(chunk.items[position], chunk.first + position, failed=failed))
            begin = position + 1

    def _send_one(self, item: Any, number: int, is_made: bool = False, failed: int = 0) -> Chunk:
        try:
            return self._send([item], number, is_made, failed)
        except ScalerError as error:  # a limit, or the client was closed: the outcome of that item
            part = Chunk(number, [], 1, error=error)
            self._note_end(part)
            return part

    def _note_end(self, chunk: Chunk) -> None:
        chunk.ended_at = time.monotonic()
        self._ended.put(chunk)


class Window:
    """How many items may be ahead of the results that were taken. Pure.

    A fixed size is kept. Otherwise it begins small, because items and results may be large, and doubles when the
    consumer has to wait for a result although tasks find workers free: then more of them would run at once.
    """

    def __init__(self, items: int | None, chunk_size: int | None) -> None:
        smallest = chunk_size or 1
        self.items: int
        self._has_free_workers = False
        if items is None:
            self.items = max(FIRST_ITEMS, CHUNKS_OF_WINDOW * smallest)
            self._max_items = max(MAX_ITEMS, self.items)
        else:
            check_integer("window", items, smallest)
            self.items = self._max_items = items
        self.first_items = min(self.items, max(FIRST_ITEMS, CHUNKS_OF_WINDOW * smallest))
        """How many are sent before the first result is asked for."""

    def ended(self, waited_seconds: float, ran_seconds: float) -> None:
        """Learn from a chunk that ended. waited_seconds: how long it did not run."""
        self._has_free_workers = waited_seconds <= max(ran_seconds, TARGET_SECONDS)

    def starved(self, running: int) -> bool:
        """Tell whether the used-up window grows. running: items without outcome; if few, more would only pile up."""
        if not self._has_free_workers or self.items >= self._max_items or 2 * running < self.items:
            return False
        self.items = min(2 * self.items, self._max_items)
        self._has_free_workers = False
        return True


class FlushTimer:
    """Flushes items held longer than FLUSH_SECONDS from the client's thread, which polls while any are held.

    They belong to a chunk that grows while their iterable is asked for the next one, which may depend on their results.
    """

    def __init__(
        self,
        flush: WeakMethod[Callable[[list[Any]], None]],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """flush: weak, called with `lock` held. call_later: calls a function in the client's thread after seconds."""
        self.lock = threading.Lock()
        """Take it to send items."""
        self._flush = flush
        self._call_later = call_later
        self._chunk: list[Any] | None = None
        self._since = 0.0
        self._is_polling = False

    def begin(self, chunk: list[Any]) -> None:
        """Watch a list to which items are added. Flushed items are removed from it."""
        with self.lock:
            self._chunk, self._since = chunk, time.monotonic()
            if self._is_polling:
                return
            self._is_polling = True
        self._call_later(FLUSH_SECONDS, self._poll)

    def end(self) -> None:
        """The list is complete: the next one that takes the lock sends what is left in it."""
        self._chunk = None

    def _poll(self) -> None:
        if self.lock.acquire(blocking=False):  # otherwise items are being sent
            try:
                chunk = self._chunk  # `end` may come at any moment
                if chunk is None:
                    self._is_polling = False
                    return
                flush = self._flush()
                if chunk and flush is not None and time.monotonic() - self._since >= FLUSH_SECONDS:
                    items = chunk[:]  # items that come meanwhile are added behind
                    with contextlib.suppress(ScalerError):  # the consumer will meet it
                        flush(items)
                        del chunk[: len(items)]
            finally:
                self.lock.release()
        self._call_later(FLUSH_SECONDS, self._poll)


class Progress:
    """The bar that `progress=True` shows: tqdm's, in a terminal, notebook, or file. TQDM_DISABLE hides it."""

    def __init__(self, name: str, iterables: Sequence[Iterable[Any]]) -> None:
        with warnings.catch_warnings():  # in a notebook without ipywidgets tqdm warns, and the bar is text
            warnings.filterwarnings("ignore", "IProgress not found")
            from tqdm.auto import tqdm  # noqa: PLC0415 (it takes a while to import, and few need it)

        counts = [length_hint(iterable, -1) for iterable in iterables]
        self._failed = 0
        self._lock = threading.RLock()
        self._is_closed = False
        self._counted: WeakSet[Future[Any]] = WeakSet()
        self._bar = tqdm(total=None if -1 in counts else min(counts), desc=name)

    def ended(self, chunks: Iterable[Chunk]) -> None:
        """Count the items of chunks that have ended, before any value of them is loaded."""
        for chunk in chunks:
            self.count(chunk.count, len(chunk.results().failures) if chunk.failure() is None else chunk.count)

    def count(self, ended: int, failed: int) -> None:
        """Count items that have ended."""
        if failed:
            self._failed += failed
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update(ended)

    def count_future(self, future: Future[Any], count: int = 1) -> None:
        """Count a future that has ended, once; any thread may, until the bar is closed. count: what it stands for."""
        with self._lock:
            if not self._is_closed and future not in self._counted:
                self._counted.add(future)
                self.count(count, 0 if error_of(future) is None else count)

    def close(self) -> None:
        """Leave the bar as it is, with what it has counted last. Harmless when repeated."""
        with self._lock:
            self._is_closed = True
            if self._failed:  # the bar draws ten times a second at most, and must end with the failures
                self._bar.refresh()
            self._bar.close()


def results_of(futures: Sequence[TaskFuture], name: str, return_exceptions: bool, progress: bool) -> list[Any]:
    """Return the results of a map whose items are tasks of their own. Raises the exception of the first that failed."""
    bar = Progress(name, (futures,)) if progress else None
    results: list[Any] = []
    try:
        for index, future in enumerate(futures):
            error = error_of(future)
            if bar is not None:
                bar.count(1, error is not None)
            if error is not None:
                locate(error, f"item {index} of map over {name}")
                with contextlib.suppress(AttributeError):  # its class has one of its own
                    assign(error, "item_index", index)
                if not return_exceptions:
                    raise error
            results.append(future.result() if error is None else error)
    finally:
        if bar is not None:
            bar.close()
    return results


class ResultIterator(Iterator[Any]):
    """Iterates over results of `Client.imap`. Threads may share it: each result goes to one of them.

    When an item has failed, `next` raises its exception, and may be called again for the items after it. `close`, or
    dropping the iterator, cancels what has not ended.
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
        """call_later: calls a function in the client's thread after some seconds. progress: is closed with this."""
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
        self._patient_until = 0.0
        """When a slow iterable is asked for another item, though the result of the last one is not there yet."""
        self._pull_size = 1
        """How many items the iterable gives in about QUICK_SECONDS, as far as that is known."""
        self._ahead = 0
        """Items that were pulled, and whose results were not taken."""
        self._running = 0
        """Items of these whose chunks have not ended."""
        self._waiting: deque[Chunk] = deque()
        self._ready: deque[tuple[list[Any], bool]] = deque()
        """Outcomes of chunks, and whether an item of them failed."""
        self._batch: Any = iter(())
        """Results of one chunk: `next` returns them without a lock. They count as ahead until the last is taken."""
        self._batch_count = 0
        self._error: Exception | None = None
        """The error that ended the iterable, raised after the results of the items before."""
        self._timer = FlushTimer(WeakMethod(self._send), call_later)

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
        """Return why the first item without a result waits. Safe in any thread. Raises UnreachableError."""
        return self._runner.explain()

    def _take_all(self) -> list[Any]:
        """Return all results. At the first error of an item or of the iterable, cancel the rest and raise it."""
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

    def _start(self) -> None:
        """Send the first items, unmeasured and so one by one without a chunk size; only one of a slow iterable."""
        size = self._runner.chunk_size or 1
        try:
            while self._items is not None and not self._is_slow and self._ahead + size <= self._window.first_items:
                self._pull(self._items, size)
        except BaseException:  # Ctrl-C
            self.close()
            raise

    def _limit(self, timeout_seconds: float) -> None:
        """Have `next` raise TimeoutError when results are not there this long from now."""
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds

    def _submit_all(self) -> None:
        """Submit all items now. When it raises, what was submitted is cancelled."""
        try:
            while self._items is not None:
                self._pull(self._items, self._next_size(time.monotonic()))
            errors = [self._error, *(chunk.error for chunk in self._waiting)]
            for error in errors:
                if error is not None:
                    raise error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancel what has not ended; there are no more results. Harmless when repeated, and from any thread."""
        self._is_closed = True
        self._items = None
        self._batch = iter(())
        self._runner.cancel()
        self._close_progress()

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
            outcomes, _ = self._ready.popleft()
            self._batch_count = len(outcomes)
            self._batch = iter(outcomes)

    def _checked(self, outcome: Any, in_loop: bool = False) -> Any:
        """Return an outcome: an exception only if that is a result as others are; otherwise raise it."""
        if type(outcome) is not FailedItem:
            return outcome
        if self._return_exceptions:
            return outcome.exception
        if in_loop and isinstance(outcome.exception, StopIteration):  # it would end the loop, as if all were well
            raise RuntimeError(f"item {outcome.index} raised StopIteration") from outcome.exception
        raise outcome.exception

    def _close_progress(self) -> None:
        self._runner.progress.is_over = True
        if self._progress is not None:
            self._progress.close()

    def __del__(self) -> None:
        if self._running or not self._is_closed:  # a second Ctrl-C may have kept `close` from its end
            self._call_later(0.0, self._runner.cancel)

    def _work(self) -> None:
        """Keep the window full until there is a result, or nothing more to wait for."""
        if self._is_at_work:
            raise UsageError("the iterable of an imap cannot take results of the same imap")
        self._is_at_work = True
        try:
            self._fill_and_wait()
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the loop around this ends, and the iterator may be dropped much later
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
            size = self._next_size(now)
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
        """Return how long to wait for a result before a slow iterable is asked for another item."""
        return max(0.0, self._patient_until - time.monotonic()) if self._running else 0.0

    def _next_size(self, now: float) -> int:
        """Return how many items the next chunk may have; 0: wait."""
        size = self._runner.chunking.next_size(now)
        if self._runner.chunk_size is not None:
            return size
        return min(size, max(1, self._window.items // CHUNKS_OF_WINDOW), self._pull_size)

    def _pull(self, items: Iterator[Any], size: int) -> None:
        chunk: list[Any] = []
        ahead = self._ahead
        began = time.monotonic()
        if size > 1 and self._runner.chunk_size is None:
            self._timer.begin(chunk)
        try:
            chunk.extend(itertools.islice(items, size))  # one by one: the timer and an error find those that came
        except Exception as error:  # noqa: BLE001 (whatever the iterable raises is for the consumer)
            self._items = None
            self._error = error
        finally:
            self._timer.end()
        with self._timer.lock:
            count = self._ahead - ahead + len(chunk)
            if count < size:
                self._items = None
                self._runner.progress.items = 0  # those that were sent are all, whatever was expected
            if not count:
                return
            ended = time.monotonic()
            took_seconds = ended - began
            self._is_slow = took_seconds / count > QUICK_SECONDS
            is_patient = self._is_slow and self._window.items != UNBOUNDED
            self._patient_until = ended + PART_WAITED * took_seconds if is_patient else 0.0
            if took_seconds > QUICK_SECONDS:
                self._pull_size = max(1, int(count * QUICK_SECONDS / took_seconds))
            else:
                self._pull_size = min(2 * self._pull_size, MAX_CHUNK_ITEMS)
            if chunk:
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
        """Note what has ended; when nothing has, and no result is there, wait for it."""
        ended = self._runner.take_ended(0.0 if self._ready else timeout_seconds)
        if self._progress is not None:
            self._progress.ended(ended)
        for chunk in ended:
            self._running -= chunk.count
            if chunk.ran_seconds is not None:
                self._window.ended(chunk.ended_at - chunk.sent_at - chunk.ran_seconds, chunk.ran_seconds)
            if not self._in_order:
                self._ready.append(self._runner.outcomes(chunk))
        waiting = self._waiting
        while waiting and (waiting[0].has_ended or waiting[0].parts):
            chunk = waiting.popleft()
            if chunk.parts:  # they stand in its place
                waiting.extendleft(reversed(chunk.parts))
            else:
                self._ready.append(self._runner.outcomes(chunk))
