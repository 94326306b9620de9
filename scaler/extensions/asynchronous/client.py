"""`AsyncClient`: a client for asyncio that never blocks the event loop. Blocking calls run in threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from scaler.client.client import Client
from scaler.client.connect import say_unfinished
from scaler.client.extended import AsyncExtendedCalls, AsyncExtendedQuestions
from scaler.client.future import CalledInLoop, ScalerFuture
from scaler.client.gathering import Completion, futures_in, gather
from scaler.client.options import OptionKeywords, options_of
from scaler.client.task_calls import ClientView
from scaler.errors import ClientClosedError
from scaler.extensions.async_calls import AsyncCalls, in_thread
from scaler.plugins import part_of

P = ParamSpec("P")
T = TypeVar("T")


def asked(method: Callable[Concatenate[Client, P], T]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return a coroutine function that runs this `Client` method in a thread."""

    @functools.wraps(method)
    async def call(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(client._asking, partial(method, client._open, *args, **kwargs))

    return call


class AsyncClient(AsyncExtendedQuestions, AsyncExtendedCalls, AsyncCalls):
    """A connection to a scheduler for one event loop, with `Client`'s methods and arguments.

    Methods that return futures in `Client` return awaitable futures at once. All other methods are coroutines. No call
    blocks the event loop: at a scheduler limit, tasks wait in the client. `submit` pickles its arguments in the event
    loop, so send large arguments with `send_object` first.

    Example:
        ```python
        async with AsyncClient() as client:
            print(await client.submit(pow, 2, 10))       # 1024
            async for value in client.map(abs, [-1, -2]):
                print(value)                             # 1, then 2
        ```
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        """address, options: the arguments of `Client`. `async with` connects."""
        self._make = partial(Client, address, **options)
        self._client: Client | None = None
        self._thread = ThreadPoolExecutor(1, "scaler-submit")
        self._asking = ThreadPoolExecutor(thread_name_prefix="scaler-ask")

    def __repr__(self) -> str:
        return f"<AsyncClient {'not connected' if self._client is None else self._client!r}>"

    async def __aenter__(self) -> Self:
        """Connect. Raises the same exceptions as `Client`."""
        client = await in_thread(self._thread, self._make, late=Client.disconnect)
        client._futures.event_loops.add(asyncio.get_running_loop())
        self._client = client
        return self

    async def __aexit__(
        self, type_: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if type_ is None and self._client is not None:
            say_unfinished(self._client._loop)
        await self.disconnect()

    def options(self, **options: Unpack[OptionKeywords]) -> AsyncView:
        """Return a view of this client that submits with these options, like `Client.options`."""
        return AsyncView(self, options)

    def as_completed(self, futures: Iterable[ScalerFuture] = (), *, timeout: float | None = None) -> AsyncCompleted:
        """Iterate over futures in completion order with `async for`. `add` appends futures during the iteration.

        Args:
            futures: the initial futures.
            timeout: seconds until the iteration raises TimeoutError.
        """
        return AsyncCompleted(futures, timeout)

    async def gather(self, futures: Any, *, return_exceptions: bool = False) -> Any:
        """Return the values of futures in nested lists, tuples, sets, and dicts, like `Client.gather`."""
        async for future in AsyncCompleted(futures_in(futures), None):
            if not return_exceptions:
                await future
        return gather(futures, return_exceptions=return_exceptions)

    send_object = asked(Client.send_object)
    progress = asked(Client.progress)
    clear = asked(Client.clear)

    @property
    def identity(self) -> bytes:
        """This client's id, which prefixes its task ids."""
        return self._open.identity

    async def wait_for_workers(self, count: int, timeout: float | None = None) -> None:  # noqa: ASYNC109 (Client's)
        """Wait until this many workers are connected, like `Client.wait_for_workers`."""
        client = self._open
        if not client._is_in_process:
            start = part_of("queries", "questions", "wait_for_workers")._workers
            await asyncio.wrap_future(start(client, count, timeout))

    async def ask(self, method: Callable[Concatenate[Client, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, passing the `Client`: `await client.ask(Client.map, fn, items, cache=True)`."""
        return await in_thread(self._asking, partial(method, self._open, *args, **kwargs))

    async def shutdown(self) -> None:
        """Shut down the cluster, then this client, like `Client.shutdown`."""
        await self.ask(Client.shutdown)
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close this client, like `Client.disconnect`. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.disconnect)
            self._thread.shutdown(wait=False)
            self._asking.shutdown(wait=False)

    @property
    def _open(self) -> Client:
        if self._client is None:
            raise ClientClosedError(
                "the client is not connected: use it inside `async with AsyncClient(...) as client`"
            )
        return self._client


class AsyncView(AsyncExtendedCalls, AsyncCalls):
    """A view that submits a client's tasks with options, as returned by `client.options(...)`."""

    def __init__(self, client: AsyncClient, given: OptionKeywords) -> None:
        options_of(given, "options")
        self._client = client
        self._given = given
        self._thread = client._thread

    def options(self, **options: Unpack[OptionKeywords]) -> AsyncView:
        """Return a view with these options, which override the options of this view."""
        return AsyncView(self._client, {**self._given, **options})

    @cached_property
    def _open(self) -> ClientView:
        return self._client._open.options(**self._given)


class AsyncCompleted(Completion, AsyncIterator[ScalerFuture]):
    """Yields futures in completion order; `add` appends futures during iteration. Bound to one event loop."""

    def __init__(self, futures: Iterable[ScalerFuture], timeout: float | None) -> None:
        self._ended: asyncio.Queue[ScalerFuture] = asyncio.Queue()
        self._take = CalledInLoop(asyncio.get_running_loop(), self._ended.put_nowait)
        super().__init__(futures, timeout)

    async def __anext__(self) -> ScalerFuture:
        """Return the next finished future. Raises TimeoutError after the timeout; iteration can continue after that."""
        if not self._left:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout(self._seconds_left()):
                future = await self._ended.get()
        except TimeoutError:
            raise self._late() from None
        self._left -= 1
        return future
