"""The methods of asyncio clients that iterate over items."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from operator import length_hint
from typing import Any, Concatenate, ParamSpec

from scaler.client.task_calls import PublicCalls
from scaler.extensions.async_calls import AsyncCalls, passed, take_late
from scaler.extensions.maps.calls import MapCalls, starmap_results
from scaler.extensions.maps.results import ResultIterator
from scaler.extensions.maps.window import UNBOUNDED

P = ParamSpec("P")


def _iterated(
    method: Callable[Concatenate[PublicCalls, P], ResultIterator],
    public: Callable[Concatenate[PublicCalls, P], object] | None = None,
) -> Callable[Concatenate[AsyncCalls, P], AsyncResults]:
    """public: the `Client` method that documents the call, if `method` is internal."""

    @functools.wraps(public or method)
    def call(calls: AsyncCalls, /, *args: P.args, **kwargs: P.kwargs) -> AsyncResults:
        return AsyncResults(partial(method, calls._open, *args, **kwargs))

    shown = inspect.signature(public or method).replace(return_annotation="AsyncResults")
    call.__signature__ = shown  # type: ignore[attr-defined]  # for `help`
    return call


class AsyncMapCalls(AsyncCalls):
    executor = passed(MapCalls.executor)
    starmap = _iterated(starmap_results, MapCalls.starmap)
    imap = _iterated(MapCalls.imap)
    imap_unordered = _iterated(MapCalls.imap_unordered)

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **options: Any) -> AsyncResults:
        """Call `fn` with the items of the iterables in parallel: `await` returns the list, `async for` yields each
        result.

        Args:
            fn: the function.
            iterables: one iterable for each argument of the function. All items are sent at once.
            options: as in `Client.imap`.
        """
        return self.imap(fn, *iterables, window=UNBOUNDED, **options)


class AsyncResults(AsyncIterator[Any]):
    """The results of a `map` or `imap`: `async for` yields each result, `await` returns a list.

    A failed item raises its exception in order; the next `anext` continues with later items.
    """

    def __init__(self, make: Callable[[], ResultIterator]) -> None:
        """make: starts the call, in the thread that then consumes the results. Create in the event loop."""
        self._thread = ThreadPoolExecutor(1, "scaler-results")
        self._made = self._thread.submit(copy_context().run, make)
        self._outcomes: deque[tuple[Any, BaseException | None]] = deque()

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._all().__await__()

    async def __anext__(self) -> Any:
        if not self._outcomes:
            try:
                taking = self._thread.submit(self._take)
            except RuntimeError:  # already closed
                raise StopAsyncIteration from None
            try:
                taken = await asyncio.wrap_future(taking)
            except asyncio.CancelledError:
                self.close()
                raise
            if not taken:
                self.close()
                raise StopAsyncIteration
            self._outcomes.extend(taken)
        value, error = self._outcomes.popleft()
        if error is not None:
            raise error
        return value

    async def aclose(self) -> None:
        """Cancel unfinished items and end the iteration. Idempotent."""
        self.close()

    def close(self) -> None:
        """Like `aclose`, but also callable outside the event loop."""
        self._outcomes.clear()
        self._made.add_done_callback(partial(take_late, ResultIterator.close))
        self._thread.shutdown(wait=False)

    async def _all(self) -> list[Any]:
        try:
            return [result async for result in self]
        finally:
            self.close()

    def _take(self) -> list[tuple[Any, BaseException | None]]:
        """Wait for a result. Returns all results that are ready, or an empty list at the end."""
        results = self._made.result()
        taken: list[tuple[Any, BaseException | None]] = []
        try:
            taken.append((next(results), None))
            while length_hint(results._batch):
                taken.append((next(results), None))
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 (passed on to the consumer)
            taken.append((None, error))
        return taken
