"""ScalerExecutor: a `concurrent.futures.Executor` on a cluster."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor
from functools import partial
from inspect import signature
from typing import Any, Unpack

from scaler.client.client import DEFAULT_TIMEOUT_SECONDS, Client
from scaler.client.connect import open_loops
from scaler.client.future import ScalerFuture
from scaler.client.options import Environment, OptionKeywords, TaskKeywords, check_integer, options_of
from scaler.client.task_future import TaskFuture
from scaler.errors import ClientClosedError, ScalerError, UsageError
from scaler.extensions.maps.results import ResultIterator, iterate
from scaler.extensions.maps.runner import carry_through, why_one
from scaler.extensions.maps.window import UNBOUNDED
from scaler.host import usable_cpus
from scaler.serialization import Serializer
from scaler.serialization.exceptions import hide_frames, hiding_frames


class _Owner:
    """Marks the tasks of an executor. Not the executor itself, because the client must not keep the executor alive."""

    is_awaited = True


class ScalerExecutor(Executor):
    """Runs calls on a cluster, for code that takes a `concurrent.futures.Executor`.

    Threads may share an executor. As with the standard executors, the program ends only after all calls have ended.
    asyncio accepts it in `run_in_executor`; `set_default_executor` accepts only thread pools. Passed to a task, or
    created inside a task without a client or an address, the executor runs children of that task.

    Args:
        client: use this client, which remains open after `shutdown`. Default: the executor's own client.
        max_workers: number of workers reported to libraries that divide their work by this number. Limits nothing.
        Default: the number of CPUs of this machine.
        task_options: options of each call whose names are also arguments of `Client`: `timeout_seconds`,
            `name`, `profiling`, `stream_output`, and `environment`.
        options: arguments of `Client`, and options of each call as in `Client.submit_verbose`.

    Raises:
        UsageError: An argument is invalid.
        UnreachableError: No scheduler answers.

    Example:
        ```python
        with ScalerExecutor() as executor:
            print(list(executor.map(pow, [2, 3], [3, 2])))   # [8, 9]
        ```
    """

    @hiding_frames
    def __init__(  # noqa: PLR0913 (mostly the arguments of a client)
        self,
        client: Client | None = None,
        *,
        address: str | None = None,
        max_workers: int | None = None,
        profiling: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        serializer: Serializer | type[Serializer] | None = None,
        stream_output: bool = False,
        name: str = "",
        credentials: str | None = None,
        insecure_no_auth: bool | None = None,
        session: str | None = None,
        compression: str | None = None,
        processes: bool = True,
        n_workers: int | None = None,
        environment: Environment | None = None,
        task_options: OptionKeywords | None = None,
        **options: Unpack[TaskKeywords],
    ) -> None:
        arguments: dict[str, Any] = locals()
        parameters = signature(Client).parameters.values()
        of_client = {each.name: arguments[each.name] for each in parameters if arguments[each.name] != each.default}
        if client is not None and not isinstance(client, Client):
            raise UsageError(f"an executor takes a Client or address=...; {client!r} is neither")
        if client is not None and of_client:
            raise UsageError(
                f"{', '.join(of_client)}: applies only to a client that the executor creates; "
                "pass it to the Client instead"
            )
        if max_workers is not None:
            check_integer("max_workers", max_workers, 1)
        self._task_options: OptionKeywords = {**(task_options or {}), **options}
        options_of(self._task_options, "ScalerExecutor")  # before a client connects
        self._owns_client = client is None
        client = client or Client(**of_client)
        self._client: Client | None = client
        self._name = repr(client)
        self._max_workers = max_workers or usable_cpus()
        self._is_shut_down = False
        self._owner = _Owner()
        # The executor shares the internals of its client.
        base = client._options._replace(owner=self._owner)
        self._options = options_of(self._task_options, "ScalerExecutor", base)
        self._futures = client._loop.futures

    def __repr__(self) -> str:
        state = "shut down" if self._is_shut_down else "open"
        return f"<ScalerExecutor {state}, {len(self._unfinished())} unfinished, on {self._name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        copy = partial(ScalerExecutor, max_workers=self._max_workers, task_options=self._task_options)
        return copy, (self._open_client(),)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture:
        """Call `fn(*args, **kwargs)` on a worker. Returns its future at once.

        Raises:
            ClientClosedError: The executor has been shut down. This is a RuntimeError.
            SerializationError: The function or an argument cannot be pickled.
        """
        try:
            future = self._open_client()._submit(fn, args, kwargs, self._options)
        except BaseException as error:
            hide_frames(error)
            raise
        if self._is_shut_down:  # another thread shut it down, and may have missed this call
            future.cancel()
        return future

    @hiding_frames
    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        """Submit the calls for all items in parallel, and return an iterator over the results in order.

        Args:
            fn: the function.
            iterables: one iterable for each argument of the function.
            timeout: seconds from now until the iterator raises TimeoutError for missing results.
            chunksize: calls in a chunk. Has no effect if an executor option makes each call a separate task.
            buffersize: maximum number of calls ahead of the results taken, as in Python 3.14. Allows endless iterables.

        Returns:
            An iterator. An exception, or closing the iterator, cancels unfinished calls.

        Raises:
            UsageError: An argument is invalid.
            ClientClosedError: The executor has been shut down.
        """
        check_integer("chunksize", chunksize, 1)
        if buffersize is not None:
            check_integer("buffersize", buffersize, 1)
        client = self._open_client()
        if not iterables:
            return iter(())
        size = 1 if why_one(self._options, client._serializer) else chunksize
        window = UNBOUNDED if buffersize is None else max(buffersize, chunksize)
        results = iterate(client, "map", fn, iterables, size, window, self._options)
        if timeout is not None:
            results._limit(timeout)
        if buffersize is None:
            results._submit_all()
        else:
            results._start()
        return _until_error(results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls. Idempotent.

        Args:
            wait: wait for all calls, then close the executor's own client. After Ctrl-C, the program ends without
            waiting for these calls.
            cancel_futures: cancel calls that are not running.
        """
        self._is_shut_down = True
        if cancel_futures:
            waiting = [future for future in self._unfinished() if not future.running()]
            carry_through(lambda: [future.cancel() for future in waiting])
        client, self._client = self._client, None
        if wait:
            try:
                _wait_for(self._unfinished())
            except KeyboardInterrupt:  # in a `with` block, the second Ctrl-C
                self._owner.is_awaited = False
                raise
            if self._owns_client and client is not None:
                client.disconnect()

    def _open_client(self) -> Client:
        client = self._client
        if client is None or self._is_shut_down:
            raise ClientClosedError("the executor was shut down: create a new one")
        return client

    def _unfinished(self) -> list[TaskFuture]:
        return [future for future in self._futures.unfinished() if _owner_of(future) is self._owner]


def _until_error(results: ResultIterator) -> Iterator[Any]:
    try:
        yield from results
    except BaseException as error:
        hide_frames(error)
        raise
    finally:
        results.close()


def _owner_of(future: TaskFuture) -> object:
    return None if future.template is None else future.template.owner


def _wait_for(futures: Iterable[ScalerFuture]) -> None:
    for future in futures:
        with contextlib.suppress(CancelledError):
            future.exception()


def _at_exit() -> None:
    """Wait for the calls of all executors, including unreferenced ones."""
    for loop in open_loops():
        with contextlib.suppress(ScalerError):
            awaited = (each for each in loop.futures.unfinished() if getattr(_owner_of(each), "is_awaited", False))
            _wait_for(awaited)


# Runs before the clients' exit handler, which the imports above registered earlier.
atexit.register(_at_exit)
