"""The methods of `Client` that iterate over items: `map`, `starmap`, `imap`, `imap_unordered`, and executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Unpack, cast

from scaler.client.gathering import show_progress
from scaler.client.options import OptionKeywords, Options
from scaler.client.task_calls import Call, TaskCalls, hiding_frames_of_methods
from scaler.client.task_future import TaskFuture
from scaler.extensions.chunk_options import chunk_size_of
from scaler.extensions.maps.results import ResultIterator, iterate, results_of, side_by_side
from scaler.extensions.maps.window import UNBOUNDED
from scaler.serialization import name_of

if TYPE_CHECKING:
    from scaler.client.client import Client


@hiding_frames_of_methods()
class MapCalls(TaskCalls):
    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        chunk_size: int | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
        keys: Iterable[str] | None = None,
        cache: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> list[Any]:
        """Call `fn` with the items of the iterables in parallel, and return the results in order.

        Short calls are sent in chunks, and the calls of a chunk run in sequence.

        Args:
            fn: the function.
            iterables: one iterable for each argument of the function.
            chunk_size: calls in a chunk. Default: chosen by measurement. With retries=0, losses=0, `retry_on`,
                `timeout_seconds`, `keys`, `cache`, or a client with a serializer, each call is a separate task.
            return_exceptions: put exceptions into the list instead of raising the first one.
            progress: show a tqdm bar, on stderr or in a notebook.
            keys: a key for each item, in a durable session. Each item is then a task with a key, as in `submit`.
            cache: run each item as a separate task, cached as in `cache`.
            options: options of each call, as in `submit_verbose`.

        Returns:
            A list with a result for each item.

        Raises:
            Exception: The exception of the first failed item, with its `item_index` and a note that names the item.
                Unfinished items are cancelled, except with `keys` or `cache`.
        """
        carried = self._options_of(options, "map")
        if keys is not None or cache:
            chunk_size_of(chunk_size, "cache" if cache else "keys")
            futures = submit_each(self, fn, iterables, keys, carried)
            if progress:
                show_progress(self._futures, futures, name_of(fn))
            return results_of(futures, name_of(fn), return_exceptions)
        results = iterate(self, "map", fn, iterables, chunk_size, UNBOUNDED, carried, return_exceptions, progress)
        return results._take_all()

    def starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunk_size: int | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> list[Any]:
        """Call `fn(*item)` for each item, and return the results in order. Otherwise like `map`."""
        return starmap_results(self, fn, iterable, chunk_size, return_exceptions, progress, **options)._take_all()

    def imap(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        chunk_size: int | None = None,
        window: int | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> ResultIterator:
        """Call `fn` with the items of the iterables in parallel, and iterate over the results in order.

        The iterables may be endless. Sends up to 64 items at first, or one item of a slow iterable. Each `next` takes
        further items, in the calling thread. Threads may share the iterator. Closing or dropping it cancels unfinished
        items.

        Args:
            fn: the function.
            iterables: one iterable for each argument of the function.
            chunk_size: as in `map`. By default, items of a slow iterable are sent in partial chunks.
            window: maximum number of items ahead of the results taken so far. Default: 64, doubled up to 32,768
                whenever `next` waits while workers are free. An iterable that needs a result before its next item needs
                a window of 1.
            return_exceptions: yield exceptions as results. Otherwise `next` raises the exception of a failed item, with
                its `item_index`, when its turn comes; the iteration can continue after that. An exception of an
                iterable follows the results of earlier items.
            progress: show a bar of finished items, whether taken or not.
            options: options of each call, as in `submit_verbose`.
        """
        carried = self._options_of(options, "imap")
        return iterate(self, "imap", fn, iterables, chunk_size, window, carried, return_exceptions, progress)._start()

    def imap_unordered(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        chunk_size: int | None = None,
        window: int | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> ResultIterator:
        """Like `imap`, with results in completion order. A failed item's exception has an `item_index`."""
        verb, carried = "imap_unordered", self._options_of(options, "imap_unordered")
        return iterate(self, verb, fn, iterables, chunk_size, window, carried, return_exceptions, progress)._start()

    def executor(self, *, max_workers: int | None = None, **options: Unpack[OptionKeywords]) -> Executor:
        """Return a `concurrent.futures` executor on this client. Closing the executor leaves the client open.

        Args:
            max_workers: number of workers that the executor reports to libraries.
            options: options of each call, as in `submit_verbose`.
        """
        given: OptionKeywords = {**self._given, **options}
        # Imported here because the module registers an exit handler.
        from scaler.extensions.maps.executor import ScalerExecutor  # noqa: PLC0415

        return ScalerExecutor(cast("Client", self._whole), max_workers=max_workers, task_options=given)


def starmap_results(
    client: TaskCalls,
    fn: Callable[..., Any],
    iterable: Iterable[Iterable[Any]],
    chunk_size: int | None = None,
    return_exceptions: bool = False,
    progress: bool = False,
    **options: Unpack[OptionKeywords],
) -> ResultIterator:
    carried = client._options_of(options, "starmap")
    return iterate(client, "starmap", fn, (iterable,), chunk_size, UNBOUNDED, carried, return_exceptions, progress)


def submit_each(
    client: TaskCalls,
    fn: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    keys: Iterable[str] | None,
    options: Options,
) -> list[TaskFuture]:
    client._check_open()
    items = list(side_by_side(iterables, "map"))
    calls: list[Call] = [(item if len(iterables) > 1 else (item,), {}) for item in items]
    counts = client._loop.calls.begin("map", name_of(fn), len(items), has_chunks=False)
    options = options._replace(call=counts.number)
    if keys is None:
        return client._cached(fn, calls, options)
    template = client._templates.template(fn, options, client._parent())
    found: list[TaskFuture] = client._durable("keys").submit_each(template, calls, list(keys))
    return found
