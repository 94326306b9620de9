"""The client: submit, map and imap, get."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from scaler.client.arity import check_arguments
from scaler.client.cached import Call
from scaler.client.calls import count_of
from scaler.client.chunk_runner import ChunkRunner
from scaler.client.chunks import ItemCall
from scaler.client.connect import is_inside_task, processor, room, runs_in_process, say_unfinished, uploaded_code
from scaler.client.durable import NamedSession
from scaler.client.functions import TemplateTable, check_call
from scaler.client.future import ScalerFuture
from scaler.client.gathering import AsCompleted, gather, show_progress
from scaler.client.graph import GraphRun, nodes_with_options
from scaler.client.graph_chunks import checked_size
from scaler.client.graph_plan import Key
from scaler.client.item_limits import ItemLimits
from scaler.client.loop import ClientLoop
from scaler.client.map import Progress, ResultIterator, as_tuples, results_of, side_by_side
from scaler.client.options import (
    MAX_SECONDS,
    OptionKeywords,
    Options,
    check_integer,
    checked_label,
    iterated,
    of_chunks,
    of_several,
    options_of,
    with_tag,
)
from scaler.client.questions import ClusterQuestions
from scaler.client.session import ObjectPinned
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import ObjectReference, TaskTemplate
from scaler.client.view import ClientView
from scaler.client.window import UNBOUNDED, Window
from scaler.errors import ClientClosedError, ProtectedError, UsageError
from scaler.grammar import counted
from scaler.protocol.messages import ShutdownCluster, ShutdownReply
from scaler.serialization import Serializer, bind_serializer, dump_value, name_of, size_of
from scaler.serialization.arguments import Collection, Reduced
from scaler.serialization.separate import Items
from scaler.serialization.tracebacks import hiding_frames

DEFAULT_TIMEOUT_SECONDS = 60.0
_DISCONNECTED = "the client was disconnected"


class Client(ClusterQuestions):
    """A connection to a scheduler. Safe to share between threads; not between processes.

    Connects to the scheduler at `address`, or to the running cluster of this user with that name.

    Without an address: inside a task, connects through the task's worker; elsewhere, to the cluster in
    SCALER_ADDRESS, or starts a local cluster that ends with this client. n_workers: size of that cluster, by default
    one worker for each CPU that this process, or its container, may use.

    timeout_seconds: longest wait for the scheduler, for object storage, and for room when a limit is reached.
    profiling, stream_output: defaults for `submit`. serializer: replaces the built-in one. name: shown in monitors.

    credentials: file that `scaler keys add` wrote for this client, by default SCALER_CREDENTIALS; not needed for a
    cluster of the same user on this machine. insecure_no_auth: connect without authentication and encryption, by
    default as SCALER_INSECURE_NO_AUTH says. compression of traffic between hosts: auto (where it saves time), on,
    or off; by default SCALER_COMPRESSION, or auto.

    session: name of a durable session of this key. It owns the tasks and results, which outlive the client; a later
    client with the same session continues. One client at a time uses a session.

    processes: False runs each call in this process and thread before `submit` returns, so that breakpoints work.
    There is no cluster then, and retries, time limits, capabilities, and resources of tasks have no effect.

    Raises UnreachableError, RefusedError, UsageError, or ComponentError.

    A client that is an argument of a task arrives there as a client of its own, whose tasks are children of that task.
    """

    _how_to_send = "give it to submit as an argument, alone or inside one, and the task gets a client of its own"

    @hiding_frames
    def __init__(  # noqa: PLR0913 (each is a keyword of its own, and most are left out)
        self,
        address: str | None = None,
        profiling: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        serializer: Serializer | type[Serializer] | None = None,
        stream_output: bool = False,
        name: str = "",
        credentials: str | None = None,
        insecure_no_auth: bool | None = None,
        *,
        session: str | None = None,
        compression: str | None = None,
        processes: bool = True,
        n_workers: int | None = None,
    ) -> None:
        _check(timeout_seconds, name, session)
        self._name = name
        self._serializer = None if serializer is None else bind_serializer(serializer)
        self._options = Options(profiling=profiling, stream_output=stream_output)
        self._is_inside_task = is_inside_task()
        self._is_in_process = not processes or (address is None and runs_in_process())
        self._is_nested = address is None and self._is_inside_task and not self._is_in_process
        if n_workers is not None and (self._is_nested or self._is_in_process):
            text = "is for a cluster that this client starts, and this one starts none"
            raise UsageError(f"n_workers={n_workers} {text}")
        if self._is_nested:
            self._loop: ClientLoop = room("nested").open_loop(session, timeout_seconds)
        elif self._is_in_process:
            self._loop = room("in_process").open_loop(address, session, timeout_seconds)
        else:
            access = credentials, insecure_no_auth, compression
            self._loop = room("clusters").open_cluster(address, name, timeout_seconds, access, session or "", n_workers)
            weakref.finalize(self, self._loop.abandon).atexit = False
        self._futures = self._loop.futures
        self._templates = TemplateTable(self._futures, self._serializer, uploaded_code() if self._is_nested else b"")
        self._session = None if session is None else NamedSession(session, self._loop, self._serializer)
        self._references: weakref.WeakSet[ObjectReference] = weakref.WeakSet()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Client {self.identity.hex()} of {self._loop.address}, {self._state()}>"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook, from what the client knows: it neither waits nor asks the scheduler."""
        # Processors import this module, and few tasks show clients.
        from scaler.notebook import PageLink, table  # noqa: PLC0415
        from scaler.registry import page_at  # noqa: PLC0415

        rows: dict[str, object] = {
            "scheduler": self._loop.address,
            "client": self.identity.hex(),
            "name": self._name,
            "session": "" if self._session is None else self._session.name,
            "state": self._state(),
            "inside a task": "yes" if self._is_nested else "",
            "unfinished tasks": f"{0 if self._futures.closed else len(self._futures.unfinished()):,}",
            "objects sent": len(self._references) or "",
            "web page": "" if self._is_nested or self._is_in_process else PageLink(page_at(self._loop.address)),
        }
        return table("Client", rows)

    def _state(self) -> str:
        return "disconnected" if self._is_closed else self._loop.state

    @property
    def identity(self) -> bytes:
        """The id of this client, with which the ids of its tasks begin. Clients inside one processor share it."""
        return self._futures.ids.owner

    # -- tasks

    @hiding_frames
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

        memory, cpus, gpu: what the task takes of its worker while it runs, so that its tasks together never take more
        than the worker has. memory: bytes, or text such as "8GB" (1000s) or "8GiB" (1024s). cpus: the worker's share
        of slots, at least one. gpu: whole ones, or a fraction that others may share; CUDA_VISIBLE_DEVICES names them.
        capabilities: what the worker must offer, such as {"linux": None, "licences": 2}. priority: higher runs first.

        retries: how often it may run again after an exception of retry_on: types, or a function that takes the
        exception and runs on the worker. retry_delay: seconds until then, `Exponential(...)`, or a function of the
        number of the attempt that failed. losses: how often it may run again after its worker or process was lost, by
        default as often as retries says. retries=0: it is started at most once, whatever happens. timeout_seconds:
        after which it is ended; 0 means never.

        name: what monitors show instead of the function's name. tags: monitors show a bar of all tasks with each, by
        which `cancel` finds it. stream_output: what it prints appears here. replicas: on how many hosts a large
        result is kept, 1 to 16, as far as there are so many. expected_seconds: about how long such a task runs; workers
        are started by it until one has ended; 0: as long as most tasks of the cluster did. key: of a task of a durable
        session, as in `submit`. tag: one tag more, by which `futures` finds it in a durable session. cache: as `cache`
        does. Raises UsageError for options that cannot be.
        """
        carried = self._options_of(options, "submit_verbose")
        check_call(args, kwargs)
        if cache:
            if key is not None or tag is not None:
                raise UsageError("a cached call belongs to no session: leave out cache, or key and tag")
            return self._cached(fn, [(tuple(args), dict(kwargs or {}))], carried)[0]
        if tag is not None:
            carried = with_tag(carried, tag)
        return self._submit(fn, tuple(args), dict(kwargs or {}), carried, key, tag)

    @hiding_frames
    def options(self, **options: Unpack[OptionKeywords]) -> ClientView:
        """Return a view of this client that submits with these options: those of `submit_verbose`.

        Its `submit`, `map`, `starmap`, `imap`, `imap_unordered`, `get`, `cache` and `executor` are as here; options of
        a single call replace those of the view. It ends with this client. Raises UsageError for options that cannot be.
        """
        self._check_open()
        return ClientView(self, options)

    @hiding_frames
    def executor(self, *, max_workers: int | None = None, **options: Unpack[OptionKeywords]) -> Executor:
        """Return a `concurrent.futures` executor on this client, which stays open; its calls have these options."""
        executor: Executor = room("executor").ScalerExecutor(self, max_workers=max_workers, task_options=options)
        return executor

    @hiding_frames
    def cache(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture:
        """Return the future of `fn(*args, **kwargs)`, which has ended if a client of this key has cached the call.

        Otherwise the call is submitted, and its result is kept in the object storage, up to its `cache_limit_bytes`,
        also when this client has left. A call is known by the code of the function, that of all that it mentions
        outside of installed packages, and the values of the arguments. So the function must depend on nothing else.
        Exceptions are not kept. Raises UsageError for arguments that are futures or were sent with `send_object`.
        """
        return self._cached(fn, [(args, kwargs)], self._options)[0]

    @hiding_frames
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
        """Call `fn` with the items of the iterables side by side, and return the results in order.

        Small calls travel together, as many as are worth it by measurement; chunk_size sets how many. The first item
        that raises makes this raise its exception, with a note that says which item it was (and `item_index`);
        return_exceptions puts exceptions in the list instead. progress shows a bar of tqdm, on stderr or in a notebook.
        options: as in `submit_verbose`, of each call, whatever travels together: one that raises an exception of
        retry_on is tried again by itself, and one that takes longer than timeout_seconds ends alone. With retries=0 no
        calls travel together. The calls of one chunk run one after the other.

        keys: of the items, in a durable session: each item is a task of its own, whose key is as in `submit`. cache:
        each item is a call of its own, as in `cache`. With one of the two, when an item raises, the others go on.
        """
        carried = self._options_of(options, "map")
        if keys is not None or cache:
            return self._map_each(fn, iterables, keys, chunk_size, return_exceptions, progress, carried)
        results = self._iterate("map", fn, iterables, chunk_size, UNBOUNDED, return_exceptions, progress, carried)
        return results._take_all()

    @hiding_frames
    def starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunk_size: int | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> list[Any]:
        """Call `fn(*item)` for each item, and return the results in order. The rest is as in `map`."""
        return self._starmap(fn, iterable, chunk_size, return_exceptions, progress, **options)._take_all()

    @hiding_frames
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
        """Call `fn` with the items of the iterables side by side; iterate over the results in order.

        The first items are sent at once: up to 64, and one of a slow iterable. The iterables may be endless: the others
        are asked for only while `next` runs, and by its thread. window: the most items that are
        ahead of the results that were taken. Without it, the window begins with 64 items and
        doubles, up to 32,768, whenever `next` has to wait although tasks find workers free: so few large items are
        in memory where the results are taken slowly, and enough are on their way for any number of workers otherwise.
        An iterable that must see a result before it gives the next item needs window=1.

        chunk_size: as in `map`; without it, chunks do not wait to be full while the iterable is slow. An item that
        fails raises its exception in its turn, with its `item_index`; `next` may be called again for those after it.
        return_exceptions gives exceptions as results instead. An exception of an iterable comes after the results of
        the items before it. Closing or dropping the iterator cancels what has not ended. Threads may share it.

        progress shows a bar of the items that have ended, which may be ahead of those that were taken. options: as in
        `map`.
        """
        carried = self._options_of(options, "imap")
        results = self._iterate("imap", fn, iterables, chunk_size, window, return_exceptions, progress, carried)
        results._start()
        return results

    @hiding_frames
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
        """As `imap`, with each result as soon as it is there; exceptions say by `item_index` whose they are."""
        carried = self._options_of(options, "imap_unordered")
        what = "imap_unordered"
        results = self._iterate(what, fn, iterables, chunk_size, window, return_exceptions, progress, carried)
        results._start()
        return results

    @hiding_frames
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
        """Compute these keys of a graph, and what they need; return them with their values.

        A graph is a dict of keys to values and to computations `(callable, key, ...)`. block=False returns futures
        instead of values; otherwise progress shows a bar of the computations that have ended. options: as in
        `submit_verbose`, of each computation. node_options: of single ones, by their keys, over the others:
        `{"train": {"memory": "8GB", "retries": 5}}`. chunk_size: how many computations between values and wanted keys
        travel together as one task, at most; by default, those of large graphs do that are short by measurement.
        Raises UsageError, before anything is sent, for missing keys and cycles.
        """
        run = self._graph(graph, keys, node_options, chunk_size, block, **options)
        return run.values(bar_of(run) if progress else None) if block else run.futures

    @hiding_frames
    def send_object(self, obj: Any, name: str | None = None) -> ObjectReference:
        """Send an object once, and return what stands for it in the arguments of any number of tasks.

        It stays in the cluster until `clear` or `disconnect`. Raises SerializationError, or LimitError when the
        object storage has no room.
        """
        reference = self._send_object(obj, name)
        with self._futures.condition:
            self._futures.put(ObjectPinned(reference._upload))
        self._references.add(reference)
        return reference

    def _send_object(self, obj: Any, name: str | None = None) -> ObjectReference:
        """Send an object once; it stays while its reference is in use, here or by tasks."""
        self._check_open()
        what = f"object {name!r}" if name else "the object"
        parts = dump_value(obj, self._serializer, what)
        upload = self._loop.upload(parts)
        self._loop.wait_uploaded(upload)
        return ObjectReference(self._futures, upload, name or type(obj).__name__, size_of(parts))

    def upload(self, path: str | Path) -> None:
        """Have the tasks of this client import a module, a package or a wheel that workers do not have.

        path: a file that ends in .py or .whl, or the directory of a package. It goes to the workers with the next tasks
        that are submitted, and nested tasks have it, too. What was uploaded under the same name before is replaced.
        Raises UsageError for what cannot be uploaded.
        """
        self._check_open()
        self._templates.use_code(room("upload").with_upload(self._templates.code, path))

    @hiding_frames
    def persist(self, futures: ScalerFuture | Iterable[ScalerFuture]) -> None:
        """Have the object storage keep a copy of each of these results, so that they outlive the hosts that made them.

        Returns at once: a result is copied now, or as soon as it exists, and its copy lives as long as its future. It
        starts no task, waits for none, and leaves the futures as they are: every task runs from `submit` on, and what
        Dask's `persist` does is not needed. A small result (up to 32 KiB) travels in messages and is never lost with a
        host. Raises UsageError for anything but futures of this client, ClientClosedError.
        """
        self._check_open()
        self._loop.copies.persist([futures] if isinstance(futures, ScalerFuture) else futures)

    @hiding_frames
    def futures(self, name: str | None = None, *, key: str | None = None, tag: str | None = None) -> list[ScalerFuture]:
        """Return the futures of the tasks of this client's durable session, in the order of their submission.

        They may be of programs that have ended. name, key, tag: only those of tasks with this name, key or tag. The
        results are loaded by this client's serializer. Raises UsageError without a session, and UnreachableError when
        the scheduler does not answer.
        """
        self._check_open()
        return self._durable("futures").find(name, key, tag)

    # -- many futures

    @hiding_frames
    def gather(self, futures: Any, *, return_exceptions: bool = False) -> Any:
        """Return the values of futures in lists, tuples, sets and dicts, however nested, in the same shape.

        return_exceptions: put exceptions in their places. Otherwise, raises that of the first that failed.
        """
        return gather(futures, return_exceptions=return_exceptions)

    @hiding_frames
    def as_completed(self, futures: Iterable[ScalerFuture] = (), *, timeout: float | None = None) -> AsCompleted:
        """Iterate over futures in the order in which they end; `add` of the iterator takes more on the way.

        timeout: seconds until `next` raises TimeoutError.
        """
        return AsCompleted(self._futures, futures, timeout)

    @hiding_frames
    def progress(self, futures: Iterable[ScalerFuture], *, name: str = "tasks") -> None:
        """Wait for futures, with a bar of tqdm on stderr or in a notebook: how many have ended, and how many failed."""
        show_progress(self._futures, futures, name)

    # -- the end

    def clear(self) -> None:
        """Cancel all unfinished tasks, and let go of all objects that were sent. The client goes on."""
        self._check_open()
        self._loop.clear()
        self._templates.clear()
        self._references.clear()

    def disconnect(self) -> None:
        """End this client, and nothing else: unfinished tasks are dropped. Harmless when repeated.

        Futures of `get` are cancelled, and others end with ClientDisconnectedError, unless they are of a session.
        """
        self._is_closed = True
        if not self._is_nested:
            if self._session is None:
                for future in self._futures.unfinished():
                    if future.node is not None:
                        future.cancel()
            self._loop.close(_DISCONNECTED)

    def shutdown(self) -> None:
        """End the cluster, scheduler and workers, then this client.

        Raises ProtectedError when the scheduler is protected, as it is unless started otherwise.
        """
        self._check_open()
        answer = self._loop.ask(ShutdownCluster(), ShutdownReply)
        if not answer.accepted:
            raise ProtectedError(answer.text)
        self.disconnect()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, _exception: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if type_ is None:  # an error says more than what it interrupted
            say_unfinished(self._loop)
        self.disconnect()

    # -- inside

    def _reduce_into(self, _collection: Collection, /) -> Reduced:
        """Travel as a call that makes a client inside the task."""
        self._check_open()
        profiling, stream_output = self._options.profiling, self._options.stream_output
        return Client, (None, profiling, DEFAULT_TIMEOUT_SECONDS, self._serializer, stream_output)

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
            raise ClientClosedError(_DISCONNECTED)
        parent = self._parent() if self._is_inside_task else b""
        template = self._templates.template(fn, options, parent)
        shape = (len(args), *kwargs)
        if shape not in template.shapes and template.owner is None:  # executors put errors into futures
            check_arguments(fn, args, kwargs)
            template.shapes.add(shape)
        if key is None and (tag is None or self._session is None):
            return self._futures.submit(template, args, kwargs)
        return self._durable("keys").submit(template, args, kwargs, key, tag)

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
        parent = self._parent()
        carried = self._options_of(options, "get")
        if not isinstance(keys, str | bytes):  # which are refused with what to give instead
            keys = list(iterated("keys", keys))
        own = nodes_with_options(graph, node_options or {}, options, lambda given: self._options_of(given, "get"))
        call = self._loop.calls.begin("get", counted(len(keys), "key"), 0, has_chunks=False)

        def template(fn: Callable[..., Any], deliver: bool, node: Options | None) -> TaskTemplate:
            return self._templates.template(fn, (node or carried)._replace(deliver=deliver, call=call.number), parent)

        size = checked_size(chunk_size, block, carried, self._serializer)
        if chunk_size is None and self._is_in_process:
            size = 1  # so that a debugger finds one node after the other
        return GraphRun(graph, keys, self._futures, template, carried, own, size)

    def _durable(self, what: str) -> NamedSession:
        if self._session is None:
            raise UsageError(f"{what} need a durable session: make the client with Client(session=...)")
        return self._session

    def _cached(self, fn: Callable[..., Any], calls: Sequence[Call], options: Options) -> list[TaskFuture]:
        self._check_open()
        if self._is_nested:
            raise UsageError("a client inside a task caches nothing: cache the call that submits the task")
        return self._loop.cached.submit(self._templates.template(fn, options, b""), fn, calls)

    def _map_each(
        self,
        fn: Callable[..., Any],
        iterables: tuple[Iterable[Any], ...],
        keys: Iterable[str] | None,
        chunk_size: int | None,
        return_exceptions: bool,
        progress: bool,
        options: Options,
    ) -> list[Any]:
        self._check_open()
        if chunk_size not in (None, 1):
            text = "items with keys, and cached ones, are tasks of their own: leave it out"
            raise UsageError(f"chunk_size is {chunk_size!r}, and {text}")
        items = list(side_by_side(iterables, "map"))
        calls: list[Call] = [(item if len(iterables) > 1 else (item,), {}) for item in items]
        progress_of = self._loop.calls.begin("map", name_of(fn), len(items), has_chunks=False)
        options = options._replace(call=progress_of.number)
        if keys is None:
            futures = self._cached(fn, calls, options)
        else:
            template = self._templates.template(fn, options, self._parent())
            futures = self._durable("keys").submit_each(template, calls, list(keys))
        return results_of(futures, name_of(fn), return_exceptions, progress)

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
        limits = None
        if (options.retry_on or options.timeout_seconds) and not self._is_in_process:
            limits = ItemLimits(options.timeout_seconds, options.retry_on)
        items = as_tuples(iterables[0]) if verb == "starmap" else side_by_side(iterables, verb)
        call = ItemCall(fn, verb == "starmap" or len(iterables) > 1, self._serializer, verb, limits)
        counts = self._loop.calls.begin(verb, call.name, count_of(iterables), has_chunks=True)
        options = of_chunks(options, chunk_size)
        options = options._replace(name=options.name or call.name, is_plain=True, call=counts.number)
        parent = self._parent()
        one = several = self._templates.template(call.function, options, parent)
        if limits is not None:
            several = self._templates.template(call.function, of_several(options), parent)

        def submit(chunk: Items | list[Any], failed: int) -> TaskFuture:
            if self._is_closed:
                raise ClientClosedError(_DISCONNECTED)
            template = one if len(chunk) == 1 else several
            if failed:
                template = self._templates.template(call.function, options._replace(failed=failed), parent)
            return self._futures.submit(template, (chunk,), {})

        return ResultIterator(
            items,
            ChunkRunner(call, submit, self._futures, chunk_size, counts),
            Window(window, chunk_size),
            self._loop.call_later,
            in_order=verb != "imap_unordered",
            return_exceptions=return_exceptions,
            progress=Progress(call.name, iterables) if progress else None,
        )

    def _options_of(self, given: OptionKeywords, verb: str) -> Options:
        """Return the options of a call as tasks carry them: the client's, without any keyword."""
        return options_of(given, verb).over(self._options) if given else self._options

    def _parent(self) -> bytes:
        context = processor() if self._is_inside_task else None
        return b"" if context is None else context.task_id

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError(_DISCONNECTED)
        self._futures.check_open()


def bar_of(run: GraphRun) -> Progress:
    """Return a bar for the computations of a graph."""
    return Progress("get", (range(run.size),))


def _check(timeout_seconds: object, name: object, session: object) -> None:
    """Raise UsageError unless the timeout is a number above 0, and the names are text that can be sent."""
    seconds = timeout_seconds
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS:
        raise UsageError(f"timeout_seconds is {seconds!r}, and must be a number above 0, up to {MAX_SECONDS:g}")
    if not isinstance(name, str) or any("\ud800" <= character <= "\udfff" for character in name):
        raise UsageError(f"name is {name!r}, and must be text, without unpaired surrogates")
    if session is not None:
        checked_label("session", session)
