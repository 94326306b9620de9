"""Pool: a drop-in replacement for `multiprocessing.Pool` on a cluster."""

from __future__ import annotations

import multiprocessing
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self, Unpack

from scaler.client.client import Client
from scaler.client.future import error_of
from scaler.client.options import OptionKeywords, check_integer, options_of
from scaler.client.task_calls import hiding_frames_of_methods
from scaler.cluster.combo import SchedulerClusterCombo
from scaler.errors import UsageError
from scaler.extensions.maps.chunks import Prepared, Setup
from scaler.extensions.maps.results import ResultIterator, iterate
from scaler.extensions.maps.runner import why_one
from scaler.extensions.maps.window import UNBOUNDED
from scaler.serialization.exceptions import hide_frames, hiding_frames

Callback = Callable[[Any], object]
ErrorCallback = Callable[[BaseException], object]
_RUN, _CLOSE, _TERMINATE = "RUN", "CLOSE", "TERMINATE"


class AsyncResult:
    """The result of a pool's call."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    @hiding_frames
    def get(self, timeout: float | None = None) -> Any:
        """Return the result, waiting up to `timeout` seconds.

        Raises the call's exception, `multiprocessing.TimeoutError`, or CancelledError after `Pool.terminate`.
        """
        try:
            return self._future.result(timeout)
        except TimeoutError as error:
            if self._future.done() and self._future.exception() is error:
                raise
            raise multiprocessing.TimeoutError(str(error) or f"no result within {timeout} s") from None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the call has ended, for at most `timeout` seconds."""
        wait([self._future], timeout)

    def ready(self) -> bool:
        """Return whether the call has ended."""
        return self._future.done()

    def successful(self) -> bool:
        """Return whether the call ended without an exception. Raises ValueError if it has not ended."""
        if not self._future.done():
            raise UsageError("the call has not ended: check ready() or call wait() first")
        return not self._future.cancelled() and self._future.exception() is None


