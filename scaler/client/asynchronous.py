"""AsyncClient: a client for asyncio, whose calls do not block the event loop. Blocking calls run in threads."""

from __future__ import annotations

import asyncio
import functools
import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from operator import length_hint
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from scaler.client.client import Client
from scaler.client.connect import say_unfinished
from scaler.client.future import CalledInLoop, ScalerFuture
from scaler.client.gathering import Completion, futures_in, gather
from scaler.client.graph import GraphRun
from scaler.client.graph_plan import Key
from scaler.client.map import ResultIterator
from scaler.client.options import OptionKeywords, options_of
from scaler.client.task_calls import ClientView, TaskCalls
from scaler.client.window import UNBOUNDED
from scaler.errors import ClientClosedError

P = ParamSpec("P")
T = TypeVar("T")


def _passed(method: Callable[Concatenate[TaskCalls, P], T]) -> Callable[Concatenate[AsyncCalls, P], T]:
    @functools.wraps(method)
    def call(calls: AsyncCalls, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(calls._open, *args, **kwargs)

    return call


def _iterated(
    method: Callable[Concatenate[TaskCalls, P], ResultIterator],
    public: Callable[Concatenate[TaskCalls, P], object] | None = None,
) -> Callable[Concatenate[AsyncCalls, P], AsyncResults]:
    """public: the method of `Client` that describes the call, if `method` is an internal one."""

    @functools.wraps(public or method)
    def call(calls: AsyncCalls, /, *args: P.args, **kwargs: P.kwargs) -> AsyncResults:
        return AsyncResults(partial(method, calls._open, *args, **kwargs))

    shown = inspect.signature(public or method).replace(return_annotation="AsyncResults")
    call.__signature__ = shown  # type: ignore[attr-defined]  # for `help`
    return call


def _asked(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return a method of `Client` as a coroutine function, which runs in a thread."""

    @functools.wraps(method)
    async def call(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _in_thread(client._asking, partial(method, client._open, *args, **kwargs))

    return call


class AsyncCalls(ABC):
    _thread: ThreadPoolExecutor

    @property
    @abstractmethod
    def _open(self) -> TaskCalls:
        """The client or view that makes the calls. Raises ClientClosedError."""

    submit = _passed(TaskCalls.submit)
    submit_verbose = _passed(TaskCalls.submit_verbose)
    cache = _passed(TaskCalls.cache)
    executor = _passed(TaskCalls.executor)
    starmap = _iterated(TaskCalls._starmap, TaskCalls.starmap)
    imap = _iterated(TaskCalls.imap)
    imap_unordered = _iterated(TaskCalls.imap_unordered)

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **options: Any) -> AsyncResults:
        """Call `fn` with the items of the iterables in parallel: `await` gives the list, `async for` yields each
        result.

        Args:
            fn: the function.
            iterables: one iterable for each argument of the function. All items are sent at once.
            options: as in `Client.imap`.
        """
        return self.imap(fn, *iterables, window=UNBOUNDED, **options)

    async def get(
        self,
        graph: Mapping[Any, Any],
        keys: Sequence[Any],
        block: bool = True,
        *,
        progress: bool = False,
        **options: Any,
    ) -> dict[Key, Any]:
        """Compute these keys of a graph, like `Client.get`; return the keys with their values or futures."""
        call = partial(self._open._graph, graph, keys, block=block, **options)
        run = await _in_thread(self._thread, call, late=GraphRun.cancel)
        if not block:
            return run.futures
        with run.shown(progress):
            return {key: await future for key, future in run.futures.items()}


class AsyncClient(AsyncCalls):
    """A connection to a scheduler for one event loop, with the methods and arguments of `Client`.

    Methods that return a future in `Client` return at once, and all other methods are coroutines: one `await` gives the
    value. No call blocks the event loop; at a limit of the scheduler, tasks wait in the client. `submit` pickles its
    arguments in the event loop, so send large arguments with `send_object` first.

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
        client = await _in_thread(self._thread, self._make, late=Client.disconnect)
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

    send_object = _asked(Client.send_object)
    upload = _asked(Client.upload)
    persist = _asked(Client.persist)
    futures = _asked(Client.futures)
    explain = _asked(Client.explain)
    logs = _asked(Client.logs)
    who_has = _asked(Client.who_has)
    objects = _asked(Client.objects)
    profile = _asked(Client.profile)
    bundle = _asked(Client.bundle)
    replay = _asked(Client.replay)
    cluster = _asked(Client.cluster)
    table = _asked(Client.table)
    history = _asked(Client.history)
    tasks = _asked(Client.tasks)
    cancel = _asked(Client.cancel)
    run = _asked(Client.run)
    restart_workers = _asked(Client.restart_workers)
    progress = _asked(Client.progress)
    clear = _asked(Client.clear)

    @property
    def identity(self) -> bytes:
        """The id of this client: the prefix of its task ids."""
        return self._open.identity

    async def wait_for_workers(self, count: int, timeout: float | None = None) -> None:  # noqa: ASYNC109 (Client's)
        """Return once this many workers are connected, like `Client.wait_for_workers`."""
        await asyncio.wrap_future(self._open._workers(count, timeout))

    async def ask(self, method: Callable[Concatenate[Client, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function with the `Client` in a thread: `await client.ask(Client.map, fn, items, cache=True)`."""
        return await _in_thread(self._asking, partial(method, self._open, *args, **kwargs))

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


class AsyncView(AsyncCalls):
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


class AsyncResults(AsyncIterator[Any]):
    """The results of a `map` or `imap`: `async for` yields each result, `await` returns a list.

    A failed item raises its exception in order; calling `anext` again continues with later items.
    """

    def __init__(self, make: Callable[[], ResultIterator]) -> None:
        """make: starts the call, in the thread that then consumes the results. Called in the event loop."""
        self._thread = ThreadPoolExecutor(1, "scaler-results")
        self._made = self._thread.submit(make)
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
        """Like `aclose`, but also callable outside of the event loop."""
        self._outcomes.clear()
        self._made.add_done_callback(partial(_take_late, ResultIterator.close))
        self._thread.shutdown(wait=False)

    async def _all(self) -> list[Any]:
        try:
            return [result async for result in self]
        finally:
            self.close()

    def _take(self) -> list[tuple[Any, BaseException | None]]:
        """Wait for a result; return all results that are ready, or an empty list at the end."""
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


async def _in_thread(
    thread: ThreadPoolExecutor, call: Callable[[], T], late: Callable[[T], object] = lambda _: None
) -> T:
    """Call a function in a thread. late: receives the value if this coroutine was cancelled first."""
    running = thread.submit(call)
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        running.add_done_callback(partial(_take_late, late))
        raise


def _take_late(late: Callable[[T], object], ended: Future[T]) -> None:
    if not ended.cancelled() and ended.exception() is None:
        late(ended.result())
