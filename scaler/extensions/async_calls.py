"""Task submission methods of `AsyncClient` and its views. Blocking calls run in threads."""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from scaler.client.task_calls import PublicCalls

P = ParamSpec("P")
T = TypeVar("T")


def passed(method: Callable[Concatenate[PublicCalls, P], T]) -> Callable[Concatenate[AsyncCalls, P], T]:
    @functools.wraps(method)
    def call(calls: AsyncCalls, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(calls._open, *args, **kwargs)  # noqa: SLF001 (of a subclass)

    return call


class AsyncCalls(ABC):
    _thread: ThreadPoolExecutor

    @property
    @abstractmethod
    def _open(self) -> PublicCalls:
        """The underlying client or view. Raises ClientClosedError if not connected."""

    submit = passed(PublicCalls.submit)
    submit_verbose = passed(PublicCalls.submit_verbose)
    cache = passed(PublicCalls.cache)


async def in_thread(
    thread: ThreadPoolExecutor, call: Callable[[], T], late: Callable[[T], object] = lambda _: None
) -> T:
    """Call a function in a thread. late: receives the value if this coroutine was cancelled first."""
    running = thread.submit(copy_context().run, call)
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        running.add_done_callback(partial(take_late, late))
        raise


def take_late(late: Callable[[T], object], ended: Future[T]) -> None:
    if not ended.cancelled() and ended.exception() is None:
        late(ended.result())
