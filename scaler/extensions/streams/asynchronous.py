"""Streams of asyncio clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Self

from scaler.extensions.async_calls import AsyncCalls, take_late
from scaler.extensions.streams.calls import StreamCalls
from scaler.extensions.streams.results import Stream

_END = object()


class AsyncStreamCalls(AsyncCalls):
    def stream(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> AsyncStream:
        """Run the generator `fn(*args)` as a task: `async for` yields its values while it runs.

        Args:
            fn: a generator function, or a function that returns another iterable.
            args: arguments of the function.
            options: as in `Client.stream`.
        """
        return AsyncStream(partial(StreamCalls.stream, self._open, fn, *args, **options))


class AsyncStream(AsyncIterator[Any]):
    """The values of a stream. Use it as `async with` to stop the task at the end of the block."""

    def __init__(self, make: Callable[[], Stream]) -> None:
        """make: starts the stream, in the thread that then takes its values."""
        self._thread = ThreadPoolExecutor(1, "scaler-stream")
        self._made = self._thread.submit(copy_context().run, make)

    async def __anext__(self) -> Any:
        try:
            taking = self._thread.submit(self._take)
        except RuntimeError:  # already closed
            raise StopAsyncIteration from None
        try:
            value = await asyncio.wrap_future(taking)
        except BaseException:
            self.close()
            raise
        if value is _END:
            self.close()
            raise StopAsyncIteration
        return value

    def _take(self) -> Any:
        return next(self._made.result(), _END)

    def close(self) -> None:
        """Stop the task, and end the iteration. Idempotent, and callable outside the event loop."""
        self._made.add_done_callback(partial(take_late, Stream.close))
        self._thread.shutdown(wait=False)

    async def aclose(self) -> None:
        """Like `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
