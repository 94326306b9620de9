"""AsyncClient: a client for asyncio, whose calls do not block the event loop. Blocking calls run in threads."""

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
    """Return a method of `Client` as a coroutine function, which runs in a thread."""

    @functools.wraps(method)
    async def call(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(client._asking, partial(method, client._open, *args, **kwargs))

    return call


class AsyncClient(AsyncExtendedQuestions, AsyncExtendedCalls, AsyncCalls):
    """A connection to a scheduler for one event loop, with `Client`'s methods and arguments.

    Methods that return a future in `Client` return at once, and all other methods are coroutines: one `await` gives the
    value. No call blocks the event loop; when a scheduler limit is reached, tasks wait in the client. `submit` pickles
    its arguments in the event loop, so send large arguments with `send_object` first.

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
        """Connect. Raises the exceptions of `Client`."""
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
        """Iterate with `async for` over futures in the order of completion. `add` appends futures during the iteration.

        Args:
            futures: the futures to begin with.
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
        """The id of this client: the prefix of its task ids."""
        return self._open.identity

    async def wait_for_workers(self, count: int, timeout: float | None = None) -> None:  # noqa: ASYNC109 (Client's)
        """Return once this many workers are connected, like `Client.wait_for_workers`."""
        client = self._open
        if not client._is_in_process:
            start = part_of("queries", "questions", "wait_for_workers")._workers
            await asyncio.wrap_future(start(client, count, timeout))

    async def ask(self, method: Callable[Concatenate[Client, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function with the `Client` in a thread: `await client.ask(Client.map, fn, items, cache=True)`."""
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
    """Submits tasks of a client with options, as returned by `client.options(...)`."""

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
    """Yields futures in the order of completion; `add` appends futures during iteration. Belongs to one event loop."""

    def __init__(self, futures: Iterable[ScalerFuture], timeout: float | None) -> None:
        self._ended: asyncio.Queue[ScalerFuture] = asyncio.Queue()
        self._take = CalledInLoop(asyncio.get_running_loop(), self._ended.put_nowait)
        super().__init__(futures, timeout)

    async def __anext__(self) -> ScalerFuture:
        """Return the next finished future. Raises TimeoutError after the timeout, and can then be called again."""
        if not self._left:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout(self._seconds_left()):
                future = await self._ended.get()
        except TimeoutError:
            raise self._late() from None
        self._left -= 1
        return future
