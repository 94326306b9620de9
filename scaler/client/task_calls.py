"""The calls that submit tasks, shared by clients and by their views with options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from types import FunctionType
from typing import Any, ClassVar, Unpack

from scaler.client.cached import Call
from scaler.client.calls import count_of
from scaler.client.chunk_runner import ChunkRunner
from scaler.client.chunks import map_function
from scaler.client.connect import processor, room
from scaler.client.durable import NamedSession
from scaler.client.functions import TemplateTable, check_arguments
from scaler.client.future import ScalerFuture
from scaler.client.futures import FutureTable
from scaler.client.gathering import show_progress
from scaler.client.graph import GraphRun, nodes_with_options
from scaler.client.graph_chunks import checked_size
from scaler.client.graph_plan import Key
from scaler.client.loop import ClientLoop
from scaler.client.map import Progress, ResultIterator, as_tuples, results_of, side_by_side
from scaler.client.options import (
    OptionKeywords,
    Options,
    check_call,
    iterated,
    of_chunks,
    options_of,
    with_tag,
)
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import TaskTemplate
from scaler.client.window import UNBOUNDED, Window
from scaler.errors import ClientClosedError, UsageError
from scaler.grammar import counted
from scaler.serialization import Serializer, name_of
from scaler.serialization.arguments import ArgumentOnly, Collection, Reduced
from scaler.serialization.exceptions import hide_frames, hiding_frames
from scaler.serialization.separate import Items

DISCONNECTED = "the client was disconnected"


def hiding_frames_of_methods(*except_: str) -> Callable[[type], type]:
    """Decorate a class so that exceptions of its constructor and public methods have no Scaler frames."""

    def decorated(kind: type) -> type:
        for name, method in [*vars(kind).items()]:
            is_public = name == "__init__" or not name.startswith("_")
            if is_public and isinstance(method, FunctionType) and name not in except_:
                setattr(kind, name, hiding_frames(method))
        return kind

    return decorated


@hiding_frames_of_methods("submit")
class TaskCalls(ArgumentOnly):
    """Submits tasks. The attributes belong to the client."""

    _takes_profiling: ClassVar = True
    _given: OptionKeywords = {}  # noqa: RUF012 (never changed)
    """Options of a view."""
    _options: Options
    _session: NamedSession | None
    _loop: ClientLoop
    _futures: FutureTable
    _templates: TemplateTable
    _serializer: Serializer | None
    _is_closed: bool
    _is_nested: bool
    _is_in_process: bool
    _is_inside_task: bool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture:
        """Call `fn(*args, **kwargs)` on a worker. Returns at once.

        All keyword arguments go to the function, except `profiling` and, in a durable session, `key`. Set options with
        `options`: `client.options(retries=5).submit(fn, 1)`.

        Args:
            fn: the function.
            args: arguments of the function. Futures and object references, at any depth, become their values.
            kwargs: keyword arguments of the function, and `profiling` and `key` as in `submit_verbose`. To pass
                arguments of these names to the function, use `submit_verbose`.

        Returns:
            The future of the call. If the session has a task with this key that has not failed, its future.

        Raises:
            SerializationError: The function or an argument cannot be pickled.
            LimitError: The scheduler or the object storage was full for `timeout_seconds`.
            ClientClosedError: The client is closed.
        """
        key = None
        options = self._options
        if kwargs:
            if self._session is not None:
                key = kwargs.pop("key", None)
            if self._takes_profiling and (profiling := kwargs.pop("profiling", None)) is not None:
                options = options._replace(profiling=profiling)
        try:
            return self._submit(fn, args, kwargs, options, key)
        except BaseException as error:
            hide_frames(error)
            raise

    def submit_verbose(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        tag: str | None = None,
        cache: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> ScalerFuture:
        """Call `fn(*args, **kwargs)` on a worker, with options. Returns at once.

        Args:
            fn: the function.
            args: arguments of the function. Futures and object references, at any depth, become their values.
            kwargs: keyword arguments of the function.
            key: name of the task within a durable session. If the session has a task with this key that has not failed,
                returns its future, and nothing runs.
            tag: another tag, by which `futures` finds the task in a durable session.
            cache: return the cached result of an equal call, as `cache` does.
            options: options of the task:

                - memory: bytes reserved on the worker, as a number or a text such as "8GB" (powers of 1000) or "8GiB"
                  (powers of 1024).
                - cpus: part of the worker's slots, at least one slot.
                - gpu: number of whole GPUs, or a fraction of a shared one. CUDA_VISIBLE_DEVICES names them.
                - capabilities: requirements for the worker, such as `{"linux": None, "licences": 2}`.
                - priority: tasks with a higher number run first.
                - retries: number of further attempts after an exception that `retry_on` selects. With 0, the task
                  starts at most once.
                - retry_on: exception types, or a function that gets the exception and runs on the worker.
                - retry_delay: seconds before the next attempt, `Exponential(...)`, or a function of the number of the
                  failed attempt.
                - losses: number of further attempts after the worker or its process was lost. Default: `retries`.
                - timeout_seconds: time limit of one attempt. 0: none.
                - name: name of the task in monitors. Default: the function's name.
                - tags: names for which monitors show a progress bar, and which `cancel` takes.
                - stream_output: print the output of the task here.
                - expected_seconds: estimated run time, for scaling until the first task has finished. 0: the median of
                  the cluster.
                - profiling: measure CPU time and peak memory for `ScalerFuture.profiling_info`.

        Returns:
            The future of the call.

        Raises:
            UsageError: An option is invalid.
            SerializationError: The function or an argument cannot be pickled.
            LimitError: The scheduler or the object storage was full for `timeout_seconds`.
            ClientClosedError: The client is closed.
        """
        carried = self._options_of(options, "submit_verbose")
        check_call(args, kwargs)
        if cache:
            if key is not None or tag is not None:
                raise UsageError("a cached call does not belong to a session: leave out cache, or key and tag")
            return self._cached(fn, [(tuple(args), dict(kwargs or {}))], carried)[0]
        if tag is not None:
            carried = with_tag(carried, tag)
        return self._submit(fn, tuple(args), dict(kwargs or {}), carried, key, tag)

    def options(self, **options: Unpack[OptionKeywords]) -> ClientView:
        """Return a view of this client that submits with these options. The view closes with the client.

        Args:
            options: options as in `submit_verbose`. Options of a single call override them.

        Raises:
            UsageError: An option is invalid.
        """
        self._check_open()
        return ClientView(self._whole, {**self._given, **options})

    def executor(self, *, max_workers: int | None = None, **options: Unpack[OptionKeywords]) -> Executor:
        """Return a `concurrent.futures` executor on this client. Closing the executor leaves the client open.

        Args:
            max_workers: number of workers that the executor reports to libraries.
            options: options of each call, as in `submit_verbose`.
        """
        given: OptionKeywords = {**self._given, **options}
        executor: Executor = room("executor").ScalerExecutor(self._whole, max_workers=max_workers, task_options=given)
        return executor

    def cache(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture:
        """Call `fn(*args, **kwargs)`, or return the result of an equal call that a client of this key has cached.

        The object storage keeps the result, up to its `cache_limit_bytes`, even after this client disconnects. Calls
        are equal if the values of the arguments, the code of the function, and all code it refers to outside of
        installed packages are equal. The function must depend on nothing else. Exceptions are not cached.

        Returns:
            The future of the call, already finished if the result was cached.

        Raises:
            UsageError: An argument is a future, or was sent with `send_object`.
        """
        return self._cached(fn, [(args, kwargs)], self._options)[0]

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

        Short calls travel in chunks, and the calls of a chunk run in sequence.

        Args:
            fn: the function.
            iterables: one iterable for each argument of the function.
            chunk_size: calls in a chunk. Default: as many as measurements suggest. With retries=0, `retry_on`,
                `timeout_seconds`, `keys`, `cache`, or a serializer of the client, a chunk always has one call.
            return_exceptions: put exceptions into the list instead of raising the first one.
            progress: show a tqdm bar, on stderr or in a notebook.
            keys: a key for each item, in a durable session. Each item is then a task with a key, as in `submit`.
            cache: each item is a task, cached as in `cache`.
            options: options of each call, as in `submit_verbose`.

        Returns:
            A list with a result for each item.

        Raises:
            Exception: The exception of the first failed item, with its `item_index` and a note that names the item.
                Unfinished items are cancelled, except with `keys` or `cache`.
        """
        carried = self._options_of(options, "map")
        if keys is not None or cache:
            futures = self._submit_each(fn, iterables, keys, carried)
            if progress:
                show_progress(self._futures, futures, name_of(fn))
            return results_of(futures, name_of(fn), return_exceptions)
        results = self._iterate("map", fn, iterables, chunk_size, UNBOUNDED, return_exceptions, progress, carried)
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
        return self._starmap(fn, iterable, chunk_size, return_exceptions, progress, **options)._take_all()

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

        The iterables may be endless. Sends up to 64 items at once, or one of a slow iterable; `next` takes further
        items, in the thread that calls it. Threads may share the iterator. Closing or dropping it cancels unfinished
        items.

        Args:
            fn: the function.
            iterables: one iterable for each argument of the function.
            chunk_size: as in `map`. By default, items of a slow iterable travel in partial chunks.
            window: maximum number of items ahead of the results taken so far. Default: 64, doubled up to 32,768
                whenever `next` waits while workers are free. An iterable that needs a result before its next item needs
                a window of 1.
            return_exceptions: yield exceptions as results. Otherwise `next` raises the exception of a failed item, with
                its `item_index`, when its turn comes, and can be called again. An exception of an iterable follows the
                results of earlier items.
            progress: show a bar of finished items, whether taken or not.
            options: options of each call, as in `submit_verbose`.
        """
        carried = self._options_of(options, "imap")
        return self._iterate("imap", fn, iterables, chunk_size, window, return_exceptions, progress, carried)._start()

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
        """Like `imap`, with results in the order of completion. A failed item's exception has its `item_index`."""
        verb, carried = "imap_unordered", self._options_of(options, "imap_unordered")
        return self._iterate(verb, fn, iterables, chunk_size, window, return_exceptions, progress, carried)._start()

    def get(
        self,
        graph: Mapping[Any, Any],
        keys: Sequence[Any],
        block: bool = True,
        *,
        node_options: Mapping[Any, OptionKeywords] | None = None,
        chunk_size: int | None = None,
        progress: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> dict[Key, Any]:
        """Compute keys of a graph and their dependencies.

        Args:
            graph: a dict of keys to values and to computations `(callable, key, ...)`.
            keys: the wanted keys.
            block: wait for the values. If False, returns futures.
            node_options: options of single computations by key, which override `options`: `{"train": {"memory": "8GB",
                "retries": 5}}`.
            chunk_size: maximum number of inner computations in a task. By default, short computations of large graphs
                are grouped by measurement.
            progress: show a bar of finished computations.
            options: options of each computation, as in `submit_verbose`.

        Returns:
            The keys with their values or futures.

        Raises:
            UsageError: A key is missing, or the graph has a cycle. Nothing has been sent.
        """
        run = self._graph(graph, keys, node_options, chunk_size, block, **options)
        return run.values(progress) if block else run.futures

    def _starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunk_size: int | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> ResultIterator:
        carried = self._options_of(options, "starmap")
        return self._iterate("starmap", fn, (iterable,), chunk_size, UNBOUNDED, return_exceptions, progress, carried)

    def _graph(
        self,
        graph: Mapping[Any, Any],
        keys: Sequence[Any],
        node_options: Mapping[Any, OptionKeywords] | None = None,
        chunk_size: int | None = None,
        block: bool = True,
        **options: Unpack[OptionKeywords],
    ) -> GraphRun:
        self._check_open()
        carried = self._options_of(options, "get")
        common: OptionKeywords = {**self._given, **options}
        own = nodes_with_options(graph, node_options or {}, common, lambda given: self._options_of(given, "get"))
        parent = self._parent()
        if not isinstance(keys, str | bytes):  # refused with an alternative
            keys = list(iterated("keys", keys))
        call = self._loop.calls.begin("get", counted(len(keys), "key"), 0, has_chunks=False)

        def template(fn: Callable[..., Any], deliver: bool, node: Options | None) -> TaskTemplate:
            return self._templates.template(fn, (node or carried)._replace(deliver=deliver, call=call.number), parent)

        size = checked_size(chunk_size, block, carried, self._serializer)
        if chunk_size is None and self._is_in_process:
            size = 1  # so that a debugger finds one node after the other
        return GraphRun(graph, keys, self._futures, template, carried, own, size)

    def _submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Options,
        key: str | None = None,
        tag: str | None = None,
    ) -> TaskFuture:
        if self._is_closed:
            raise ClientClosedError(DISCONNECTED)
        parent = self._parent() if self._is_inside_task else b""
        template = self._templates.template(fn, options, parent)
        shape = (len(args), *kwargs)
        if shape not in template.shapes and template.owner is None:  # executors store errors in futures
            check_arguments(fn, args, kwargs)
            template.shapes.add(shape)
        if key is None and (tag is None or self._session is None):
            return self._futures.submit(template, args, kwargs)
        return self._durable("keys").submit(template, args, kwargs, key, tag)

    def _durable(self, what: str) -> NamedSession:
        if self._session is None:
            raise UsageError(f"{what} need a durable session: create the client with Client(session=...)")
        return self._session

    def _cached(self, fn: Callable[..., Any], calls: Sequence[Call], options: Options) -> list[TaskFuture]:
        self._check_open()
        if self._is_nested:
            raise UsageError("a client inside a task cannot cache: cache the call that submits the task")
        return self._loop.cached.submit(self._templates.template(fn, options, b""), fn, calls)

    def _submit_each(
        self, fn: Callable[..., Any], iterables: tuple[Iterable[Any], ...], keys: Iterable[str] | None, options: Options
    ) -> list[TaskFuture]:
        self._check_open()
        items = list(side_by_side(iterables, "map"))
        calls: list[Call] = [(item if len(iterables) > 1 else (item,), {}) for item in items]
        counts = self._loop.calls.begin("map", name_of(fn), len(items), has_chunks=False)
        options = options._replace(call=counts.number)
        if keys is None:
            return self._cached(fn, calls, options)
        template = self._templates.template(fn, options, self._parent())
        return self._durable("keys").submit_each(template, calls, list(keys))

    def _iterate(
        self,
        verb: str,
        fn: Callable[..., Any],
        iterables: tuple[Iterable[Any], ...],
        chunk_size: int | None,
        window: int | None,
        return_exceptions: bool = False,
        progress: bool = False,
        options: Options | None = None,
    ) -> ResultIterator:
        self._check_open()
        options, chunk_size = of_chunks(options or self._options, chunk_size, self._serializer)
        if not callable(fn):
            raise UsageError(f"{verb} needs a callable, not {fn!r}")
        items = as_tuples(iterables[0]) if verb == "starmap" else side_by_side(iterables, verb)
        name, is_spread = name_of(fn), verb == "starmap" or len(iterables) > 1
        total = count_of(iterables)
        counts = self._loop.calls.begin(verb, name, total, has_chunks=True)
        options = options._replace(name=options.name or name, call=counts.number)
        function = None if chunk_size == 1 else map_function(fn, is_spread)
        template = self._templates.template(function or fn, options, self._parent())
        template.has_chunks = function is not None

        def submit(chunk: list[Any]) -> TaskFuture:
            if self._is_closed:
                raise ClientClosedError(DISCONNECTED)
            args: tuple[Any, ...] = (Items(chunk) if len(chunk) > 1 else chunk,)
            if function is None:
                args = chunk[0] if is_spread else (chunk[0],)
            return self._futures.submit(template, args, {})

        return ResultIterator(
            items,
            ChunkRunner(function, submit, self._futures, chunk_size, counts, self._serializer, is_spread),
            Window(window, chunk_size),
            self._loop.call_later,
            in_order=verb != "imap_unordered",
            return_exceptions=return_exceptions,
            progress=Progress(name, total or None) if progress else None,
        )

    def _parent(self) -> bytes:
        context = processor() if self._is_inside_task else None
        return b"" if context is None else context.task_id

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError(DISCONNECTED)
        self._futures.check_open()

    @property
    def _whole(self) -> TaskCalls:
        return self

    def _options_of(self, given: OptionKeywords, verb: str) -> Options:
        return options_of(given, verb).over(self._options) if given else self._options


class ClientView(TaskCalls):
    """Submits tasks of a client with options. As an argument of a task, becomes a view of the task's own client."""

    _how_to_send = "pass it to submit as an argument, or inside one, and the task gets its own view"
    _takes_profiling = False

    def __init__(self, client: TaskCalls, given: OptionKeywords) -> None:
        vars(self).update(vars(client))
        self._client = client
        self._given = given
        self._options = options_of(given, "options").over(client._options)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
        return f"<options({given}) of {self._client!r}>"

    @property
    def _whole(self) -> TaskCalls:
        return self._client

    @property
    def _is_closed(self) -> bool:  # type: ignore[override]
        return self._client._is_closed

    def _options_of(self, given: OptionKeywords, verb: str) -> Options:
        return options_of({**self._given, **given}, verb).over(self._client._options) if given else self._options

    def _reduce_into(self, _collection: Collection, /) -> Reduced:
        return ClientView, (self._client, self._given)
