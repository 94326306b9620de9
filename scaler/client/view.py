"""A view of a client that submits with options: `client.options(priority=5).map(f, items)`"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol, Unpack

from scaler.client.durable import NamedSession
from scaler.client.functions import Submitter
from scaler.client.future import ScalerFuture
from scaler.client.graph import GraphRun
from scaler.client.graph_plan import Key
from scaler.client.map import ResultIterator
from scaler.client.options import OptionKeywords, Options, options_of
from scaler.client.task_future import TaskFuture
from scaler.serialization.arguments import Collection, Reduced
from scaler.serialization.tracebacks import hiding_frames


class ViewedClient(Protocol):
    """The calls of a client that a view passes on."""

    _options: Options
    _session: NamedSession | None

    def _submit(self, *args: Any, **kwargs: Any) -> TaskFuture: ...

    def _cached(self, *args: Any, **kwargs: Any) -> list[TaskFuture]: ...

    def _starmap(self, *args: Any, **kwargs: Any) -> ResultIterator: ...

    def _graph(self, *args: Any, **kwargs: Any) -> GraphRun: ...

    def submit_verbose(self, *args: Any, **kwargs: Any) -> ScalerFuture: ...

    def map(self, *args: Any, **kwargs: Any) -> list[Any]: ...

    def imap(self, *args: Any, **kwargs: Any) -> ResultIterator: ...

    def imap_unordered(self, *args: Any, **kwargs: Any) -> ResultIterator: ...

    def get(self, *args: Any, **kwargs: Any) -> dict[Key, Any]: ...

    def executor(self, *args: Any, **kwargs: Any) -> Executor: ...


class ClientView(Submitter):
    """Submits tasks of a client with options. Given to a task as an argument, it arrives there as such a view."""

    _how_to_send = "give it to submit as an argument, alone or inside one, and the task gets such a view of its own"
    _takes_profiling = False

    def __init__(self, client: ViewedClient, given: OptionKeywords) -> None:
        """Raises UsageError for options that cannot be."""
        self._client = client
        self._given = given
        self._options = options_of(given, "options").over(client._options)
        self._session = client._session
        self._submit = client._submit

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
        return f"<options({given}) of {self._client!r}>"

    def options(self, **options: Unpack[OptionKeywords]) -> ClientView:
        """Return a view with these options over those of this one."""
        return ClientView(self._client, {**self._given, **options})

    @hiding_frames
    def submit_verbose(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> ScalerFuture:
        """Call `fn(*args, **kwargs)`, as `Client.submit_verbose`."""
        return self._client.submit_verbose(fn, args, kwargs, **{**self._given, **keywords})

    @hiding_frames
    def cache(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture:
        """Return the future of a call that may be cached, as `Client.cache`."""
        return self._client._cached(fn, [(args, kwargs)], self._options)[0]

    @hiding_frames
    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **keywords: Any) -> list[Any]:
        """Call `fn` with items, as `Client.map`."""
        return self._client.map(fn, *iterables, **{**self._given, **keywords})

    @hiding_frames
    def starmap(self, fn: Callable[..., Any], iterable: Iterable[Iterable[Any]], **keywords: Any) -> list[Any]:
        """Call `fn(*item)` for each item, as `Client.starmap`."""
        return self._starmap(fn, iterable, **keywords)._take_all()

    @hiding_frames
    def imap(self, fn: Callable[..., Any], *iterables: Iterable[Any], **keywords: Any) -> ResultIterator:
        """Call `fn` with items, and iterate over the results, as `Client.imap`."""
        return self._client.imap(fn, *iterables, **{**self._given, **keywords})

    @hiding_frames
    def imap_unordered(self, fn: Callable[..., Any], *iterables: Iterable[Any], **keywords: Any) -> ResultIterator:
        """Call `fn` with items, and iterate over the results as they come, as `Client.imap_unordered`."""
        return self._client.imap_unordered(fn, *iterables, **{**self._given, **keywords})

    @hiding_frames
    def get(self, graph: Mapping[Any, Any], keys: Sequence[Any], block: bool = True, **keywords: Any) -> dict[Key, Any]:
        """Compute keys of a graph, as `Client.get`."""
        return self._client.get(graph, keys, block, **{**self._given, **keywords})

    def _starmap(self, fn: Callable[..., Any], iterable: Iterable[Iterable[Any]], **keywords: Any) -> ResultIterator:
        return self._client._starmap(fn, iterable, **{**self._given, **keywords})

    def _graph(self, graph: Mapping[Any, Any], keys: Sequence[Any], **keywords: Any) -> GraphRun:
        return self._client._graph(graph, keys, **{**self._given, **keywords})

    @hiding_frames
    def executor(self, **keywords: Any) -> Executor:
        """Return an executor whose calls have these options, as `Client.executor`."""
        return self._client.executor(**{**self._given, **keywords})

    def _reduce_into(self, _collection: Collection, /) -> Reduced:
        """Travel as a call that makes a view inside the task."""
        return ClientView, (self._client, self._given)
