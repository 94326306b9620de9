"""ScalerExecutor: what code that takes a `concurrent.futures.Executor` needs to run on a cluster."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor
from functools import partial
from itertools import chain, islice
from typing import Any, TypedDict, Unpack
from weakref import WeakValueDictionary

from scaler.client.checks import check_integer
from scaler.client.client import Client
from scaler.client.future import ScalerFuture
from scaler.client.locks import carry_through
from scaler.errors import ClientClosedError, ScalerError, UsageError
from scaler.serialization import Serializer, name_of
from scaler.worker.processor.calling import finish


class ClientOptions(TypedDict, total=False):
    """Further keyword arguments of `ScalerExecutor`: those of the `Client` that it makes."""

    profiling: bool
    timeout_seconds: float
    serializer: Serializer | type[Serializer] | None
    stream_output: bool
    name: str


class _Unfinished(set[ScalerFuture]):
    """The futures of one executor that have not ended; while there are any, their callbacks keep this alive."""


class ScalerExecutor(Executor):
    """Runs calls on a cluster, for code that takes a `concurrent.futures.Executor`.

    Safe to share between threads. As with the executors of the standard library, the program ends only when all calls
    have ended. asyncio takes it for `run_in_executor`; `set_default_executor` takes thread pools only. As an argument
    of a task, and made without a client or an address inside a task, it runs that task's children.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        address: str | None = None,
        max_workers: int | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Use `client`, which stays open at `shutdown`, or make one: `address` and further arguments are `Client`'s.

        max_workers: how many calls other libraries shall believe to run side by side, and cut their work by; by default
        the number of CPUs here. It limits nothing. Raises UsageError, and what `Client` raises.
        """
        if client is not None and not isinstance(client, Client):
            raise UsageError(f"an executor takes a Client, or address=...; {client!r} is neither")
        if client is not None and (address is not None or options):
            given = ", ".join((*(["address"] if address is not None else []), *options))
            raise UsageError(f"{given}: is for a client that the executor makes; give it to the Client instead")
        if max_workers is not None:
            check_integer("max_workers", max_workers, 1)
        self._client: Client | None = Client(address, **options) if client is None else client
        self._owns_client = client is None
        self._name = repr(self._client)
        self._max_workers = max_workers or os.cpu_count() or 1
        self._is_shut_down = False
        self._unfinished = _Unfinished()
        _awaited_at_exit[id(self._unfinished)] = self._unfinished

    def __repr__(self) -> str:
        state = "shut down" if self._is_shut_down else "open"
        return f"<ScalerExecutor {state}, {len(self._unfinished)} unfinished, on {self._name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _executor_of_task, (self._open_client(), self._max_workers)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture:
        """Call `fn(*args, **kwargs)` on a worker; return its future at once.

        Raises ClientClosedError, a RuntimeError, after `shutdown`, and what `Client.submit` raises.
        """
        client = self._open_client()
        if "profiling" in kwargs:  # it is the function's here
            return self._keep(client.submit_verbose(fn, args, kwargs))
        return self._keep(client.submit(fn, *args, **kwargs))

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Submit a call for the items of the iterables side by side, all at once; return an iterator over the results.

        timeout: seconds from now until which all results must be there; then the iterator raises TimeoutError.
        chunksize: so many calls travel together, and the first of them that raises ends them. What has not ended is
        cancelled when the iterator raises or is closed. Raises UsageError, and what `submit` raises.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        check_integer("chunksize", chunksize, 1)
        items = zip(*iterables, strict=False)
        futures: list[ScalerFuture] = []
        try:
            if chunksize == 1:
                futures.extend(self.submit(fn, *item) for item in items)
            else:
                futures.extend(self._submit_chunks(fn, items, len(iterables), chunksize))
        except BaseException:
            _cancel(futures)
            raise
        futures.reverse()
        return _results(futures, deadline, chunksize > 1)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with `wait`, return when all have ended. An executor's own client ends with the last one.

        cancel_futures: cancel the calls that do not run yet. Harmless when repeated.
        """
        self._is_shut_down = True
        if cancel_futures:
            _cancel([future for future in list(self._unfinished) if not future.running()])
        if wait:
            _wait_for(self._unfinished)
        client, self._client = self._client, None
        if wait and self._owns_client and client is not None:
            client.disconnect()

    def _open_client(self) -> Client:
        client = self._client
        if client is None or self._is_shut_down:
            raise ClientClosedError("the executor was shut down, and takes no more calls: make a new one")
        return client

    def _keep(self, future: ScalerFuture) -> ScalerFuture:
        self._unfinished.add(future)
        if self._is_shut_down:  # by another thread, which may have missed it
            future.cancel()
        future.add_done_callback(self._unfinished.discard)
        return future

    def _submit_chunks(
        self, fn: Callable[..., Any], items: Iterator[tuple[Any, ...]], width: int, chunksize: int
    ) -> Iterator[ScalerFuture]:
        call = partial(_call_each, fn, width)
        name = name_of(fn)
        while chunk := tuple(chain.from_iterable(islice(items, chunksize))):
            yield self._keep(self._open_client().submit_verbose(call, chunk, name=name))


_awaited_at_exit: WeakValueDictionary[int, _Unfinished] = WeakValueDictionary()


def _call_each(fn: Callable[..., Any], width: int, /, *arguments: Any) -> list[Any]:
    """Call `fn` with each `width` arguments."""
    return [finish(fn(*arguments[at : at + width])) for at in range(0, len(arguments), width)]


def _executor_of_task(client: Client, max_workers: int) -> ScalerExecutor:
    return ScalerExecutor(client, max_workers=max_workers)


def _results(futures: list[ScalerFuture], deadline: float | None, are_chunks: bool) -> Iterator[Any]:
    """Take futures off the end of the list, and yield their results; no future is held while the caller works."""
    try:
        while futures:
            if are_chunks:
                yield from _take(futures, deadline)
            else:
                yield _take(futures, deadline)
    finally:
        _cancel(futures)


def _take(futures: list[ScalerFuture], deadline: float | None) -> Any:
    future = futures.pop()
    try:
        return future.result(None if deadline is None else deadline - time.monotonic())
    finally:
        future.cancel()  # it has ended, or the time is over


def _cancel(futures: list[ScalerFuture]) -> None:
    def cancel_all() -> None:
        for future in futures:
            future.cancel()

    carry_through(cancel_all)


def _wait_for(unfinished: _Unfinished) -> None:
    for future in list(unfinished):
        with contextlib.suppress(CancelledError):
            future.exception()


def _at_exit() -> None:
    """Wait for the calls of all executors, also of those that nobody holds any more."""
    for unfinished in list(_awaited_at_exit.values()):
        with contextlib.suppress(ScalerError):
            _wait_for(unfinished)


# It runs before the clients' own end, which was registered when their module was imported: above.
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_awaited_at_exit.clear)
