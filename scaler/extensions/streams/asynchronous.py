"""Streams of asyncio clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Self

from scaler.client.future import CalledInLoop, ScalerFuture
from scaler.extensions.async_calls import AsyncCalls
from scaler.extensions.streams.client import LocalStream, Stream, StreamCalls


class AsyncStreamCalls(AsyncCalls):
    def stream(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> AsyncStream:
        """Run the generator `fn(*args)` as a task: `async for` yields its values while it runs.

        Args:
            fn: a generator function, or a function that returns another iterable.
            args: arguments of the function.
            options: as in `Client.stream`.
        """
        return AsyncStream(StreamCalls.stream(self._open, fn, *args, **options))


class AsyncStream(AsyncIterator[Any]):
    """The values of a stream. Use it as `async with` to stop the task at the end of the block.

    A cancelled `anext`, for example after a timeout, loses no value: the next `anext` continues.
    """

    def __init__(self, stream: Stream) -> None:
        """Create in the event loop."""
        self._stream = stream
        self._changed = changed = asyncio.Event()
        if not isinstance(stream, LocalStream):
            stream._observe(CalledInLoop(asyncio.get_running_loop(), lambda _: changed.set()))

    @property
    def future(self) -> ScalerFuture:
        """The future of the task, whose value is the generator's return value."""
        return self._stream.future

    async def __anext__(self) -> Any:
        stream = self._stream
        if not isinstance(stream, LocalStream):
            with stream._loop.futures.blocked():
                while not stream._has_next:
                    self._changed.clear()
                    await self._changed.wait()
            if stream._is_drained:
                with suppress(Exception):  # raised by `next`
                    await stream.future  # fetches a large value
        try:
            return next(stream)
        except StopIteration:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Stop the task and end the iteration. Idempotent."""
        self._stream.close()

    async def aclose(self) -> None:
        """Like `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
