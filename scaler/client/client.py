"""The client: submit, map, starmap and get."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from scaler.client.future import ScalerFuture
from scaler.client.graph import Key
from scaler.client.graph_run import GraphRun
from scaler.client.kinds import DEFAULT_RETRIES, KindTable, Options, make_options
from scaler.client.loop import ClientLoop
from scaler.client.maps import MapRun
from scaler.client.object_reference import ObjectReference
from scaler.client.processes import nested_loop, open_loop, processor
from scaler.client.submission import Submission
from scaler.errors import ClientClosedError, UsageError
from scaler.serialization import ArgumentOnly, Collection, Serializer, bind_serializer, dump_value, size_of
from scaler.serialization.references import Reduced

DEFAULT_TIMEOUT_SECONDS = 60.0


class Client(ArgumentOnly):
    """A connection to a scheduler. Safe to share between threads; not between processes.

    Given to a task as an argument, it arrives there as a client of its own, whose tasks are that task's children.
    """

    how_to_send = "give it to submit as an argument, alone or inside one, and the task gets a client of its own"

    def __init__(
        self,
        address: str | None = None,
        profiling: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        serializer: Serializer | type[Serializer] | None = None,
        stream_output: bool = False,
        name: str = "",
    ) -> None:
        """Connect to the scheduler at `address`, or, inside a task and without one, through the task's worker.

        timeout_seconds: the longest wait for the scheduler, for the object storage, and for room when a limit is
        reached. profiling, stream_output: what `submit` takes when it is not told. serializer: instead of the built-in
        one. name: what monitors show. Raises UnreachableError, RefusedError, or UsageError.
        """
        if not timeout_seconds > 0:
            raise UsageError(f"timeout_seconds is {timeout_seconds!r}, and must be above 0")
        bound = None if serializer is None else bind_serializer(serializer)
        self._is_nested = address is None
        if address is None:
            loop = nested_loop(timeout_seconds)
        else:
            loop = open_loop(address, name, timeout_seconds)
            weakref.finalize(self, loop.abandon).atexit = False
        self._open(loop, bound, Options(profiling=profiling, stream_output=stream_output))

    def _open(self, loop: ClientLoop, serializer: Serializer | None, options: Options) -> None:
        self._loop = loop
        self._serializer = serializer
        self._options = options
        self._kinds = KindTable(loop, serializer)
        self._submission = Submission(loop)
        self._references: weakref.WeakSet[ObjectReference] = weakref.WeakSet()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Client {self._loop.futures.ids.owner.hex()} of {self._loop.address}>"

    # -- tasks

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, profiling: bool | None = None, **kwargs: Any
    ) -> ScalerFuture:
        """Call `fn(*args, **kwargs)` on a worker; return its future at once.

        Futures and object references in the arguments, at any depth, become their values. A keyword argument of the
        function that is named `profiling` needs `submit_verbose`.
        """
        options = self._options
        if profiling is not None and profiling is not options.profiling:
            options = Options(profiling=profiling, stream_output=options.stream_output)
        return self._submit(fn, args, kwargs, options)

    def submit_verbose(  # noqa: PLR0913 (each is a keyword of its own, and most are left out)
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        capabilities: Mapping[str, float | None] | None = None,
        priority: int = 0,
        retries: int = DEFAULT_RETRIES,
        retry_on: type[BaseException] | Sequence[type[BaseException]] = (),
        timeout_seconds: float = 0.0,
        profiling: bool | None = None,
        name: str | None = None,
        stream_output: bool | None = None,
    ) -> ScalerFuture:
        """Call `fn(*args, **kwargs)` on a worker, with options; return its future at once.

        capabilities: what the worker must offer, such as {"gpu": 1, "linux": None}. priority: higher runs first.
        retries: how often it may run again after its worker or process was lost, or after an exception whose type is
        in retry_on. timeout_seconds: after which it is ended; 0 means never. name: what monitors show instead of the
        function's name. stream_output: what it prints appears here. Raises UsageError for options that cannot be.
        """
        options = make_options(
            capabilities=capabilities,
            priority=priority,
            retries=retries,
            retry_on=retry_on,
            timeout_seconds=timeout_seconds,
            profiling=self._options.profiling if profiling is None else profiling,
            stream_output=self._options.stream_output if stream_output is None else stream_output,
            name=name,
        )
        return self._submit(fn, tuple(args), dict(kwargs or {}), options)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        chunk_size: int | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
    ) -> list[Any]:
        """Call `fn` with the items of the iterables side by side, and return the results in order.

        Small calls travel together, as many as are worth it by measurement; chunk_size sets how many. The first item
        that raises makes this raise its exception, with a note that says which item it was (and `item_index`);
        return_exceptions puts exceptions in the list instead. progress shows a bar.
        """
        if not iterables:
            raise UsageError("map needs at least one iterable")
        spread = len(iterables) > 1
        items: Iterable[Any] = zip(*iterables, strict=False) if spread else iterables[0]
        return self._map(fn, items, spread, chunk_size, return_exceptions, progress)

    def starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunk_size: int | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
    ) -> list[Any]:
        """Call `fn(*item)` for each item, and return the results in order. The rest is as in `map`."""
        return self._map(fn, map(tuple, iterable), True, chunk_size, return_exceptions, progress)

    def get(self, graph: Mapping[Any, Any], keys: Sequence[Any], block: bool = True) -> dict[Key, Any]:
        """Compute these keys of a graph, and what they need; return them with their values.

        A graph is a dict of keys to values and to computations `(callable, key, ...)`. block=False returns futures
        instead of values. Raises UsageError, before anything is sent, for missing keys, keys wanted twice, and cycles.
        """
        self._check_open()
        run = GraphRun(graph, keys)
        parent = self._parent()
        run.submit(
            self._submission,
            lambda function, deliver: self._kinds.kind(function, replace(self._options, deliver=deliver), parent),
        )
        return run.values() if block else run.futures

    def send_object(self, obj: Any, name: str | None = None) -> ObjectReference:
        """Send an object once, and return what stands for it in the arguments of any number of tasks.

        It stays in the cluster until `clear` or `disconnect`. Raises SerializationError, or LimitError when the
        object storage has no room.
        """
        self._check_open()
        what = f"object {name!r}" if name else "the object"
        parts = dump_value(obj, self._serializer, what)
        upload = self._loop.upload(parts)
        self._loop.wait_uploaded(upload)
        self._loop.hold(upload)
        reference = ObjectReference(self._loop.futures, upload, name or type(obj).__name__, size_of(parts))
        self._references.add(reference)
        return reference

    # -- the end

    def clear(self) -> None:
        """Cancel all unfinished tasks, and let go of all objects that were sent. The client goes on."""
        self._check_open()
        self._loop.clear()
        self._kinds.clear()
        for reference in list(self._references):
            reference.invalidate()
        self._references.clear()

    def disconnect(self) -> None:
        """End this client, and nothing else: unfinished tasks are dropped. Harmless when repeated."""
        self._is_closed = True
        if not self._is_nested:
            self._loop.close("the client was disconnected")

    def shutdown(self) -> None:
        """End the cluster, scheduler and workers, then this client.

        Raises ProtectedError when the scheduler is protected, as it is unless started otherwise.
        """
        self._check_open()
        self._loop.shut_cluster_down()
        self.disconnect()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exception: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.disconnect()

    # -- inside

    def reduce_into(self, _collection: Collection, /) -> Reduced:
        """Travel as an order to make a client inside the task."""
        self._check_open()
        return client_of_task, (self._serializer, self._options)

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ScalerFuture:
        if self._is_closed:
            raise ClientClosedError("the client was disconnected")
        kind = self._kinds.kind(fn, options, self._parent() if self._is_nested else b"")
        return self._submission.submit(kind, args, kwargs)

    def _map(
        self,
        fn: Callable[..., Any],
        items: Iterable[Any],
        spread: bool,
        chunk_size: int | None,
        return_exceptions: bool,
        progress: bool,
    ) -> list[Any]:
        self._check_open()
        run = MapRun(fn, spread, chunk_size, self._serializer)
        options = Options(
            profiling=self._options.profiling,
            stream_output=self._options.stream_output,
            name=run.name,
            is_plain=True,
        )
        parent = self._parent()
        kind = self._kinds.kind(run.function, options, parent)
        submission = self._submission
        return run.run(
            items,
            lambda chunk: submission.submit(kind, (chunk,), {}),
            self._loop.futures.waiting,
            return_exceptions,
            progress,
        )

    def _parent(self) -> bytes:
        context = processor() if self._is_nested else None
        return b"" if context is None else context.task_id

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the client was disconnected")
        self._loop.futures.check_open()


def client_of_task(serializer: Serializer | None, options: Options) -> Client:
    """Return a client inside the task that runs here: what a client in a task's arguments is pickled as."""
    client = Client.__new__(Client)
    client._is_nested = True  # noqa: SLF001 (a second constructor)
    client._open(nested_loop(DEFAULT_TIMEOUT_SECONDS), serializer, options)  # noqa: SLF001
    return client