class PoolIterator(Iterator[Any]):
    """Iterates over the results of `Pool.imap`. Threads may share the iterator: each result goes to one thread."""

    def __init__(self, outcomes: SimpleQueue[tuple[bool, Any] | None]) -> None:
        self._outcomes = outcomes

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result, waiting up to `timeout` seconds.

        Raises the call's exception, StopIteration at the end, and `multiprocessing.TimeoutError`.
        """
        try:
            outcome = self._outcomes.get(timeout=timeout)
        except Empty:
            raise multiprocessing.TimeoutError(f"no result within {timeout} s") from None
        if outcome is None:
            self._outcomes.put(None)  # for the next call, perhaps by another thread
            raise StopIteration
        has_succeeded, value = outcome
        if has_succeeded:
            return value
        hide_frames(value)
        raise value

    def __next__(self) -> Any:
        return self.next()


@hiding_frames_of_methods()
class Pool:
    """Runs calls on a cluster, for code written for `multiprocessing.Pool`.

    Threads may share a pool. A pool submits all work at once, and needs no `if __name__ == "__main__"`.

    Args:
        processes: start a local cluster of this many workers, stopped with the pool. Not with `client` or `address`.
        initializer: called with `initargs` in each process before the pool's first call there. An initializer from
            `__main__` runs once for each function of `__main__`, in that function's globals.
        initargs: arguments of the initializer.
        maxtasksperchild: start a local cluster that replaces each process after this many tasks. Not with `client` or
            `address`.
        client: use this client, which remains open.
        address: connect to the cluster at this address. Default: as in `Client`.
        options: options of each call, as in `Client.submit_verbose`.

    Raises:
        UsageError: An argument is invalid.
        UnreachableError: No scheduler answers.

    Example:
        ```python
        with Pool(4) as pool:
            print(pool.starmap(pow, [(2, 3), (3, 2)]))   # [8, 9]
        ```
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        *,
        client: Client | None = None,
        address: str | None = None,
        **options: Unpack[OptionKeywords],
    ) -> None:
        self._state = _CLOSE  # until the constructor has finished: see `__del__`
        options_of(options, "Pool")  # before a cluster starts
        self._cluster: SchedulerClusterCombo | None = None
        if client is not None and address is not None:
            raise UsageError("a pool takes a client or an address, not both")
        for name, number in (("processes", processes), ("maxtasksperchild", maxtasksperchild)):
            if number is None:
                continue
            check_integer(name, number, 1)
            if client is not None or address is not None:
                raise UsageError(
                    f"{name} applies only to the pool's own cluster: omit {name}, or omit client and address"
                )
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer is {initializer!r}, but must be callable")
        if processes is not None or maxtasksperchild is not None:
            self._cluster = SchedulerClusterCombo(
                n_workers=processes, max_tasks_per_processor=maxtasksperchild or 0, protected=False
            )
            address = self._cluster.get_address()
        self._owns_client = client is None
        self._client = client or Client(address)
        self._options = options_of(options, "Pool", self._client._options)
        self._unfinished: dict[Future[Any], Callable[[], object]] = {}
        self._initializer = initializer
        if initializer is not None:
            self._setup = self._client.send_object(Setup(uuid.uuid4().hex, tuple(initargs)), name="initargs")
        self._state = _RUN

    def __repr__(self) -> str:
        return f"<Pool state={self._state}, {len(self._unfinished)} unfinished, on {self._client!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise UsageError("a pool cannot be sent to a task: create one in the task with Pool()")

    def __del__(self) -> None:
        if self._state == _RUN:
            warnings.warn(f"unclosed running pool {self!r}", ResourceWarning, source=self, stacklevel=2)

    # -- single calls

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None) -> Any:
        """Call `func(*args, **kwds)` on a worker and return the result."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult:
        """Call `func(*args, **kwds)` on a worker, and return an AsyncResult at once.

        Args:
            func: the function.
            args: arguments of the function.
            kwds: keyword arguments of the function.
            callback: called with the value before the result is ready, in the client's thread. Must not wait.
            error_callback: called with the exception instead.
        """
        self._check_running()
        arguments = tuple(args)
        if self._initializer is not None:
            func, arguments = Prepared(func, self._initializer, spread=True), ((self._setup, arguments),)
        future = self._client._submit(func, arguments, dict(kwds or {}), self._options)
        return self._result(future, future.cancel, callback, error_callback)

    # -- many calls

    def map(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None) -> list[Any]:
        """Call `func(item)` for all items and return the list of results.

        Args:
            func: the function.
            iterable: the items.
            chunksize: calls in a chunk. Default: chosen by measurement.

        Raises:
            Exception: The exception of the first failed item, after all other items have run.
        """
        return list(self.map_async(func, iterable, chunksize).get())

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[Any]:
        """Call `func(*item)` for all items and return the list of results. Otherwise like `map`."""
        return list(self.starmap_async(func, iterable, chunksize).get())

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult:
        """Start `map`; return an AsyncResult at once. callback, error_callback: as in `apply_async`."""
        return self._consume(self._results("map", func, list(iterable), chunksize), None, callback, error_callback)

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult:
        """Start `starmap`; return an AsyncResult at once. callback, error_callback: as in `apply_async`."""
        results = self._results("starmap", func, list(iterable), chunksize)
        return self._consume(results, None, callback, error_callback)

    def imap(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None) -> PoolIterator:
        """Call `func` with each item, and return an iterator over the results in order.

        Args:
            func: the function.
            iterable: a finite iterable. A thread takes all its items at once.
            chunksize: as in `map`.

        Returns:
            An iterator. `next` raises the exception of a failed item when its turn comes, and an exception of the
            iterable after the results of earlier items.
        """
        return self._iterate("imap", func, iterable, chunksize)

    def imap_unordered(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> PoolIterator:
        """Like `imap`, with results in completion order."""
        return self._iterate("imap_unordered", func, iterable, chunksize)

    # -- shutdown

    def close(self) -> None:
        """Refuse further calls. Submitted calls continue."""
        if self._state == _RUN:
            self._state = _CLOSE

    def terminate(self) -> None:
        """Cancel all unfinished calls, including running ones, and close the pool's own client and cluster."""
        self._state = _TERMINATE
        for cancel in list(self._unfinished.values()):
            cancel()
        self._end()

    def join(self) -> None:
        """Wait for all calls, then close the pool's own client and cluster. Raises ValueError before `close`."""
        if self._state == _RUN:
            raise UsageError("the pool is still running: call close() or terminate() before join()")
        while self._unfinished:
            wait(list(self._unfinished))
        self._end()

    def __enter__(self) -> Self:
        self._check_running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.terminate()

    # -- internals

    def _check_running(self) -> None:
        if self._state != _RUN:
            raise UsageError("the pool was closed: create a new one")

    def _end(self) -> None:
        if self._owns_client:
            self._client.disconnect()
        if self._cluster is not None:
            self._cluster.shutdown()

    def _results(
        self, verb: str, func: Callable[..., Any], items: Iterable[Any], chunksize: int | None
    ) -> ResultIterator:
        self._check_running()
        if self._initializer is not None:
            setup, func = self._setup, Prepared(func, self._initializer, spread=verb == "starmap")
            items = ((setup, item) for item in items)
            verb = "map" if verb == "starmap" else verb
        size = 1 if why_one(self._options, self._client._serializer) else chunksize
        return iterate(self._client, verb, func, (items,), size, UNBOUNDED, self._options)

    def _iterate(
        self, verb: str, func: Callable[..., Any], items: Iterable[Any], chunksize: int | None
    ) -> PoolIterator:
        outcomes: SimpleQueue[tuple[bool, Any] | None] = SimpleQueue()
        self._consume(self._results(verb, func, items, chunksize), outcomes)
        return PoolIterator(outcomes)

    def _consume(
        self,
        results: ResultIterator,
        outcomes: SimpleQueue[tuple[bool, Any] | None] | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult:
        """Collect all results in a thread. outcomes: receives each result, then None, in place of the AsyncResult."""
        ended: Future[Any] = Future()

        def run() -> None:
            values: list[Any] = []
            error: BaseException | None = None
            is_over = False
            while not is_over:
                try:
                    has_succeeded, value = True, next(results)
                except StopIteration:
                    break
                except BaseException as failure:  # noqa: BLE001 (any exception of an item is its outcome)
                    has_succeeded, value = False, failure
                    is_over = self._client._futures.closed is not None  # each further `next` would raise it
                if outcomes is not None:
                    outcomes.put((has_succeeded, value))
                elif has_succeeded:
                    values.append(value)
                elif error is None:
                    error = value
            if _settle(ended, values, error) and outcomes is not None:
                outcomes.put(None)

        def cancel() -> None:
            # First: otherwise, the thread would complete the result with the values so far.
            is_unfinished = _settle(ended, None, CancelledError())
            results.close()
            if is_unfinished and outcomes is not None:
                outcomes.put((False, CancelledError()))
                outcomes.put(None)

        result = self._result(ended, cancel, callback, error_callback)
        threading.Thread(target=run, name="scaler-pool", daemon=True).start()
        return result

    def _result(
        self,
        future: Future[Any],
        cancel: Callable[[], object],
        callback: Callback | None,
        error_callback: ErrorCallback | None,
    ) -> AsyncResult:
        if callback is not None or error_callback is not None:
            future = _after_callback(future, callback, error_callback)
        unfinished = self._unfinished
        unfinished[future] = cancel
        future.add_done_callback(lambda ended: unfinished.pop(ended, None))
        if self._state == _TERMINATE:  # by another thread, which may have missed this call
            cancel()
        return AsyncResult(future)


def _settle(future: Future[Any], value: Any, error: BaseException | None) -> bool:
    try:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
    except InvalidStateError:
        return False
    return True


def _after_callback(
    future: Future[Any], callback: Callback | None, error_callback: ErrorCallback | None
) -> Future[Any]:
    after: Future[Any] = Future()

    def call(ended: Future[Any]) -> None:
        error = error_of(ended)
        value = ended.result() if error is None else None
        try:
            if error is None and callback is not None:
                callback(value)
            if error is not None and error_callback is not None and not isinstance(error, CancelledError):
                error_callback(error)
        finally:
            _settle(after, value, error)

    future.add_done_callback(call)
    return after
