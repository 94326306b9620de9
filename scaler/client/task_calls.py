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
    check_integer,
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
        """Call `fn(*args, **kwargs)` on a worker; return its future at once.

        Futures and object references in the arguments, at any depth, become their values. All keywords go to the
        function; set options with `options`: `client.options(retries=5).submit(fn, 1)`. Exception: `profiling` measures
        the task. To pass a keyword argument of this name to the function, use `options` or `submit_verbose`.

        In a durable session, `key` names the task. If the session has a task with this key that has not failed, its
        future is returned and nothing runs. To pass a keyword argument `key` to the function, use `submit_verbose`.
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
        """Call `fn(*args, **kwargs)` on a worker, with options; return its future at once.

        memory, cpus, gpu: resources reserved on the worker while the task runs. memory: bytes, or text such as "8GB"
        (1000s) or "8GiB" (1024s). cpus: share of the worker's slots, at least one slot. gpu: whole GPUs, or a fraction
        of a shared one; CUDA_VISIBLE_DEVICES names them. capabilities: requirements for the worker, such as {"linux":
        None, "licences": 2}. priority: higher runs first.

        retries: number of further attempts after an exception of retry_on: exception types, or a function that takes
        the exception and runs on the worker. retry_delay: seconds before the next attempt, `Exponential(...)`, or a
        function of the number of the failed attempt. losses: number of further attempts after the loss of the worker or
        process, by default the value of retries. retries=0: the task starts at most once. timeout_seconds: time limit
        of one attempt; 0: none.

        name: shown in monitors instead of the function's name. tags: monitors show a bar for each tag, and `cancel`
        takes a tag. stream_output: print the task's output here. expected_seconds: estimated run time, used for scaling
        until the first task finishes; 0: the cluster's median. key: key of the task in a durable session, as in
        `submit`. tag: an additional tag, which `futures` takes in a durable session. cache: as in `cache`. Raises
        UsageError for invalid options.
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
        """Return a view of this client that submits with these options (see `submit_verbose`).

        The view closes with the client. Options of a single call override the view's. Raises UsageError for invalid
        options.
        """
        self._check_open()
        return ClientView(self._whole, {**self._given, **options})

    def executor(self, *, max_workers: int | None = None, **options: Unpack[OptionKeywords]) -> Executor:
        """Return a `concurrent.futures` executor that submits with these options. Closing it leaves the client open."""
        given: OptionKeywords = {**self._given, **options}
        executor: Executor = room("executor").ScalerExecutor(self._whole, max_workers=max_workers, task_options=given)
        return executor

    def cache(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture:
        """Return the future of `fn(*args, **kwargs)`, already finished if a client of this key has cached the call.

        Otherwise submits the call and keeps the result in the object storage, up to its `cache_limit_bytes`, even after
        this client disconnects. The cache key covers the values of the arguments, the code of the function, and all
        code it refers to outside of installed packages; the function must depend on nothing else. Exceptions are not
        cached. Raises UsageError for arguments that are futures or were sent with `send_object`.
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

        Short calls are sent in chunks, of a measured size or of chunk_size calls, and the calls of a chunk run in
        sequence. Raises the exception of the first failed item, with a note that names the item (and `item_index`);
        return_exceptions puts exceptions in the list instead. progress shows a tqdm bar, on stderr or in a notebook.
        options: as in `submit_verbose`, for each call. With retries=0, retry_on, or timeout_seconds, each chunk has one
        call.

        keys: one per item, in a durable session; each item is a task with a key, as in `submit`. cache: each item is a
        task, cached as in `cache`. With keys or cache, an exception does not cancel the other items.
        """
        carried = self._options_of(options, "map")
        if keys is not None or cache:
            if chunk_size not in (None, 1):
                text = "items with keys and cached items are separate tasks: leave it out"
                raise UsageError(f"chunk_size is {chunk_size!r}, and {text}")
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
        """Call `fn` with the items of the iterables in parallel; iterate over the results in order.

        Sends the first items at once: up to 64, or one of a slow iterable. Iterables may be endless: `next` takes
        further items, in the thread that calls it. window: maximum number of items ahead of the results taken so far.
        By default, the window starts at 64 and doubles, up to 32,768, whenever `next` waits while workers are free. An
        iterable that needs a result before it yields the next item needs window=1.

        chunk_size: as in `map`; by default, items of a slow iterable are sent in partial chunks. `next` raises the
        exception of a failed item, with its `item_index`, in the item's turn, and can be called again for later items;
        return_exceptions yields exceptions as results instead. An exception of an iterable follows the results of
        earlier items. Closing or dropping the iterator cancels unfinished items. Threads may share the iterator.
        progress shows a bar of finished items, whether taken or not. options: as in `map`.
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
        """Compute these keys of a graph and their dependencies; return the keys with their values.

        A graph is a dict of keys to values and to computations `(callable, key, ...)`. block=False returns futures
        instead of values; otherwise, progress shows a bar of finished computations. options: as in `submit_verbose`,
        for each computation. node_options: options by key, which override options:
        `{"train": {"memory": "8GB", "retries": 5}}`. chunk_size: maximum number of inner computations per task; by
        default, only short computations of large graphs are grouped, by measurement. Raises UsageError for missing
        keys and cycles, before anything is sent.
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
        options = options or self._options
        if not options.retries:
            check_integer("with retries=0, chunk_size", 1 if chunk_size is None else chunk_size, 1, 1)
            chunk_size = 1
        elif options.retry_on or options.timeout_seconds:
            check_integer("chunk_size", 1 if chunk_size is None else chunk_size, 1)
            chunk_size = 1  # the limits of a task are those of its call
        items = as_tuples(iterables[0]) if verb == "starmap" else side_by_side(iterables, verb)
        function = map_function(fn, verb == "starmap" or len(iterables) > 1, self._serializer, verb)
        counts = self._loop.calls.begin(verb, function.name, count_of(iterables), has_chunks=True)
        options = of_chunks(options, chunk_size)
        options = options._replace(name=options.name or function.name, is_plain=True, call=counts.number)
        template = self._templates.template(function, options, self._parent())

        def submit(chunk: Items | list[Any]) -> TaskFuture:
            if self._is_closed:
                raise ClientClosedError(DISCONNECTED)
            return self._futures.submit(template, (chunk,), {})

        return ResultIterator(
            items,
            ChunkRunner(function, submit, self._futures, chunk_size, counts),
            Window(window, chunk_size),
            self._loop.call_later,
            in_order=verb != "imap_unordered",
            return_exceptions=return_exceptions,
            progress=Progress(function.name, iterables) if progress else None,
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
